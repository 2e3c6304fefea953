/* A child inherits the descriptors of completion channels. What it does with them, and how long it
 * has them, is nothing to the parent, whose events go on. */
#include <sys/wait.h>
#include <unistd.h>
#include "events.h"

#define TIMES 50

static struct ends ends;

/* The events of both ends, with the server's channel polled first. */
static void events_come(void)
{
	struct ibv_cq *sends = ends.client->qp->send_cq, *receives = ends.server->qp->recv_cq;
	CHECK(!ibv_req_notify_cq(sends, 0) && !ibv_req_notify_cq(receives, 0));
	send_once(&ends, ends.client, ends.server);
	CHECK(is_readable(receives->channel, -1));
	take(receives->channel, receives);
	CHECK(is_readable(sends->channel, -1));
	take(sends->channel, sends);
}

/* The parent's objects are none in the child, which learns so at once. */
static void of_child(int go_on)
{
	struct ibv_comp_channel *channel = ends.server->qp->recv_cq->channel;
	struct ibv_cq *told;
	void *context;
	char byte;
	CHECK(ibv_get_cq_event(channel, &told, &context) == -1);
	CHECK(ibv_destroy_comp_channel(channel) != 0);
	CHECK(!close(channel->fd));
	CHECK(!close(ends.client->qp->send_cq->channel->fd));
	/* It lives until the parent says that its events still came. */
	CHECK(read(go_on, &byte, 1) == 1);
	_Exit(0);
}

static void parent_goes_on(void)
{
	int go_on[2], status;
	pid_t child;
	CHECK(!pipe(go_on));
	CHECK(!ibv_req_notify_cq(ends.server->qp->recv_cq, 0));
	child = fork();
	CHECK(child >= 0);
	if (!child)
		of_child(go_on[0]);
	events_come();
	CHECK(write(go_on[1], "", 1) == 1);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	events_come();
	CHECK(!close(go_on[0]) && !close(go_on[1]));
}

int main(void)
{
	connect_ends(&ends);
	for (int i = 0; i < TIMES; i++)
		parent_goes_on();
	/* Behind descriptors that do not block is the card's socket too, for an event loop. */
	CHECK(!fcntl(ends.server->qp->recv_cq->channel->fd, F_SETFL, O_NONBLOCK));
	CHECK(!fcntl(ends.client->qp->send_cq->channel->fd, F_SETFL, O_NONBLOCK));
	for (int i = 0; i < TIMES; i++)
		parent_goes_on();
	return 0;
}
