/* A process imports the device of another, and its domain, region and device memory, whose numbers
 * it is told. `import`: on the card of one daemon. `import own`: on cards of their own, where it is
 * refused. */
#include "verbs.h"

#define LEN 4096

struct told {
	uint32_t pd, region, dm, rkey;
	uint64_t addr;
};

static char bytes[LEN];
static int is_own;

/* A piece may be as long as the device says, and no longer. */
static void longest(struct ibv_context *context)
{
	struct ibv_device_attr_ex all;
	CHECK(!ibv_query_device_ex(context, NULL, &all) && all.max_dm_size);
	struct ibv_alloc_dm_attr attr = { .length = all.max_dm_size };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	CHECK(dm && !ibv_free_dm(dm));
	attr.length++;
	CHECK(!ibv_alloc_dm(context, &attr) && errno == ENOMEM);
	attr.length = SIZE_MAX;
	CHECK(!ibv_alloc_dm(context, &attr) && errno == ENOMEM);
	attr.length = 0;
	CHECK(!ibv_alloc_dm(context, &attr) && errno == EINVAL);
}

/* Has the objects, and looks what becomes of them. */
static void exporter(int socket)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	longest(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, LEN, ALL);
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	CHECK(mr && dm);
	struct told told = { pd->handle, mr->handle, dm->handle, mr->rkey, (uintptr_t) bytes };
	uint64_t word = 1;
	char byte;
	CHECK(!ibv_memcpy_to_dm(dm, 0, &word, sizeof word));
	pass(socket, context->cmd_fd);
	tell(socket, &told, sizeof told);
	hear(socket, &byte, 1);
	if (is_own)
		return;
	CHECK(!memcmp(bytes, "written by another process", 26));
	CHECK(!ibv_memcpy_from_dm(&word, dm, 0, sizeof word) && word == 2);
	CHECK(!ibv_memcpy_from_dm(&word, dm, 8, sizeof word) && word == 3);
	/* The domain and the device memory are in use there, and stay here. */
	CHECK(ibv_dealloc_pd(pd) == EBUSY && ibv_free_dm(dm) == EBUSY);
	tell(socket, &byte, 1);
	hear(socket, &byte, 1);
	/* What is destroyed is gone for all. */
	CHECK(!ibv_dereg_mr(mr) && !ibv_free_dm(dm) && !ibv_dealloc_pd(pd));
	tell(socket, &byte, 1);
	hear(socket, &byte, 1);
	CHECK(!ibv_close_device(context));
}

static void work(int socket, struct ibv_context *context, struct told *told)
{
	struct ibv_pd *pd = ibv_import_pd(context, told->pd);
	CHECK(pd && pd->context == context && pd->handle == told->pd);
	struct ibv_mr *theirs = ibv_import_mr(pd, told->region);
	struct ibv_dm *dm = ibv_import_dm(context, told->dm);
	CHECK(theirs && dm && theirs->rkey == told->rkey && theirs->length == LEN && !theirs->addr);
	/* Numbers of nothing. */
	CHECK(!ibv_import_pd(context, told->pd + 1) && errno == EINVAL);
	CHECK(!ibv_import_mr(pd, told->region + 1) && errno == EINVAL);
	CHECK(!ibv_import_dm(context, told->dm + 4096) && errno == EINVAL);
	/* Events are the exporter's. */
	CHECK(!ibv_create_comp_channel(context) && errno == EOPNOTSUPP);

	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *one = make(pd, cq), *two = make(pd, cq);
	connect_to(one, gid_of(context), two->qp_num);
	connect_to(two, gid_of(context), one->qp_num);
	strcpy(bytes, "written by another process");
	struct ibv_mr *ours = ibv_reg_mr(pd, bytes, LEN, ALL);
	struct ibv_mr *on_card = ibv_reg_dm_mr(pd, dm, 0, 64, ALL | IBV_ACCESS_ZERO_BASED);
	CHECK(ours && on_card);
	write_to(one, bytes, ours->lkey, told->addr, told->rkey, 64);
	uint64_t word;
	CHECK(!ibv_memcpy_from_dm(&word, dm, 0, sizeof word) && word == 1);
	/* It is as long here as it is there. */
	CHECK(ibv_memcpy_from_dm(&word, dm, 60, 8) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 64, &word, 4) == EINVAL);
	CHECK(!ibv_reg_dm_mr(pd, dm, 32, 64, ALL | IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	word = 2;
	CHECK(!ibv_memcpy_to_dm(dm, 0, &word, sizeof word));
	*(uint64_t *) bytes = 3;
	write_to(one, bytes, ours->lkey, 8, on_card->rkey, 8);
	char byte = 0;
	tell(socket, &byte, 1);
	hear(socket, &byte, 1);

	CHECK(!ibv_destroy_qp(one) && !ibv_destroy_qp(two) && !ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(ours) && !ibv_dereg_mr(on_card));
	ibv_unimport_mr(theirs);
	ibv_unimport_dm(dm);
	tell(socket, &byte, 1);
	hear(socket, &byte, 1);
	CHECK(!ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	ibv_unimport_pd(pd);
	tell(socket, &byte, 1);
}

static int threads(void)
{
	char line[128];
	int count = -1;
	FILE *status = fopen("/proc/self/status", "r");
	CHECK(status);
	while (fgets(line, sizeof line, status))
		if (sscanf(line, "Threads: %d", &count) == 1)
			break;
	fclose(status);
	return count;
}

/* Whatever an import brings goes with the context. */
static void again_and_again(int fd)
{
	CHECK(ibv_close_device(ibv_import_device(dup(fd))) == 0);
	int before = threads(), next = dup(fd);
	CHECK(before > 0 && next >= 0 && !close(next));
	for (int i = 0; i < 10; i++)
		CHECK(ibv_close_device(ibv_import_device(dup(fd))) == 0);
	CHECK(threads() == before);
	CHECK(dup(fd) == next && !close(next));
}

static void importer(int socket)
{
	int fd = take(socket), none[2];
	struct told told;
	char byte = 0;
	hear(socket, &told, sizeof told);
	/* Descriptors of other things. */
	CHECK(!ibv_import_device(-1) && errno == EBADF);
	CHECK(!pipe(none));
	CHECK(!ibv_import_device(none[0]) && errno == EINVAL);
	CHECK(!close(none[0]) && !close(none[1]));

	struct ibv_context *context = ibv_import_device(fd);
	if (is_own) {
		CHECK(!context && errno == EOPNOTSUPP);
		tell(socket, &byte, 1);
		return;
	}
	CHECK(context && context->cmd_fd == fd);
	again_and_again(fd);
	work(socket, context, &told);
	CHECK(!ibv_close_device(context));
	CHECK(fcntl(fd, F_GETFD) == -1);
}

int main(int argc, char **argv)
{
	is_own = argc > 1;
	run_both(exporter, importer);
	/* Within a process, on any card. */
	struct ibv_context *context = open_first(), *again = ibv_import_device(dup(context->cmd_fd));
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(context && again && pd);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, LEN, ALL);
	struct ibv_pd *same = ibv_import_pd(again, pd->handle);
	CHECK(mr && same);
	struct ibv_mr *too = ibv_import_mr(same, mr->handle);
	CHECK(too && too->rkey == mr->rkey);
	ibv_unimport_mr(too);
	ibv_unimport_pd(same);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(again) && !ibv_close_device(context));
	return 0;
}
