/* A server and its clients, each one thread that sleeps in epoll_wait: over TCP sockets, or over
 * queue pairs with completion channels.
 *
 *   event_server WAY server PORT CONNECTIONS DEPTH
 *   event_server WAY client PORT CONNECTIONS DEPTH SECONDS
 *
 * The ways are `tcp`; `one`: all queue pairs of a process share a completion queue; `each`: each
 * queue pair has a completion queue and a channel of its own, as key-value stores have it. The
 * client is one process with all connections, and keeps DEPTH requests in flight on each. It prints
 * the replies that it got a second. Requests and replies have 64 bytes, of which the first 8 are
 * the request's number on its connection. What has arrived together is answered together, by one
 * write or one SEND; behind `-apart`, each request and each reply has its own.
 *
 * Queue pairs tell each other their numbers over TCP connections, whose end is the end of the run.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define BYTES 64
#define EVENTS 64
#define COMPLETIONS 32
/* Every so many sends of a connection one reports its completion, which frees those before it. */
#define SIGNAL_EVERY 16

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "event_server:%d: %s: %s\n", __LINE__, #what, strerror(errno));        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct connection {
    int tcp;
    uint64_t requests, replies;
    /* Over TCP: bytes of a message whose rest has not arrived. */
    size_t partial;
    char *bytes;
    /* Over queue pairs. */
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint64_t sends;
};

/* What two queue pairs tell each other. */
struct end {
    uint32_t qpn;
    union ibv_gid gid;
};

static int is_client, over_tcp, one_channel, apart;
static int connections_max, depth, poller, open_connections, ending;
static struct connection *connections;
static struct ibv_context *context;
static struct ibv_pd *pd;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void set_nonblocking(int fd)
{
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

/* What the loop is told of a connection: its place, twice, and whether its channel is meant. */
static void watch(int fd, int place, int channel)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 2 * place + channel};
    CHECK(epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* Turns requests into their replies, or replies into the next requests; returns how many bytes are
 * to be sent. */
static size_t answer(struct connection *c, char *bytes, size_t len)
{
    size_t answers = 0;
    for (size_t at = 0; at < len; at += BYTES) {
        uint64_t number;
        memcpy(&number, bytes + at, sizeof number);
        if (is_client) {
            CHECK(number == c->replies);
            c->replies++;
            if (ending)
                continue;
            memcpy(bytes + at, &c->requests, sizeof c->requests);
        } else {
            CHECK(number == c->requests);
        }
        c->requests++;
        answers += BYTES;
    }
    return answers;
}

static void close_connection(struct connection *c)
{
    close(c->tcp);
    open_connections--;
}

/* The place of a message that arrives; behind these places are those of messages to be sent. */
static char *place_of(struct connection *c, uint64_t slot)
{
    return c->bytes + slot * depth * BYTES;
}

static int sends_max(void)
{
    return depth + 2 * SIGNAL_EVERY;
}

static size_t buffer_bytes(void)
{
    return (size_t)(depth + sends_max()) * depth * BYTES;
}

static void post_receive(struct connection *c, uint64_t id)
{
    struct ibv_sge sge = {.length = depth * BYTES, .lkey = c->mr->lkey};
    sge.addr = (uintptr_t)place_of(c, id % depth);
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(c->qp, &wr, &bad) == 0);
}

static void post_send(struct connection *c, const char *bytes, size_t len)
{
    char *place = place_of(c, depth + c->sends % sends_max());
    memcpy(place, bytes, len);
    struct ibv_sge sge = {.addr = (uintptr_t)place, .length = len, .lkey = c->mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1}, *bad;
    wr.send_flags = ++c->sends % SIGNAL_EVERY ? 0 : IBV_SEND_SIGNALED;
    CHECK(ibv_post_send(c->qp, &wr, &bad) == 0);
}

/* Sends messages by as few writes or SENDs as possible, or each by its own. */
static void send_messages(struct connection *c, const char *bytes, size_t len)
{
    size_t each = apart ? BYTES : len;
    for (size_t at = 0; at < len; at += each)
        if (!over_tcp)
            post_send(c, bytes + at, each);
        else /* No more is under way than the socket's buffer holds. */
            CHECK(write(c->tcp, bytes + at, each) == (ssize_t)each);
}

static void read_tcp(struct connection *c)
{
    ssize_t got = read(c->tcp, c->bytes + c->partial, depth * BYTES - c->partial);
    if (got == 0 || (got < 0 && errno == ECONNRESET))
        return close_connection(c);
    CHECK(got > 0 && over_tcp);
    size_t len = c->partial + got;
    c->partial = len % BYTES;
    size_t answers = answer(c, c->bytes, len - c->partial);
    send_messages(c, c->bytes, answers);
    memmove(c->bytes, c->bytes + len - c->partial, c->partial);
}

static void handle_completion(const struct ibv_wc *wc)
{
    CHECK(wc->status == IBV_WC_SUCCESS);
    if (!(wc->opcode & IBV_WC_RECV))
        return;
    /* A receive is named by its connection and its place. */
    struct connection *c = &connections[wc->wr_id / depth];
    char *bytes = place_of(c, wc->wr_id % depth);
    send_messages(c, bytes, answer(c, bytes, wc->byte_len));
    post_receive(c, wc->wr_id);
}

static void read_channel(struct ibv_comp_channel *channel)
{
    struct ibv_wc wc[COMPLETIONS];
    struct ibv_cq *cq;
    void *of_cq;
    int found;
    while (ibv_get_cq_event(channel, &cq, &of_cq) == 0) {
        ibv_ack_cq_events(cq, 1);
        CHECK(ibv_req_notify_cq(cq, 0) == 0);
        while ((found = ibv_poll_cq(cq, COMPLETIONS, wc)) > 0)
            for (int i = 0; i < found; i++)
                handle_completion(&wc[i]);
        CHECK(found == 0);
    }
    CHECK(errno == EAGAIN);
}

static void open_device(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices && devices[0]);
    context = ibv_open_device(devices[0]);
    CHECK(context);
    pd = ibv_alloc_pd(context);
    CHECK(pd);
}

static void make_channel(struct connection *c, int entries)
{
    c->channel = ibv_create_comp_channel(context);
    CHECK(c->channel);
    set_nonblocking(c->channel->fd);
    watch(c->channel->fd, c - connections, 1);
    c->cq = ibv_create_cq(context, entries, NULL, c->channel, 0);
    CHECK(c->cq && ibv_req_notify_cq(c->cq, 0) == 0);
}

static void make_queue_pair(struct connection *c)
{
    int place = c - connections;
    if (one_channel && place > 0)
        c->cq = connections[0].cq;
    else
        make_channel(c, (depth + sends_max()) * (one_channel ? connections_max : 1));
    c->mr = ibv_reg_mr(pd, c->bytes, buffer_bytes(), IBV_ACCESS_LOCAL_WRITE);
    CHECK(c->mr);
    struct ibv_qp_init_attr init = {.send_cq = c->cq, .recv_cq = c->cq, .qp_type = IBV_QPT_RC};
    init.cap.max_send_wr = sends_max();
    init.cap.max_recv_wr = depth;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    c->qp = ibv_create_qp(pd, &init);
    CHECK(c->qp);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(ibv_modify_qp(c->qp, &attr,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    for (int slot = 0; slot < depth; slot++)
        post_receive(c, (uint64_t)place * depth + slot);
}

static void connect_queue_pair(struct connection *c)
{
    struct end own = {.qpn = c->qp->qp_num}, peer;
    CHECK(ibv_query_gid(context, 1, 0, &own.gid) == 0);
    CHECK(write(c->tcp, &own, sizeof own) == sizeof own);
    CHECK(recv(c->tcp, &peer, sizeof peer, MSG_WAITALL) == sizeof peer);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024};
    attr.dest_qp_num = peer.qpn;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = peer.gid;
    attr.ah_attr.grh.hop_limit = 64;
    CHECK(ibv_modify_qp(c->qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    CHECK(ibv_modify_qp(c->qp, &attr,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                            IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
    /* Both ends are ready before either sends. */
    char ready = 1;
    CHECK(write(c->tcp, &ready, 1) == 1 && read(c->tcp, &ready, 1) == 1);
}

static void join(int place, int tcp)
{
    struct connection *c = &connections[place];
    c->tcp = tcp;
    /* The kernel copies to and from pages: what malloc gives begins 16 bytes into one. */
    void *bytes;
    CHECK((errno = posix_memalign(&bytes, 4096, buffer_bytes())) == 0);
    c->bytes = memset(bytes, 0, buffer_bytes());
    if (over_tcp) {
        int on = 1;
        CHECK(setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    } else {
        make_queue_pair(c);
        connect_queue_pair(c);
    }
    set_nonblocking(tcp);
    watch(tcp, place, 0);
    open_connections++;
}

static void connect_all(struct sockaddr_in *at)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    CHECK(listener >= 0);
    if (!is_client) {
        CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
        CHECK(bind(listener, (struct sockaddr *)at, sizeof *at) == 0);
        CHECK(listen(listener, connections_max) == 0);
    }
    for (int place = 0; place < connections_max; place++) {
        int tcp = is_client ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
        CHECK(tcp >= 0);
        if (is_client)
            CHECK(connect(tcp, (struct sockaddr *)at, sizeof *at) == 0);
        join(place, tcp);
    }
    close(listener);
}

/* Sleeps until something has arrived, and handles it. */
static void turn(void)
{
    struct epoll_event events[EVENTS];
    int ready = epoll_wait(poller, events, EVENTS, -1);
    CHECK(ready >= 0 || errno == EINTR);
    for (int i = 0; i < ready; i++) {
        struct connection *c = &connections[events[i].data.u32 / 2];
        if (events[i].data.u32 % 2)
            read_channel(c->channel);
        else
            read_tcp(c);
    }
}

static uint64_t sum_of_replies(void)
{
    uint64_t sum = 0;
    for (int place = 0; place < connections_max; place++)
        sum += connections[place].replies;
    return sum;
}

/* Requests without end for a time, then until all replies are there; returns replies a second. */
static double load(double time)
{
    double start = seconds(), end;
    for (int place = 0; place < connections_max; place++) {
        struct connection *c = &connections[place];
        char messages[depth * BYTES];
        memset(messages, 0, sizeof messages);
        for (; c->requests < (uint64_t)depth; c->requests++)
            memcpy(messages + c->requests * BYTES, &c->requests, sizeof c->requests);
        send_messages(c, messages, sizeof messages);
    }
    while ((end = seconds()) < start + time)
        turn();
    double rate = sum_of_replies() / (end - start);
    ending = 1;
    for (int place = 0; place < connections_max; place++)
        while (connections[place].replies < connections[place].requests)
            turn();
    return rate;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 6);
    over_tcp = strncmp(argv[1], "tcp", 3) == 0;
    one_channel = strncmp(argv[1], "one", 3) == 0;
    apart = strstr(argv[1], "-apart") != NULL;
    is_client = strcmp(argv[2], "client") == 0;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connections_max = atoi(argv[4]);
    depth = atoi(argv[5]);
    CHECK(connections_max > 0 && depth > 0 && (!is_client || argc == 7));
    connections = calloc(connections_max, sizeof *connections);
    poller = epoll_create1(0);
    CHECK(connections && poller >= 0);
    if (!over_tcp)
        open_device();
    connect_all(&at);
    if (is_client)
        printf("%.0f\n", load(atof(argv[6])));
    else
        while (open_connections > 0)
            turn();
    return 0;
}
