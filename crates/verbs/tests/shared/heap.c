/* A program whose heap the library has converted to shared memory forks: parent and child each have
 * a heap of their own afterwards, and the card reaches the parent's. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include "verbs.h"

#define BYTES 65536

struct words {
	volatile uint64_t of_handler, of_parent, of_child, of_card;
	volatile atomic_ulong of_thread;
};

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qps[2];
static struct ibv_mr *heap, *seen;
static struct words *words;
static struct words view;

/* Is the byte at `at` in memory that took the place of private memory? */
static int is_converted(const void *at)
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		char way[5];
		CHECK(sscanf(line, "%lx-%lx %4s", &from, &to, way) == 3);
		if (from <= (uintptr_t) at && (uintptr_t) at < to)
			found = way[3] == 's' && strstr(line, "/memfd:remora") != NULL;
	}
	fclose(maps);
	return found;
}

/* Reads the words as the card sees them. */
static void look(void)
{
	struct ibv_sge sge = { (uintptr_t) &view, sizeof view, seen->lkey };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t) words, .rkey = heap->rkey } };
	CHECK(!ibv_post_send(qps[0], &wr, &bad));
	wait_for(cq, IBV_WC_RDMA_READ);
}

static void write_word(volatile uint64_t *to, uint64_t value)
{
	memcpy(&view, &value, sizeof value);
	write_to(qps[0], &view, seen->lkey, (uintptr_t) to, heap->rkey, sizeof value);
}

/* Runs in the thread that forks, behind the library's own handler. */
static void handler(void)
{
	if (words)
		words->of_handler++;
}

static void make_all(void)
{
	/* Handlers that were registered first run last before a fork. */
	CHECK(!pthread_atfork(handler, NULL, NULL));
	struct ibv_context *context = open_first();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(pd && cq);
	for (int i = 0; i < 2; i++)
		qps[i] = make(pd, cq);
	for (int i = 0; i < 2; i++)
		connect_to(qps[i], gid_of(context), qps[!i]->qp_num);
	/* Of the heap, whose pages have other blocks, too. */
	struct words *made = malloc(BYTES);
	CHECK(made);
	memset(made, 0, BYTES);
	heap = ibv_reg_mr(pd, made, BYTES, ALL | IBV_ACCESS_REMOTE_ATOMIC);
	seen = ibv_reg_mr(pd, &view, sizeof view, ALL);
	CHECK(heap && seen && is_converted(made));
	words = made;
}

/* Takes and gives back blocks of the heap, whose bytes nobody else may change. */
static void use_heap(unsigned char mark)
{
	enum { BLOCKS = 512 };
	static unsigned char *blocks[BLOCKS];
	static size_t sizes[BLOCKS];
	for (int round = 0; round < 20000; round++) {
		int i = rand() % BLOCKS;
		for (size_t at = 0; at < sizes[i]; at++)
			CHECK(blocks[i][at] == mark);
		free(blocks[i]);
		sizes[i] = 1 + rand() % 600;
		blocks[i] = malloc(sizes[i]);
		CHECK(blocks[i]);
		memset(blocks[i], mark, sizes[i]);
	}
	for (int i = 0; i < BLOCKS; i++) {
		free(blocks[i]);
		blocks[i] = NULL;
		sizes[i] = 0;
	}
}

static void in_child(int socket, uint64_t round)
{
	char go;
	CHECK(!is_converted((void *) words));
	/* What the program wrote last before the fork. */
	CHECK(words->of_parent == round && words->of_handler == round);
	words->of_child = 99;
	tell(socket, "w", 1);
	use_heap(0xC0);
	hear(socket, &go, 1);
	/* Neither what the parent has written since, nor what the card has. */
	CHECK(words->of_parent == round && words->of_card == round - 1 && words->of_child == 99);
}

static void in_parent(int socket, uint64_t round)
{
	char done;
	CHECK(is_converted((void *) words));
	hear(socket, &done, 1);
	CHECK(words->of_child == 0);
	words->of_parent = 1000;
	write_word(&words->of_card, round);
	CHECK(words->of_card == round);
	look();
	CHECK(view.of_parent == 1000 && view.of_handler == round && !view.of_child);
	use_heap(0xAA);
	tell(socket, "w", 1);
}

static void fork_once(uint64_t round)
{
	int ends[2], status;
	words->of_parent = round;
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		alarm(60);
		close(ends[0]);
		in_child(ends[1], round);
		_Exit(0);
	}
	close(ends[1]);
	in_parent(ends[0], round);
	close(ends[0]);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

/* Counts in the heap, where no count may get lost. */
static void *count(void *stop)
{
	unsigned long counted = 0;
	while (!atomic_load((atomic_int *) stop)) {
		CHECK(atomic_fetch_add(&words->of_thread, 1) == counted);
		counted++;
	}
	return (void *) counted;
}

/* Forks while another thread writes, where the system lets the library hold that. */
static void fork_beside_a_thread(uint64_t first)
{
	atomic_int stop = 0;
	void *counted;
	pthread_t thread;
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (fd < 0) {
		printf("skipped: the system permits no userfaultfd, and so no thread beside a fork\n");
		return;
	}
	close(fd);
	CHECK(!pthread_create(&thread, NULL, count, &stop));
	for (uint64_t round = first; round < first + 20; round++)
		fork_once(round);
	atomic_store(&stop, 1);
	CHECK(!pthread_join(thread, &counted));
	CHECK(atomic_load(&words->of_thread) == (unsigned long) counted);
	look();
	CHECK(atomic_load(&view.of_thread) == (unsigned long) counted);
}

int main(void)
{
	make_all();
	for (uint64_t round = 1; round <= 5; round++)
		fork_once(round);
	fork_beside_a_thread(6);
	return 0;
}
