/* A forked child uses its parent's objects. `fork`: on the card of a daemon. `fork own`: on a card
 * of its own, where they are invalid in the child. */
#include <pthread.h>
#include "verbs.h"

struct parent {
	struct ibv_context *context;
	struct ibv_device *device;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qps[2];
	struct ibv_mr *region;
	struct ibv_dm *dm;
	struct ibv_comp_channel *channel;
};

static struct parent parent;
static char bytes[4096];

static void make_parent(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct parent *of = &parent;
	CHECK(!ibv_fork_init());
	of->context = open_first();
	of->device = of->context->device;
	of->pd = ibv_alloc_pd(of->context);
	of->channel = ibv_create_comp_channel(of->context);
	of->cq = ibv_create_cq(of->context, 16, NULL, of->channel, 0);
	of->region = ibv_reg_mr(of->pd, bytes, sizeof bytes, ALL);
	of->dm = ibv_alloc_dm(of->context, &attr);
	CHECK(of->pd && of->channel && of->cq && of->region && of->dm);
	for (int i = 0; i < 2; i++)
		of->qps[i] = make(of->pd, of->cq);
	for (int i = 0; i < 2; i++)
		connect_to(of->qps[i], gid_of(of->context), of->qps[!i]->qp_num);
}

/* A child on a card of its own opens the device anew. */
static void refused(void)
{
	struct ibv_wc wc;
	CHECK(!ibv_alloc_pd(parent.context) && errno == EINVAL);
	CHECK(ibv_destroy_qp(parent.qps[0]) == EINVAL);
	CHECK(ibv_dereg_mr(parent.region) == EINVAL);
	CHECK(ibv_poll_cq(parent.cq, 1, &wc) < 0);
}

static void anew(void)
{
	/* The parent's list will do. */
	struct ibv_context *context = ibv_open_device(parent.device);
	CHECK(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel && ibv_alloc_pd(context));
}

/* Uses what the parent has, and what it makes beside that. */
static void used(int destroys)
{
	static char here[4096];
	uint64_t word = 5;
	struct ibv_alloc_dm_attr attr = { .length = 128 };
	struct ibv_dm *dm = ibv_alloc_dm(parent.context, &attr);
	CHECK(dm && !ibv_memcpy_to_dm(dm, 64, &word, sizeof word));
	CHECK(!ibv_memcpy_to_dm(parent.dm, 0, &word, sizeof word));
	struct ibv_pd *pd = ibv_alloc_pd(parent.context);
	struct ibv_cq *cq = ibv_create_cq(parent.context, 16, NULL, NULL, 0);
	/* Its own memory, in a domain of the parent's; and the parent's memory, by its region. */
	struct ibv_mr *mr = ibv_reg_mr(parent.pd, here, sizeof here, ALL);
	CHECK(pd && cq && mr);
	struct ibv_qp *one = make(parent.pd, cq), *two = make(parent.pd, cq);
	connect_to(one, gid_of(parent.context), two->qp_num);
	connect_to(two, gid_of(parent.context), one->qp_num);
	strcpy(here, "by the child");
	write_to(one, here, mr->lkey, (uintptr_t) bytes, parent.region->rkey, 16);
	write_to(one, bytes, parent.region->lkey, (uintptr_t) here + 64, mr->rkey, 16);
	CHECK(!strcmp(here + 64, "by the child"));
	/* Events are the parent's. */
	struct ibv_cq *told;
	void *context;
	CHECK(ibv_get_cq_event(parent.channel, &told, &context) == -1);
	CHECK(!ibv_create_comp_channel(parent.context) && errno == EOPNOTSUPP);
	CHECK(!ibv_destroy_qp(one) && !ibv_destroy_qp(two) && !ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_free_dm(dm));
	if (destroys) {
		/* Posts to the parent's queue, and destroys it. */
		write_to(parent.qps[0], bytes + 64, parent.region->lkey, (uintptr_t) bytes + 128,
			 parent.region->rkey, 16);
		CHECK(!ibv_destroy_qp(parent.qps[0]) && !ibv_destroy_qp(parent.qps[1]));
	}
}

static void run(int is_own, int destroys)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		if (is_own)
			refused();
		else
			used(destroys);
		anew();
		_Exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

/* A child's child does the same, and the child goes on. */
static void run_two(void)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		used(0);
		run(0, 0);
		used(0);
		_Exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

static void *holds_a_poll(void *queue)
{
	struct ibv_cq_ex *cq = queue;
	struct ibv_poll_cq_attr attr = { 0 };
	/* The parent's other thread stands at a completion, and the child knows nothing of it. */
	while (ibv_start_poll(cq, &attr) == ENOENT)
		;
	return NULL;
}

/* A child uses what another thread of its parent held as it was forked. */
static void beside_a_poll(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 16 };
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(parent.context, &init);
	CHECK(cq);
	struct ibv_cq *plain = ibv_cq_ex_to_cq(cq);
	struct ibv_qp *qp = make(parent.pd, plain), *other = make(parent.pd, parent.cq);
	connect_to(qp, gid_of(parent.context), other->qp_num);
	connect_to(other, gid_of(parent.context), qp->qp_num);
	struct ibv_sge sge = { (uintptr_t) bytes, 8, parent.region->lkey };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t) bytes, .rkey = parent.region->rkey } };
	int status;
	pthread_t thread;
	CHECK(!ibv_post_send(qp, &wr, &bad) && !ibv_post_send(qp, &wr, &bad));
	CHECK(!pthread_create(&thread, NULL, holds_a_poll, cq) && !pthread_join(thread, NULL));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		alarm(60);
		while (ibv_start_poll(cq, &attr) == ENOENT)
			;
		ibv_end_poll(cq);
		_Exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	ibv_end_poll(cq);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(other) && !ibv_destroy_cq(plain));
}

/* The parent ends at once, and the child goes on with what they had. */
static void leaves_it_to_a_child(void)
{
	int alive[2];
	char byte;
	CHECK(!pipe(alive));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child) {
		close(alive[0]);
		exit(0);
	}
	close(alive[1]);
	/* Its end is the end of the pipe. */
	CHECK(!read(alive[0], &byte, 1));
	uint64_t word;
	CHECK(!ibv_memcpy_from_dm(&word, parent.dm, 0, sizeof word) && word == 5);
	CHECK(ibv_alloc_pd(parent.context));
	printf("the child goes on\n");
	fflush(stdout);
	_Exit(0);
}

int main(int argc, char **argv)
{
	int is_own = argc > 1;
	make_parent();
	strcpy(bytes + 64, "the parent's");
	for (int i = 0; i < 10; i++)
		run(is_own, 0);
	if (is_own)
		return 0;
	CHECK(!strcmp(bytes, "by the child"));
	run_two();
	beside_a_poll();
	/* The parent's own work goes on. */
	write_to(parent.qps[0], bytes + 64, parent.region->lkey, (uintptr_t) bytes + 128,
		 parent.region->rkey, 16);
	CHECK(!strcmp(bytes + 128, "the parent's"));
	/* Several at a time, which make device memory. */
	for (int i = 0; i < 8; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			struct ibv_alloc_dm_attr attr = { .length = 64 };
			struct ibv_dm *dm = ibv_alloc_dm(parent.context, &attr);
			CHECK(dm && !ibv_free_dm(dm));
			_Exit(0);
		}
	}
	for (int i = 0, status; i < 8; i++)
		CHECK(wait(&status) > 0 && WIFEXITED(status) && !WEXITSTATUS(status));
	memset(bytes + 128, 0, 16);
	run(0, 1);
	CHECK(!strcmp(bytes + 128, "the parent's"));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(parent.qps[0], &attr, IBV_QP_STATE) == EINVAL);
	leaves_it_to_a_child();
}
