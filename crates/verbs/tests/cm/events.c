/* The promises of rdma_cm's manual pages on events, channels and private data, in one process. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

#define CHECK(what) do { if (!(what)) { \
	printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(1); } } while (0)
#define FAILS(what, error) do { errno = 0; CHECK((what) == -1); CHECK(errno == (error)); } while (0)

static struct rdma_event_channel *ours, *other, *servers;
static struct rdma_cm_id *listener;
static int port;

static struct rdma_cm_event *expect(struct rdma_event_channel *channel,
				    enum rdma_cm_event_type type)
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

static struct rdma_cm_id *passes(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = expect(channel, type);
	struct rdma_cm_id *id = event->id;
	CHECK(event->status == 0);
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

static int readable(struct rdma_event_channel *channel)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	return poll(&fd, 1, 0);
}

static struct sockaddr *local(int to)
{
	static struct sockaddr_in addr = { .sin_family = AF_INET };
	addr.sin_port = htons(to);
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return (struct sockaddr *) &addr;
}

static struct rdma_cm_id *resolved(int to)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(ours, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, local(to), 2000));
	CHECK(passes(ours, RDMA_CM_EVENT_ADDR_RESOLVED) == id);
	CHECK(!rdma_resolve_route(id, 2000));
	CHECK(passes(ours, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
	return id;
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = {
		.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK(!rdma_create_qp(id, NULL, &init));
}

static enum ibv_qp_state state_of(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

/* A connection with queue pairs at both ends. */
static void connected(struct rdma_cm_id **client, struct rdma_cm_id **server)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	*client = resolved(port);
	make_qp(*client);
	CHECK(!rdma_connect(*client, &param));
	*server = passes(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	make_qp(*server);
	CHECK(!rdma_accept(*server, &param));
	passes(ours, RDMA_CM_EVENT_ESTABLISHED);
	passes(servers, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(state_of(*client) == IBV_QPS_RTS && state_of(*server) == IBV_QPS_RTS);
}

static void end(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

/* rdma_disconnect puts the queue pair into the error state, however often it is called. */
static void disconnect_twice(void)
{
	struct rdma_cm_id *client, *server;
	connected(&client, &server);
	CHECK(!rdma_disconnect(client) && state_of(client) == IBV_QPS_ERR);
	CHECK(!rdma_disconnect(client));
	CHECK(passes(servers, RDMA_CM_EVENT_DISCONNECTED) == server);
	CHECK(!rdma_disconnect(server) && state_of(server) == IBV_QPS_ERR);
	CHECK(!rdma_disconnect(server));
	CHECK(passes(ours, RDMA_CM_EVENT_DISCONNECTED) == client);
	CHECK(passes(ours, RDMA_CM_EVENT_TIMEWAIT_EXIT) == client);
	CHECK(passes(servers, RDMA_CM_EVENT_TIMEWAIT_EXIT) == server);
	CHECK(!readable(ours) && !readable(servers));
	end(client);
	end(server);
}

/* Private data: as much as fits, and no more; the peer sees the whole field. */
static void private_data(void)
{
	char most[197];
	struct rdma_conn_param param = { .private_data = most, .private_data_len = 56 };
	struct rdma_cm_id *client = resolved(port), *server;
	struct rdma_cm_event *event;
	int n;
	for (n = 0; n < 197; n++)
		most[n] = n + 1;
	make_qp(client);
	CHECK(!rdma_connect(client, &param));
	event = expect(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listener && event->param.conn.private_data_len == 56);
	CHECK(!memcmp(event->param.conn.private_data, most, 56));
	server = event->id;
	CHECK(!rdma_ack_cm_event(event));
	make_qp(server);
	param.private_data_len = 197;
	FAILS(rdma_accept(server, &param), EINVAL);
	param.private_data_len = 196;
	CHECK(!rdma_accept(server, &param));
	event = expect(ours, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.conn.private_data_len == 196);
	CHECK(!memcmp(event->param.conn.private_data, most, 196));
	CHECK(!rdma_ack_cm_event(event));
	event = expect(servers, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->status == 0 && event->id == server && !event->listen_id);
	CHECK(!event->param.conn.private_data && !event->param.conn.private_data_len);
	CHECK(!rdma_ack_cm_event(event));
	/* Destroying an id ends its connection, and its peer gets an event. */
	end(client);
	passes(servers, RDMA_CM_EVENT_DISCONNECTED);
	end(server);
	/* A refusal has room for 148 bytes. */
	client = resolved(port);
	make_qp(client);
	CHECK(!rdma_connect(client, NULL));
	server = passes(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	FAILS(rdma_reject(server, most, 149), EINVAL);
	CHECK(!rdma_reject(server, most, 148));
	FAILS(rdma_reject(server, most, 148), EINVAL);
	CHECK(!rdma_destroy_id(server));
	event = expect(ours, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 && event->param.conn.private_data_len == 148);
	CHECK(!memcmp(event->param.conn.private_data, most, 148));
	CHECK(state_of(client) == IBV_QPS_ERR);
	CHECK(!rdma_ack_cm_event(event));
	end(client);
}

/* Datagram services have other limits, and their answer names the queue pair to send to. */
static void datagram_services(void)
{
	char most[181];
	struct rdma_conn_param param = { .private_data = most, .private_data_len = 181 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .cap = {
		.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct rdma_cm_id *service, *client, *server;
	struct rdma_cm_event *event;
	int refuse;
	memset(most, 7, sizeof(most));
	CHECK(!rdma_create_id(servers, &service, NULL, RDMA_PS_UDP));
	CHECK(!rdma_bind_addr(service, local(0)));
	CHECK(!rdma_listen(service, 1));
	for (refuse = 0; refuse < 2; refuse++) {
		CHECK(!rdma_create_id(ours, &client, NULL, RDMA_PS_UDP));
		CHECK(!rdma_resolve_addr(client, NULL, local(ntohs(rdma_get_src_port(service))), 2000));
		passes(ours, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(!rdma_resolve_route(client, 2000));
		passes(ours, RDMA_CM_EVENT_ROUTE_RESOLVED);
		CHECK(!rdma_create_qp(client, NULL, &init));
		param.private_data_len = 181;
		FAILS(rdma_connect(client, &param), EINVAL);
		param.private_data_len = 180;
		CHECK(!rdma_connect(client, &param));
		event = expect(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
		server = event->id;
		CHECK(event->listen_id == service && event->param.ud.private_data_len == 180);
		CHECK(!memcmp(event->param.ud.private_data, most, 180));
		CHECK(!rdma_ack_cm_event(event));
		CHECK(!rdma_create_qp(server, NULL, &init));
		if (refuse) {
			CHECK(!rdma_reject(server, "no", 3));
			event = expect(ours, RDMA_CM_EVENT_UNREACHABLE);
			CHECK(event->status == 2 && !strcmp(event->param.ud.private_data, "no"));
		} else {
			param.private_data_len = 137;
			FAILS(rdma_accept(server, &param), EINVAL);
			param.private_data_len = 136;
			CHECK(!rdma_accept(server, &param));
			event = expect(ours, RDMA_CM_EVENT_ESTABLISHED);
			CHECK(event->status == 0 && event->param.ud.private_data_len == 136);
			CHECK(event->param.ud.qp_num == server->qp->qp_num);
			CHECK(event->param.ud.qkey == RDMA_UDP_QKEY && event->param.ud.ah_attr.is_global);
		}
		CHECK(!rdma_ack_cm_event(event));
		FAILS(rdma_disconnect(client), EINVAL);
		end(client);
		end(server);
	}
	CHECK(!rdma_destroy_id(service));
}

/* The statuses of failures: a reason of the CM, or a negative errno. */
static void statuses(void)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id = resolved(1);
	CHECK(!rdma_connect(id, NULL));
	event = expect(ours, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 8 && event->id == id && !event->listen_id);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(id));
}

/* A descriptor that does not block. */
static void nonblocking(void)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int flags = fcntl(ours->fd, F_GETFL);
	CHECK(!fcntl(ours->fd, F_SETFL, flags | O_NONBLOCK));
	FAILS(rdma_get_cm_event(ours, &event), EAGAIN);
	CHECK(!rdma_create_id(ours, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, local(port), 2000));
	while (readable(ours) == 0)
		;
	passes(ours, RDMA_CM_EVENT_ADDR_RESOLVED);
	FAILS(rdma_get_cm_event(ours, &event), EAGAIN);
	CHECK(!fcntl(ours->fd, F_SETFL, flags));
	CHECK(!rdma_destroy_id(id));
	FAILS(rdma_get_cm_event(NULL, &event), EINVAL);
}

/* Waiting events move with their id, and later ones go to its new channel. */
static void migrate(void)
{
	struct rdma_cm_id *id, *left;
	CHECK(!rdma_create_id(ours, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_create_id(ours, &left, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, local(port), 2000));
	CHECK(!rdma_resolve_addr(left, NULL, local(port), 2000));
	CHECK(!rdma_migrate_id(id, other));
	CHECK(id->channel == other && left->channel == ours);
	CHECK(passes(other, RDMA_CM_EVENT_ADDR_RESOLVED) == id && !readable(other));
	CHECK(passes(ours, RDMA_CM_EVENT_ADDR_RESOLVED) == left && !readable(ours));
	CHECK(!rdma_resolve_route(id, 2000));
	CHECK(!readable(ours));
	CHECK(passes(other, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
	/* Without a channel the id becomes synchronous. */
	CHECK(!rdma_migrate_id(id, NULL));
	CHECK(id->channel && id->channel != other);
	FAILS(rdma_migrate_id(id, NULL), EINVAL);
	CHECK(!rdma_migrate_id(id, ours) && id->channel == ours);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(left));
}

static void await_readable(struct rdma_event_channel *channel)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, -1) == 1);
}

/* Requests that wait move with their listener, each with its id, and so do later ones. */
static void migrate_listener(void)
{
	struct rdma_conn_param param = { .qp_num = 0x1234 };
	struct rdma_cm_id *clients[2] = { resolved(port), resolved(port) }, *requests[2];
	CHECK(!rdma_connect(clients[0], &param));
	await_readable(servers);
	CHECK(!rdma_migrate_id(listener, other) && listener->channel == other);
	CHECK(!readable(servers) && readable(other));
	param.qp_num++;
	CHECK(!rdma_connect(clients[1], &param));
	for (int i = 0; i < 2; i++) {
		requests[i] = passes(other, RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(requests[i]->channel == other);
	}
	/* What happens to them comes there, too. */
	for (int i = 0; i < 2; i++) {
		param.qp_num++;
		CHECK(!rdma_accept(requests[i], &param));
		CHECK(passes(ours, RDMA_CM_EVENT_CONNECT_RESPONSE) == clients[i]);
		CHECK(!rdma_establish(clients[i]));
		CHECK(passes(other, RDMA_CM_EVENT_ESTABLISHED) == requests[i]);
	}
	CHECK(!rdma_migrate_id(listener, servers) && listener->channel == servers);
	for (int i = 0; i < 2; i++)
		CHECK(!rdma_destroy_id(requests[i]) && !rdma_destroy_id(clients[i]));
	CHECK(!readable(servers) && !readable(other));
}

/* A request that was not fetched goes with its listener, and so does what has come of it since: its
   client has left. */
static void destroy_listener_of_one_that_left(void)
{
	struct rdma_conn_param param = { .qp_num = 0x2345 };
	struct rdma_cm_id *left, *id, *server;
	CHECK(!rdma_create_id(other, &left, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(left, local(0)));
	CHECK(!rdma_listen(left, 1));
	id = resolved(ntohs(rdma_get_src_port(left)));
	CHECK(!rdma_connect(id, &param));
	await_readable(other);
	CHECK(!rdma_destroy_id(id));
	/* Another request comes behind the message by which the client has left. */
	param.qp_num++;
	id = resolved(port);
	CHECK(!rdma_connect(id, &param));
	server = passes(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(!rdma_destroy_id(left));
	CHECK(!readable(other));
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(server));
	CHECK(!readable(ours) && !readable(servers));
}

/* A reply that the program fetches when the peer has gone back on it is one failure, and not two. */
static void reply_and_refuse(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *client = resolved(port), *next = resolved(port), *server;
	struct rdma_cm_event *event;
	make_qp(client);
	CHECK(!rdma_connect(client, &param));
	server = passes(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	make_qp(server);
	CHECK(!rdma_accept(server, &param));
	end(server);
	/* Another request comes behind the message by which the server has left. */
	param.qp_num = 0x3456;
	CHECK(!rdma_connect(next, &param));
	server = passes(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	event = expect(ours, RDMA_CM_EVENT_CONNECT_ERROR);
	CHECK(event->id == client && event->status == -EINVAL);
	CHECK(state_of(client) == IBV_QPS_ERR);
	CHECK(!rdma_ack_cm_event(event));
	while (readable(ours))
		CHECK(passes(ours, RDMA_CM_EVENT_TIMEWAIT_EXIT) == client);
	end(client);
	CHECK(!rdma_destroy_id(next) && !rdma_destroy_id(server));
	CHECK(!readable(ours) && !readable(servers));
}

static int acknowledged;

static void *acknowledge(void *event)
{
	usleep(100000);
	__atomic_store_n(&acknowledged, 1, __ATOMIC_SEQ_CST);
	rdma_ack_cm_event(event);
	return NULL;
}

/* Destroying an id waits until its events are acknowledged, and withdraws those that wait. */
static void destroy(void)
{
	struct rdma_cm_id *id = resolved(port), *child;
	struct rdma_cm_event *event;
	pthread_t thread;
	CHECK(!rdma_create_id(ours, &child, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(child, NULL, local(port), 2000));
	event = expect(ours, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!pthread_create(&thread, NULL, acknowledge, event));
	CHECK(!rdma_destroy_id(child));
	CHECK(__atomic_load_n(&acknowledged, __ATOMIC_SEQ_CST));
	CHECK(!pthread_join(thread, NULL));
	/* A request that was not fetched is refused when its listener is destroyed. */
	CHECK(!rdma_connect(id, NULL));
	while (readable(servers) == 0)
		;
	CHECK(!rdma_destroy_id(listener));
	CHECK(!readable(servers));
	event = expect(ours, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 || event->status == 4);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(id));
}

int main(void)
{
	CHECK((ours = rdma_create_event_channel()));
	CHECK((other = rdma_create_event_channel()));
	CHECK((servers = rdma_create_event_channel()));
	CHECK(!rdma_create_id(servers, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, local(0)));
	CHECK(!rdma_listen(listener, 10));
	port = ntohs(rdma_get_src_port(listener));
	disconnect_twice();
	private_data();
	datagram_services();
	statuses();
	nonblocking();
	migrate();
	migrate_listener();
	destroy_listener_of_one_that_left();
	reply_and_refuse();
	destroy();
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(other);
	rdma_destroy_event_channel(servers);
	return 0;
}
