/* The system calls of Xilinx's dma_to_device, dma_from_device and reg_rw, in their order. Their
 * sources are on GitHub only, which the tests do not ask.
 *
 *   xdma_calls to CARD ADDRESS SIZE SHIFT COUNT FILE      from a file to the card, COUNT times
 *   xdma_calls from CARD ADDRESS SIZE SHIFT COUNT FILE    from the card to a file, one after another
 *   xdma_calls flush ...                                  as from, with a packet's end (O_TRUNC)
 *   xdma_calls register FILE OFFSET                       prints a word of a mapping
 *
 * The buffer begins SHIFT bytes behind a page.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The most bytes of one call. */
static const uint64_t AT_A_TIME = 0x7ffff000;

static int fail(const char *what)
{
    perror(what);
    return 1;
}

/* Moves all bytes at an address of a file; address 0 is where the file stands already. */
static int move_bytes(int fd, int writes, char *bytes, uint64_t size, uint64_t address)
{
    for (uint64_t done = 0; done < size;) {
        uint64_t at = address + done, len = size - done;
        if (len > AT_A_TIME)
            len = AT_A_TIME;
        if (at && lseek(fd, at, SEEK_SET) != (off_t)at)
            return fail("lseek");
        ssize_t moved = writes ? write(fd, bytes + done, len) : read(fd, bytes + done, len);
        if (moved != (ssize_t)len)
            return fail(writes ? "write" : "read");
        done += len;
    }
    return 0;
}

static int print_register(const char *file, uint64_t offset)
{
    int fd = open(file, O_RDWR | O_SYNC);
    if (fd < 0)
        return fail(file);
    char *map = mmap(NULL, offset + 4, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return fail("mmap");
    printf("%08x\n", *(volatile uint32_t *)(map + offset));
    munmap(map, offset + 4);
    return close(fd);
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "register"))
        return print_register(argv[2], strtoull(argv[3], NULL, 0));
    if (argc != 8)
        return 2;
    int writes = !strcmp(argv[1], "to"), flushes = !strcmp(argv[1], "flush");
    uint64_t number[4];
    for (int i = 0; i < 4; i++)
        number[i] = strtoull(argv[3 + i], NULL, 0);
    uint64_t address = number[0], size = number[1], shift = number[2], count = number[3];
    struct timespec time;
    int card = open(argv[2], flushes ? O_RDWR | O_TRUNC : O_RDWR);
    int file = writes ? open(argv[7], O_RDONLY)
                      : open(argv[7], O_RDWR | O_CREAT | O_TRUNC | O_SYNC, 0666);
    char *room;
    if (card < 0 || file < 0)
        return fail(card < 0 ? argv[2] : argv[7]);
    if (posix_memalign((void **)&room, 4096, size + 4096))
        return fail("posix_memalign");
    if (writes && move_bytes(file, 0, room + shift, size, 0))
        return 1;
    for (uint64_t i = 0; i < count; i++) {
        clock_gettime(CLOCK_MONOTONIC, &time);
        if (move_bytes(card, writes, room + shift, size, address))
            return 1;
        clock_gettime(CLOCK_MONOTONIC, &time);
        if (!writes && move_bytes(file, 1, room + shift, size, i * size))
            return 1;
    }
    close(card);
    close(file);
    free(room);
    return 0;
}
