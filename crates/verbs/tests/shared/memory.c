/* Memory of all kinds is registered with a daemon's card, which reads it, writes it, and does
 * atomics in it. `memory WAYS`: the environment names these ways (REMORA_MEMORY), or `usual`. */
#include <sys/mman.h>
#include "verbs.h"

#define LEN 65536

static const char *ways;
static struct ibv_pd *pd;
static struct ibv_qp *qp;
static unsigned char *own;
static struct ibv_mr *mine;
static int file;

/* What becomes of memory that is registered. */
enum outcome { REFUSED, BY_CALLS, CONVERTED };

/* Is the byte at `at` in memory that took the place of private memory? */
static int is_converted(const void *at)
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		CHECK(sscanf(line, "%lx-%lx", &from, &to) == 2);
		if (from <= (uintptr_t) at && (uintptr_t) at < to)
			found = strstr(line, "/memfd:remora") != NULL;
	}
	fclose(maps);
	return found;
}

/* Anonymous private memory is converted where that is wanted; all other memory stays as it is. */
static enum outcome expected(int is_private, int is_atomic)
{
	if (!strcmp(ways, "convert"))
		return is_private ? CONVERTED : REFUSED;
	if (!is_private || !strcmp(ways, "process_vm") || !strcmp(ways, "proc_mem"))
		return BY_CALLS;
	return is_atomic || !strcmp(ways, "convert,process_vm") ? CONVERTED : BY_CALLS;
}

static void carry_out(enum ibv_wr_opcode opcode, enum ibv_wc_opcode done, struct ibv_mr *local,
		      void *at, uint32_t len, struct ibv_mr *remote, void *there)
{
	struct ibv_sge sge = { (uintptr_t) at, len, local->lkey };
	struct ibv_send_wr *bad, wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1,
					.send_flags = IBV_SEND_SIGNALED };
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t) there;
		wr.wr.atomic.rkey = remote->rkey;
		wr.wr.atomic.compare_add = 5;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t) there;
		wr.wr.rdma.rkey = remote->rkey;
	}
	CHECK(!ibv_post_send(qp, &wr, &bad));
	wait_for(qp->send_cq, done);
}

static void fill(unsigned char *at, unsigned first)
{
	for (unsigned i = 0; i < LEN; i++)
		at[i] = first + i + (i >> 8);
}

static int is_filled(const unsigned char *at, unsigned first)
{
	for (unsigned i = 0; i < LEN; i++)
		if (at[i] != (unsigned char) (first + i + (i >> 8)))
			return 0;
	return 1;
}

/* The card reads and writes a region, as the peer's memory and as its own. */
static void use(struct ibv_mr *mr, unsigned char *at, int is_atomic)
{
	fill(at, 1);
	carry_out(IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, mine, own, LEN, mr, at);
	CHECK(is_filled(own, 1));
	fill(own, 2);
	carry_out(IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, mine, own, LEN, mr, at);
	CHECK(is_filled(at, 2));
	fill(at, 3);
	carry_out(IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, mr, at, LEN, mine, own);
	CHECK(is_filled(own, 3));
	fill(own, 4);
	carry_out(IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, mr, at, LEN, mine, own);
	CHECK(is_filled(at, 4));
	if (is_atomic) {
		uint64_t word = 37, now;
		memcpy(at + 4096, &word, sizeof word);
		carry_out(IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD, mine, own, 8, mr, at + 4096);
		memcpy(&now, at + 4096, sizeof now);
		CHECK(now == 42 && !memcmp(own, &word, sizeof word));
	}
}

static void try(const char *kind, void *at, int is_private)
{
	for (int is_atomic = 0; is_atomic < 2; is_atomic++) {
		enum outcome wanted = expected(is_private, is_atomic);
		int access = ALL | (is_atomic ? IBV_ACCESS_REMOTE_ATOMIC : 0);
		fill(at, 7);
		struct ibv_mr *mr = ibv_reg_mr(pd, at, LEN, access);
		enum outcome outcome = !mr ? REFUSED : is_converted(at) ? CONVERTED : BY_CALLS;
		printf("%s, %s: %d\n", kind, is_atomic ? "with atomics" : "without", outcome);
		CHECK(outcome == wanted && is_filled(at, 7));
		if (!mr)
			continue;
		use(mr, at, is_atomic);
		CHECK(!ibv_dereg_mr(mr));
		fill(at, 9);
		CHECK(is_filled(at, 9));
	}
}

static void *mapped(size_t len, int flags, int fd)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);
	return at == MAP_FAILED ? NULL : at;
}

static void of_a_file(const char *kind, int flags, int is_written)
{
	unsigned char *at = mapped(LEN, flags, file), *bytes = malloc(LEN);
	CHECK(at && bytes);
	memset(bytes, 0xEE, LEN);
	CHECK(pwrite(file, bytes, LEN, 0) == LEN);
	try(kind, at, 0);
	/* What is written to a private mapping does not reach the file. */
	CHECK(pread(file, bytes, LEN, 0) == LEN);
	CHECK((bytes[0] != 0xEE || bytes[1] != 0xEE) == is_written);
	CHECK(!munmap(at, LEN));
	free(bytes);
}

static void of_the_stack(void)
{
	unsigned char bytes[LEN];
	try("stack", bytes, 0);
}

static void of_huge_pages(void)
{
	enum { HUGE = 4 << 20 };
	struct { const char *kind; int flags; } kinds[] = {
		{ "huge pages", MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB },
		{ "huge pages, shared", MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB },
	};
	for (int i = 0; i < 2; i++) {
		unsigned char *at = mapped(HUGE, kinds[i].flags, -1);
		if (!at) {
			printf("skipped: this machine has no huge pages (vm.nr_hugepages)\n");
			continue;
		}
		try(kinds[i].kind, at + 5000 - 5000 % 64, 0);
		CHECK(!munmap(at, HUGE));
	}
	unsigned char *merged = mapped(HUGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	CHECK(merged);
	/* A system without them leaves the pages small. */
	madvise(merged, HUGE, MADV_HUGEPAGE);
	try("pages that may be merged", merged, 1);
	CHECK(!munmap(merged, HUGE));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	ways = argv[1];
	FILE *temporary = tmpfile();
	CHECK(temporary);
	file = fileno(temporary);
	CHECK(!ftruncate(file, LEN));
	struct ibv_context *context = open_first();
	pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	own = mapped(LEN, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	CHECK(pd && cq && own);
	mine = ibv_reg_mr(pd, own, LEN, ALL);
	CHECK(mine);
	qp = make(pd, cq);
	struct ibv_qp *peer = make(pd, cq);
	connect_with(qp, gid_of(context), peer->qp_num, ALL | IBV_ACCESS_REMOTE_ATOMIC);
	connect_with(peer, gid_of(context), qp->qp_num, ALL | IBV_ACCESS_REMOTE_ATOMIC);

	unsigned char *heap = malloc(4 * LEN);
	CHECK(heap);
	try("heap", heap + 64, 1);
	void *anonymous = mapped(LEN, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	CHECK(anonymous);
	try("anonymous", anonymous, 1);
	void *shared = mapped(LEN, MAP_SHARED | MAP_ANONYMOUS, -1);
	CHECK(shared);
	try("shared", shared, 0);
	of_the_stack();
	of_a_file("file", MAP_SHARED, 1);
	of_a_file("file, private", MAP_PRIVATE, 0);
	of_huge_pages();
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer) && !ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(mine) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
