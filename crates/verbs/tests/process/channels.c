/* poll on a completion channel that blocks: it is readable while an event waits, and only then, so
 * that a program which has polled does not sleep in ibv_get_cq_event. */
#include <pthread.h>
#include "events.h"

#define TIMES 300

static struct ends ends;

static void *send_to_server(void *nothing)
{
	send_once(&ends, ends.client, ends.server);
	return nothing;
}

/* The program sleeps in poll, or is about to, while another of its threads sends. */
static void another_thread_sends(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	pthread_t sender;
	struct ibv_wc wc;
	int found;
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!is_readable(channel, 0));
	CHECK(!pthread_create(&sender, NULL, send_to_server, NULL));
	CHECK(is_readable(channel, -1));
	CHECK(is_readable(channel, 0));
	take(channel, cq);
	CHECK(!is_readable(channel, 0));
	CHECK(!pthread_join(sender, NULL));
	do {
		found = ibv_poll_cq(ends.client->qp->send_cq, 1, &wc);
	} while (!found);
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
}

/* Events of two queues wait in one channel: it is readable until both are taken. */
static void two_events(void)
{
	struct ibv_cq *sends = ends.client->qp->send_cq, *receives = ends.client->qp->recv_cq;
	struct ibv_comp_channel *channel = sends->channel;
	struct ibv_wc wc;
	int found;
	CHECK(!ibv_req_notify_cq(receives, 0));
	send_once(&ends, ends.server, ends.client);
	CHECK(is_readable(channel, -1));
	CHECK(!ibv_req_notify_cq(sends, 0));
	send_once(&ends, ends.client, ends.server);
	/* Behind the first event comes the second, whenever it is there. */
	take(channel, receives);
	CHECK(is_readable(channel, -1));
	take(channel, sends);
	CHECK(!is_readable(channel, 0));
	/* Those that nobody has asked for an event of. */
	do {
		found = ibv_poll_cq(ends.server->qp->send_cq, 1, &wc);
	} while (!found);
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
	do {
		found = ibv_poll_cq(ends.server->qp->recv_cq, 1, &wc);
	} while (!found);
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!is_readable(ends.server->qp->recv_cq->channel, 0));
}

int main(void)
{
	connect_ends(&ends);
	for (int i = 0; i < TIMES; i++) {
		struct ibv_cq *cq = ends.server->qp->recv_cq;
		another_thread_sends(cq->channel, cq);
		two_events();
	}
	return 0;
}
