/* The completion events of two connected queue pairs. */
#include <fcntl.h>
#include <poll.h>
#include "connected.h"

/* Is the channel's descriptor readable, after up to `timeout` milliseconds? (-1: however long.) */
static int is_readable(struct ibv_comp_channel *channel, int timeout)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	int found = poll(&fd, 1, timeout);
	CHECK(found == 0 || (found == 1 && fd.revents == POLLIN));
	return found;
}

/* Takes an event, which must be of `cq`, and the queue's one completion. */
static void take(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_cq *told = NULL;
	struct ibv_wc wc;
	void *context;
	while (ibv_get_cq_event(channel, &told, &context)) {
		/* A descriptor that does not block may be readable before the event is there. */
		CHECK(errno == EAGAIN && fcntl(channel->fd, F_GETFL) & O_NONBLOCK);
		CHECK(is_readable(channel, -1));
	}
	CHECK(told == cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
}

/* Sends from `from` to `to`, which tells its completion queues of it: that of sends here, and that of
 * receives there. */
static void send_once(struct ends *ends, struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	struct ibv_sge here = { (uintptr_t) ends->bytes, 64, ends->region->lkey };
	struct ibv_sge there = { (uintptr_t) ends->bytes + 1024, 64, ends->region->lkey };
	struct ibv_recv_wr *bad_receive, receive = { .sg_list = &there, .num_sge = 1 };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .sg_list = &here, .num_sge = 1,
					.send_flags = IBV_SEND_SIGNALED };
	CHECK(!ibv_post_recv(to->qp, &receive, &bad_receive));
	CHECK(!ibv_post_send(from->qp, &wr, &bad));
}
