/* Sets up many connections at once, by rdma_cm, between two processes with a card each.
 *
 *   storm CONNECTIONS
 *
 * Prints the seconds from the first address to resolve until all connections are established, at
 * both ends. Fails as soon as one of them does.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* How long the resolution of an address or route may take: as long as the whole. */
#define RESOLVE_MS 30000

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "storm:%d: %s: %s\n", __LINE__, #what, strerror(errno));               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct ibv_pd *pd;
static struct ibv_cq *cq;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void make_queue_pair(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr attr = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    if (!pd) {
        CHECK((pd = ibv_alloc_pd(id->verbs)));
        CHECK((cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0)));
    }
    attr.send_cq = attr.recv_cq = cq;
    CHECK(rdma_create_qp(id, pd, &attr) == 0);
}

static void act(struct rdma_cm_event *event)
{
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    switch (event->event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        CHECK(rdma_resolve_route(event->id, RESOLVE_MS) == 0);
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        make_queue_pair(event->id);
        CHECK(rdma_connect(event->id, &param) == 0);
        break;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        make_queue_pair(event->id);
        CHECK(rdma_accept(event->id, &param) == 0);
        break;
    case RDMA_CM_EVENT_ESTABLISHED:
        break;
    default:
        fprintf(stderr, "storm: %s (%d)\n", rdma_event_str(event->event), event->status);
        exit(1);
    }
}

/* Acts on events until so many connections are established. */
static void establish(struct rdma_event_channel *channel, int count)
{
    struct rdma_cm_event *event;
    while (count > 0) {
        CHECK(rdma_get_cm_event(channel, &event) == 0);
        act(event);
        count -= event->event == RDMA_CM_EVENT_ESTABLISHED;
        CHECK(rdma_ack_cm_event(event) == 0);
    }
}

/* The address of this process's card, and a port there. */
static struct sockaddr_in place(struct rdma_cm_id *listener)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = rdma_get_src_port(listener)};
    struct ibv_context **cards = rdma_get_devices(NULL);
    union ibv_gid gid;
    CHECK(cards && cards[0] && ibv_query_gid(cards[0], 1, 0, &gid) == 0);
    memcpy(&at.sin_addr, gid.raw + 12, 4);
    return at;
}

static void serve(int count, int tell)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener;
    CHECK(channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0);
    CHECK(rdma_listen(listener, count) == 0);
    at = place(listener);
    CHECK(write(tell, &at, sizeof at) == sizeof at);
    establish(channel, count);
    CHECK(write(tell, "", 1) == 1);
}

static void ask(int count, int hear)
{
    struct sockaddr_in at;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    char up;
    double begun;
    CHECK(channel && read(hear, &at, sizeof at) == sizeof at);
    begun = seconds();
    for (int i = 0; i < count; i++) {
        struct rdma_cm_id *id;
        CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
        CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, RESOLVE_MS) == 0);
    }
    establish(channel, count);
    CHECK(read(hear, &up, 1) == 1);
    printf("%.6f\n", seconds() - begun);
}

int main(int argc, char **argv)
{
    int to_client[2], until_end[2];
    char none;
    CHECK(argc == 2 && pipe(to_client) == 0 && pipe(until_end) == 0);
    pid_t server = fork();
    CHECK(server >= 0);
    if (server == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        close(to_client[0]);
        close(until_end[1]);
        serve(atoi(argv[1]), to_client[1]);
        /* The client has the end of its connections told by its own end only. */
        CHECK(read(until_end[0], &none, 1) == 0);
        _exit(0);
    }
    close(to_client[1]);
    close(until_end[0]);
    ask(atoi(argv[1]), to_client[0]);
    return 0;
}
