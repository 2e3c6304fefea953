/* Two queue pairs of this process that are connected by rdma_cm, and memory for them. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define CHECK(what) do { if (!(what)) { \
	printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); _Exit(1); } } while (0)

struct ends {
	struct rdma_cm_id *server, *client;
	struct ibv_mr *region;
	char bytes[4096];
};

static struct rdma_cm_id *await(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == type);
	id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

/* A queue pair with two completion queues, which report to one channel. */
static void give_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_comp_channel *channel = ibv_create_comp_channel(id->verbs);
	CHECK(channel);
	init.send_cq = ibv_create_cq(id->verbs, 64, NULL, channel, 0);
	init.recv_cq = ibv_create_cq(id->verbs, 64, NULL, channel, 0);
	CHECK(init.send_cq && init.recv_cq);
	init.cap.max_send_wr = init.cap.max_recv_wr = 64;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	CHECK(!rdma_create_qp(id, NULL, &init));
}

static inline void connect_ends(struct ends *ends)
{
	struct rdma_event_channel *ours = rdma_create_event_channel();
	struct rdma_event_channel *theirs = rdma_create_event_channel();
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1,
					 .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *listener;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(ours && theirs);
	CHECK(!rdma_create_id(theirs, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *) &address) && !rdma_listen(listener, 1));
	address.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_create_id(ours, &ends->client, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(ends->client, NULL, (struct sockaddr *) &address, 2000));
	await(ours, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(ends->client, 2000));
	await(ours, RDMA_CM_EVENT_ROUTE_RESOLVED);
	give_queue_pair(ends->client);
	CHECK(!rdma_connect(ends->client, &param));
	ends->server = await(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
	give_queue_pair(ends->server);
	CHECK(!rdma_accept(ends->server, &param));
	await(ours, RDMA_CM_EVENT_ESTABLISHED);
	await(theirs, RDMA_CM_EVENT_ESTABLISHED);
	ends->region = ibv_reg_mr(ends->client->pd, ends->bytes, sizeof(ends->bytes),
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(ends->region);
}

/* Writes to the other end, and polls until that is done. */
static inline void write_once(struct ends *ends)
{
	struct ibv_sge sge = { (uintptr_t) ends->bytes, 64, ends->region->lkey };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
					.send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc;
	int found;
	wr.wr.rdma.remote_addr = (uintptr_t) ends->bytes + 2048;
	wr.wr.rdma.rkey = ends->region->rkey;
	CHECK(!ibv_post_send(ends->client->qp, &wr, &bad));
	do {
		found = ibv_poll_cq(ends->client->qp->send_cq, 1, &wc);
	} while (!found);
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
}
