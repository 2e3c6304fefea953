/* The promises of rdma_cm's manual pages, in one process: a server and a client on one card. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define CHECK(what) do { if (!(what)) { \
	printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(1); } } while (0)
#define FAILS(what, error) do { errno = 0; CHECK((what) == -1); CHECK(errno == (error)); } while (0)

static struct rdma_event_channel *server_channel, *client_channel;

static struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != type) {
		printf("expected %s, got %s (status %d)\n", rdma_event_str(type),
		       rdma_event_str(event->event), event->status);
		exit(1);
	}
	return event;
}

static void passes(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	CHECK(!rdma_ack_cm_event(expect(channel, type)));
}

static struct sockaddr_in local(int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return addr;
}

static struct rdma_cm_id *resolved(int port, enum rdma_port_space ps)
{
	struct sockaddr_in to = local(port);
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(client_channel, &id, (void *) 7, ps));
	CHECK(id->context == (void *) 7 && id->channel == client_channel && id->ps == ps);
	CHECK(!id->verbs);
	FAILS(rdma_resolve_route(id, 100), EINVAL);
	FAILS(rdma_connect(id, NULL), EINVAL);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *) &to, 2000));
	passes(client_channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(id->verbs && id->port_num == 1 && id->pd);
	CHECK(ntohs(rdma_get_dst_port(id)) == port && rdma_get_src_port(id) != 0);
	FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *) &to, 2000), EINVAL);
	CHECK(!rdma_resolve_route(id, 2000));
	passes(client_channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(id->route.num_paths == 1 && id->route.path_rec->mtu == IBV_MTU_4096);
	return id;
}

static void refused(struct rdma_cm_id *listener, int port)
{
	struct rdma_conn_param param = { .private_data = "please", .private_data_len = 7 };
	struct rdma_cm_id *id = resolved(port, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	char large[57] = "";
	struct rdma_conn_param too_much = { .private_data = large, .private_data_len = 57 };
	FAILS(rdma_connect(id, &too_much), EINVAL);
	CHECK(!rdma_connect(id, &param));
	event = expect(server_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listener && event->id != listener);
	CHECK(event->param.conn.private_data_len == 56);
	CHECK(!strcmp(event->param.conn.private_data, "please"));
	CHECK(!rdma_reject(event->id, "no", 3));
	CHECK(!rdma_destroy_id(event->id));
	CHECK(!rdma_ack_cm_event(event));
	event = expect(client_channel, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 && event->param.conn.private_data_len == 148);
	CHECK(!strcmp(event->param.conn.private_data, "no"));
	CHECK(!rdma_ack_cm_event(event));
	FAILS(rdma_ack_cm_event(event), EINVAL);
	CHECK(!rdma_destroy_id(id));
	FAILS(rdma_destroy_id(id), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
}

/* Ids without queue pairs: the program makes its own part of the connection. */
static void without_queue_pairs(int port)
{
	struct rdma_conn_param param = { .qp_num = 0x1234, .responder_resources = 3,
					 .initiator_depth = 2, .retry_count = 5 };
	struct rdma_cm_id *id = resolved(port, RDMA_PS_TCP), *child;
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int mask;
	CHECK(!rdma_connect(id, &param));
	event = expect(server_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	child = event->id;
	CHECK(event->param.conn.qp_num == 0x1234 && event->param.conn.retry_count == 5);
	CHECK(event->param.conn.responder_resources == 2 && event->param.conn.initiator_depth == 3);
	param.qp_num = 0x5678;
	/* As much as the client can take. */
	param.responder_resources = RDMA_MAX_RESP_RES;
	param.initiator_depth = RDMA_MAX_INIT_DEPTH;
	CHECK(!rdma_accept(child, &param));
	CHECK(!rdma_ack_cm_event(event));
	event = expect(client_channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->param.conn.responder_resources == 3 && event->param.conn.initiator_depth == 2);
	CHECK(event->param.conn.qp_num == 0x5678 && event->param.conn.private_data_len == 196);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_init_qp_attr(id, &attr, &mask));
	CHECK(attr.dest_qp_num == 0x5678 && (mask & IBV_QP_DEST_QPN) && (mask & IBV_QP_AV));
	attr.qp_state = IBV_QPS_INIT;
	CHECK(!rdma_init_qp_attr(id, &attr, &mask));
	/* The last is IBV_ACCESS_FLUSH_GLOBAL, which older headers lack. */
	CHECK(attr.qp_access_flags == (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				       IBV_ACCESS_REMOTE_ATOMIC | 1 << 8));
	CHECK(!rdma_establish(id));
	passes(server_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_disconnect(child));
	passes(client_channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(id));
	passes(server_channel, RDMA_CM_EVENT_DISCONNECTED);
	passes(client_channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	passes(server_channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	CHECK(!rdma_destroy_id(child) && !rdma_destroy_id(id));
}

static void getaddrinfo_and_endpoints(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *res;
	struct rdma_cm_id *id;
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7777", &hints, &res));
	CHECK(res->ai_src_len == sizeof(struct sockaddr_in) && !res->ai_dst_len);
	CHECK(res->ai_qp_type == IBV_QPT_RC && res->ai_family == AF_INET);
	rdma_freeaddrinfo(res);
	hints.ai_flags = RAI_NUMERICHOST;
	CHECK(rdma_getaddrinfo("localhost", "7777", &hints, &res) == EAI_NONAME);
	CHECK(rdma_getaddrinfo(NULL, NULL, NULL, &res) != 0);
	hints.ai_flags = 0;
	hints.ai_port_space = RDMA_PS_UDP;
	CHECK(!rdma_getaddrinfo("::1", "7777", &hints, &res));
	CHECK(res->ai_qp_type == IBV_QPT_UD && res->ai_dst_len == sizeof(struct sockaddr_in6));
	rdma_freeaddrinfo(res);
	hints.ai_port_space = RDMA_PS_TCP;
	CHECK(!rdma_getaddrinfo("127.0.0.1", "1", &hints, &res));
	CHECK(!rdma_create_ep(&id, res, NULL, NULL));
	/* A synchronous id: the call returns the peer's answer. */
	FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 8);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(res);
}

static void options(void)
{
	struct rdma_cm_id *one, *two;
	struct sockaddr_in addr = local(0);
	uint8_t tos = 8, timeout = 40;
	int on = 1;
	CHECK(!rdma_create_id(server_channel, &one, NULL, RDMA_PS_TCP));
	CHECK(!rdma_create_id(server_channel, &two, NULL, RDMA_PS_TCP));
	CHECK(!rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
	FAILS(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof(on)), EINVAL);
	FAILS(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), EINVAL);
	FAILS(rdma_set_option(one, 5, 0, &on, sizeof(on)), ENOSYS);
	CHECK(!rdma_bind_addr(one, (struct sockaddr *) &addr));
	CHECK(rdma_get_src_port(one) != 0 && one->verbs);
	addr.sin_port = rdma_get_src_port(one);
	FAILS(rdma_bind_addr(two, (struct sockaddr *) &addr), EADDRINUSE);
	CHECK(!rdma_destroy_id(one));
	CHECK(!rdma_set_option(two, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)));
	CHECK(!rdma_bind_addr(two, (struct sockaddr *) &addr));
	FAILS(rdma_bind_addr(two, (struct sockaddr *) &addr), EINVAL);
	CHECK(!rdma_listen(two, 1));
	FAILS(rdma_listen(two, 1), EINVAL);
	CHECK(!rdma_destroy_id(two));
	CHECK(!rdma_create_id(server_channel, &one, NULL, RDMA_PS_TCP));
	addr.sin_addr.s_addr = htonl(0xC0000201);
	FAILS(rdma_bind_addr(one, (struct sockaddr *) &addr), ENODEV);
	CHECK(!rdma_destroy_id(one));
	FAILS(rdma_create_id(server_channel, &one, NULL, 77), EINVAL);
}

static struct rdma_cm_id *bound(int family, int port, int error)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr *addr = family == AF_INET ? (struct sockaddr *) &v4 : (struct sockaddr *) &v6;
	struct rdma_cm_id *id;
	int on = 1;
	CHECK(!rdma_create_id(server_channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)));
	if (!error) {
		CHECK(!rdma_bind_addr(id, addr));
		return id;
	}
	FAILS(rdma_bind_addr(id, addr), error);
	CHECK(!rdma_destroy_id(id));
	return NULL;
}

/* Which listener gets the request of a client that asks for an address. */
static struct rdma_cm_id *asked(const char *address, int port)
{
	struct addrinfo *to, hints = { .ai_flags = AI_NUMERICHOST };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *listener;
	char service[8];
	snprintf(service, sizeof(service), "%d", port);
	CHECK(!getaddrinfo(address, service, &hints, &to));
	CHECK(!rdma_create_id(client_channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, to->ai_addr, 2000));
	freeaddrinfo(to);
	passes(client_channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	passes(client_channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_connect(id, NULL));
	event = expect(server_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	listener = event->listen_id;
	CHECK(!rdma_reject(event->id, NULL, 0));
	CHECK(!rdma_destroy_id(event->id));
	CHECK(!rdma_ack_cm_event(event));
	passes(client_channel, RDMA_CM_EVENT_REJECTED);
	CHECK(!rdma_destroy_id(id));
	return listener;
}

/* One port serves both families by two ids; a second id for all addresses of one finds none left. */
static void both_families(void)
{
	struct rdma_cm_id *four = bound(AF_INET, 0, 0), *six;
	int port = ntohs(rdma_get_src_port(four));
	CHECK(!rdma_listen(four, 1));
	bound(AF_INET, port, EADDRNOTAVAIL);
	six = bound(AF_INET6, port, 0);
	CHECK(!rdma_listen(six, 1));
	bound(AF_INET6, port, EADDRNOTAVAIL);
	CHECK(asked("127.0.0.1", port) == four);
	CHECK(asked("::1", port) == six);
	CHECK(!rdma_destroy_id(four));
	CHECK(asked("::1", port) == six);
	CHECK(!rdma_destroy_id(six));
}

int main(void)
{
	struct timespec before, after;
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;
	struct sockaddr_in addr = local(0);
	struct ibv_context **devices;
	struct pollfd fd;
	int count, port;

	CHECK((devices = rdma_get_devices(&count)) && count == 1 && devices[0] && !devices[1]);
	rdma_free_devices(devices);
	CHECK((server_channel = rdma_create_event_channel()));
	CHECK((client_channel = rdma_create_event_channel()));
	fcntl(server_channel->fd, F_SETFL, fcntl(server_channel->fd, F_GETFL) | O_NONBLOCK);
	FAILS(rdma_get_cm_event(server_channel, &event), EAGAIN);
	fcntl(server_channel->fd, F_SETFL, fcntl(server_channel->fd, F_GETFL) & ~O_NONBLOCK);

	CHECK(!rdma_create_id(server_channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *) &addr));
	CHECK(!rdma_listen(listener, 0));
	port = ntohs(rdma_get_src_port(listener));
	fd = (struct pollfd) { .fd = server_channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 0) == 0);

	refused(listener, port);
	without_queue_pairs(port);
	getaddrinfo_and_endpoints();
	options();
	both_families();

	FAILS(rdma_get_cm_event((void *) &fd, &event), EINVAL);
	FAILS(rdma_destroy_id((void *) &fd), EINVAL);
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED"));
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(server_channel);
	rdma_destroy_event_channel(client_channel);
	/* A call on a destroyed channel fails late, so that the process can end meanwhile. */
	clock_gettime(CLOCK_MONOTONIC, &before);
	FAILS(rdma_get_cm_event(server_channel, &event), EINVAL);
	clock_gettime(CLOCK_MONOTONIC, &after);
	CHECK((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 100);
	printf("all promises hold\n");
	return 0;
}
