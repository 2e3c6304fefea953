/* Threads are cancelled while they wait in a call: they end there, and what they have waited for goes
 * on to work. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>
#include <rdma/rsocket.h>
#include "connected.h"

/* After v64, so the header may lack them. */
int repoll_create(int flags);
int repoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int repoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);

/* Whether it waits by then does not matter. */
static void is_cancelled(void *(*work)(void *), void *arg)
{
	pthread_t thread;
	void *result;
	CHECK(!pthread_create(&thread, NULL, work, arg));
	usleep(20000);
	CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED);
}

static void *gets_event(void *channel)
{
	struct rdma_cm_event *event;
	rdma_get_cm_event(channel, &event);
	return NULL;
}

static void *gets_request(void *listener)
{
	struct rdma_cm_id *id;
	rdma_get_request(listener, &id);
	return NULL;
}

static void *gets_completion(void *channel)
{
	struct ibv_cq *cq;
	void *context;
	ibv_get_cq_event(channel, &cq, &context);
	return NULL;
}

static void *gets_async_event(void *context)
{
	struct ibv_async_event event;
	ibv_get_async_event(context, &event);
	return NULL;
}

static void connections(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct ibv_comp_channel *completions;
	struct rdma_cm_id *listener, *id;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	is_cancelled(gets_event, channel);
	CHECK(!rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *) &address) && !rdma_listen(listener, 1));
	is_cancelled(gets_request, listener);
	address.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *) &address, 2000));
	await(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	completions = ibv_create_comp_channel(id->verbs);
	CHECK(completions);
	is_cancelled(gets_completion, completions);
	is_cancelled(gets_async_event, id->verbs);
	CHECK(!ibv_destroy_comp_channel(completions));
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
}

static void *accepts(void *fd)
{
	raccept(*(int *) fd, NULL, NULL);
	return NULL;
}

static void *receives(void *fd)
{
	char byte;
	rrecv(*(int *) fd, &byte, 1, 0);
	return NULL;
}

static void *sends(void *fd)
{
	rsend(*(int *) fd, "x", 1, 0);
	return NULL;
}

static void *polls(void *fd)
{
	struct pollfd entry = { .fd = *(int *) fd, .events = POLLIN };
	rpoll(&entry, 1, -1);
	return NULL;
}

static void *selects(void *fd)
{
	fd_set set;
	FD_ZERO(&set);
	FD_SET(*(int *) fd, &set);
	rselect(*(int *) fd + 1, &set, NULL, NULL, NULL);
	return NULL;
}

static void *waits_for_events(void *epfd)
{
	struct epoll_event event;
	repoll_wait(*(int *) epfd, &event, 1, -1);
	return NULL;
}

static void *connects(void *arg)
{
	void **fd_and_address = arg;
	CHECK(!rconnect(*(int *) fd_and_address[0], fd_and_address[1], sizeof(struct sockaddr_in)));
	return NULL;
}

static void sockets(void)
{
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), client = rsocket(AF_INET, SOCK_STREAM, 0);
	int datagrams = rsocket(AF_INET, SOCK_DGRAM, 0), epfd = repoll_create(0), server;
	struct epoll_event in = { .events = EPOLLIN };
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t len = sizeof(address);
	void *fd_and_address[] = { &client, &address };
	pthread_t thread;
	ssize_t sent, total = 0;
	char bytes[4096] = { 0 };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(listener >= 0 && client >= 0 && datagrams >= 0 && epfd >= 0);
	CHECK(!rbind(listener, (struct sockaddr *) &address, len) && !rlisten(listener, 1));
	CHECK(!rgetsockname(listener, (struct sockaddr *) &address, &len));
	is_cancelled(accepts, &listener);
	CHECK(!pthread_create(&thread, NULL, connects, fd_and_address));
	server = raccept(listener, NULL, NULL);
	CHECK(server >= 0 && !pthread_join(thread, NULL));
	CHECK(!repoll_ctl(epfd, EPOLL_CTL_ADD, server, &in));
	is_cancelled(receives, &server);
	is_cancelled(receives, &datagrams);
	is_cancelled(polls, &server);
	is_cancelled(selects, &server);
	is_cancelled(waits_for_events, &epfd);
	while ((sent = rsend(client, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
		total += sent;
	/* What is on its way leaves no room when it has arrived either. */
	do {
		struct pollfd entry = { .fd = client, .events = POLLOUT };
		usleep(1000);
		CHECK(rpoll(&entry, 1, 0) >= 0);
		while ((sent = rsend(client, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
			total += sent;
	} while (total < 131072);
	is_cancelled(sends, &client);
	while (total > 0) {
		ssize_t got = rrecv(server, bytes, sizeof(bytes), 0);
		CHECK(got > 0);
		total -= got;
	}
	CHECK(!rclose(client) && !rclose(server) && !rclose(listener) && !rclose(datagrams));
	CHECK(!rclose(epfd));
}

int main(void)
{
	connections();
	sockets();
	return 0;
}
