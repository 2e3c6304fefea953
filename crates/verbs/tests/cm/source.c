/* Which address a server sees as its client's: `source server PORT`, `source client ADDRESS PORT`. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

#define CHECK(what) do { if (!(what)) { \
	printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(1); } } while (0)

static struct rdma_event_channel *channel;

static struct rdma_cm_event *expect(enum rdma_cm_event_type type)
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

static void show(const char *what, struct sockaddr *addr)
{
	struct sockaddr_in *in = (struct sockaddr_in *) addr;
	printf("%s %s\n", what, inet_ntoa(in->sin_addr));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = { .sin_family = AF_INET };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	CHECK(argc >= 3);
	addr.sin_port = htons(atoi(argv[argc - 1]));
	CHECK((channel = rdma_create_event_channel()));
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	if (!strcmp(argv[1], "server")) {
		CHECK(!rdma_bind_addr(id, (struct sockaddr *) &addr));
		CHECK(!rdma_listen(id, 1));
		event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		show("client", rdma_get_peer_addr(event->id));
		show("server", rdma_get_local_addr(event->id));
		CHECK(!rdma_reject(event->id, NULL, 0));
		CHECK(!rdma_destroy_id(event->id));
		CHECK(!rdma_ack_cm_event(event));
	} else {
		CHECK(inet_aton(argv[2], &addr.sin_addr));
		CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *) &addr, 2000));
		CHECK(!rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED)));
		show("client", rdma_get_local_addr(id));
		CHECK(!rdma_resolve_route(id, 2000));
		CHECK(!rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED)));
		CHECK(!rdma_connect(id, NULL));
		CHECK(!rdma_ack_cm_event(expect(RDMA_CM_EVENT_REJECTED)));
	}
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	return 0;
}
