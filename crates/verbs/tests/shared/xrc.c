/* Two processes share an XRC domain by a file: a target of one delivers into the shared receive
 * queue of the other, and outlives the process that has made it. */
#include "verbs.h"

static char bytes[4096];

struct domain {
	struct ibv_context *context;
	struct ibv_xrcd *xrcd;
};

static struct ibv_xrcd *open_by(struct ibv_context *context, int fd, int flags)
{
	struct ibv_xrcd_init_attr attr = { .fd = fd, .oflags = flags,
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS };
	return ibv_open_xrcd(context, &attr);
}

/* A file without a name. */
static int new_file(void)
{
	FILE *file = tmpfile();
	CHECK(file);
	return fileno(file);
}

/* Makes the domain and a target in it, which it passes on, and ends. */
static void receiver(int socket)
{
	struct ibv_context *context = open_first();
	int file = new_file();
	char byte;
	CHECK(!open_by(context, file, 0) && errno == ENOENT);
	struct ibv_xrcd *xrcd = open_by(context, file, O_CREAT | O_EXCL);
	CHECK(xrcd);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd,
					    .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp *target = ibv_create_qp_ex(context, &init);
	CHECK(target);
	uint32_t number = target->qp_num, peer;
	union ibv_gid gid;
	pass(socket, file);
	tell(socket, &number, sizeof number);
	hear(socket, &peer, sizeof peer);
	hear(socket, &gid, sizeof gid);
	connect_to(target, gid, peer);
	tell(socket, &byte, 1);
	hear(socket, &byte, 1);
	/* The other process has it, too. */
	CHECK(!ibv_destroy_qp(target));
	CHECK(!ibv_close_xrcd(xrcd));
	CHECK(!ibv_close_device(context));
	tell(socket, &byte, 1);
}

static struct ibv_srq *shared_queue(struct ibv_pd *pd, struct ibv_xrcd *xrcd, struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex init = { .srq_type = IBV_SRQT_XRC, .xrcd = xrcd, .cq = cq,
		.pd = pd, .attr = { .max_wr = 8, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD };
	struct ibv_srq *srq = ibv_create_srq_ex(pd->context, &init);
	CHECK(srq);
	return srq;
}

/* Sends to a shared receive queue of this process, by the other process's target. */
static void send_once(struct ibv_qp *sender, struct ibv_srq *srq, struct ibv_cq *received,
		      struct ibv_mr *mr)
{
	uint32_t number;
	CHECK(!ibv_get_srq_num(srq, &number));
	struct ibv_sge here = { (uintptr_t) bytes, 16, mr->lkey };
	struct ibv_sge there = { (uintptr_t) bytes + 64, 16, mr->lkey };
	struct ibv_recv_wr *bad_receive, receive = { .sg_list = &there, .num_sge = 1 };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .sg_list = &here, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .qp_type.xrc.remote_srqn = number };
	memset(bytes + 64, 0, 16);
	CHECK(!ibv_post_srq_recv(srq, &receive, &bad_receive));
	CHECK(!ibv_post_send(sender, &wr, &bad));
	wait_for(sender->send_cq, IBV_WC_SEND);
	wait_for(received, IBV_WC_RECV);
	CHECK(!memcmp(bytes, bytes + 64, 16));
}

static void sender(int socket)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *sent = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_cq *received = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, ALL);
	CHECK(pd && sent && received && mr);
	int file = take(socket), other = new_file();
	uint32_t target;
	char byte = 0;
	hear(socket, &target, sizeof target);
	CHECK(!open_by(context, file, O_CREAT | O_EXCL) && errno == EEXIST);
	CHECK(!open_by(context, other, 0) && errno == ENOENT);
	struct ibv_xrcd *xrcd = open_by(context, file, 0);
	CHECK(xrcd);

	struct ibv_srq *srq = shared_queue(pd, xrcd, received);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_SEND, .send_cq = sent,
		.pd = pd, .cap = { .max_send_wr = 8, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	CHECK(qp);
	union ibv_gid gid = gid_of(context);
	tell(socket, &qp->qp_num, sizeof qp->qp_num);
	tell(socket, &gid, sizeof gid);
	hear(socket, &byte, 1);
	connect_to(qp, gid, target);
	strcpy(bytes, "by two processes");
	send_once(qp, srq, received, mr);

	/* A target of another domain is none of this one. */
	struct ibv_xrcd *apart = open_by(context, other, O_CREAT);
	CHECK(apart);
	struct ibv_qp_open_attr attr = { .qp_num = target, .xrcd = apart,
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_OPEN_ATTR_NUM |
		IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE };
	CHECK(!ibv_open_qp(context, &attr) && errno == EINVAL);
	CHECK(!ibv_close_xrcd(apart));
	attr.xrcd = xrcd;
	struct ibv_qp *too = ibv_open_qp(context, &attr);
	CHECK(too);
	tell(socket, &byte, 1);
	hear(socket, &byte, 1);
	/* Its maker has closed all, and the target goes on. */
	send_once(qp, srq, received, mr);
	CHECK(ibv_close_xrcd(xrcd) == EBUSY);
	CHECK(!ibv_destroy_qp(too) && !ibv_destroy_qp(qp) && !ibv_destroy_srq(srq));
	CHECK(!ibv_close_xrcd(xrcd));
	CHECK(!open_by(context, file, 0) && errno == ENOENT);
}

int main(void)
{
	run_both(receiver, sender);
	return 0;
}
