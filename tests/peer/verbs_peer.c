/*
 * A verbs program that executes commands, line by line: one end of the tests' traffic. It runs on
 * any libibverbs: in the virtual machine on the kernel's soft-RoCE, on the host on Remora's.
 *
 * A line of standard input is a command: its name, its arguments, then options NAME=NUMBER. Each is
 * answered with a line, "ok NAME=VALUE...", "none" or "error WHY". There is one protection domain,
 * one completion queue and one memory region; queue pairs are numbered from 0 as they are made.
 *
 *   open ADDRESS                        the device that has it        -> dev gid mtu
 *   mr BYTES                            the region                    -> addr rkey
 *   fill OFFSET BYTES SEED              writes a pattern
 *   sum OFFSET BYTES                    a sum over memory             -> sum
 *   set OFFSET VALUE | get OFFSET       one word                      -> value
 *   qp rc|uc|ud                         makes one, in INIT            -> qp qpn psn
 *   connect QP ADDRESS qpn= psn= mtu= timeout= retry= rnr= rd= min_rnr=      RC, UC: to RTS
 *   ready QP qkey=                      UD: to RTS
 *   recv QP WR_ID OFFSET BYTES
 *   post QP WR_ID OPERATION OFFSET BYTES [addr= rkey= imm= compare= swap= add= inline=1 fence=1]
 *                                       [to=ADDRESS qpn= qkey=]
 *   poll MILLISECONDS                   -> wr_id status op len imm has_imm src_qp grh
 *   state QP                            -> state
 *   break QP                            to ERROR
 *   destroy QP
 *   listen PORT | unlisten              RDMA CM, TCP port space
 *   cm_connect ADDRESS PORT TEXT rd=    -> qp qpn, when established; or refused
 *   cm_accept MILLISECONDS TEXT rd=     -> qp qpn text
 *   cm_reject MILLISECONDS TEXT
 *   cm_disconnect QP
 *   cm_ended QP MILLISECONDS            waits until the peer disconnects
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define QPS 256
#define WORDS 32

struct end {
	struct ibv_qp *qp;
	struct rdma_cm_id *id;
	uint32_t psn;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *memory;
static size_t memory_len;
static int gid_index;
static struct end ends[QPS];
static int ends_used;
static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;
static char *words[WORDS];
static int words_used;

/* --- answers and arguments ----------------------------------------------------------------- */

static void answer(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	fflush(stdout);
}

static void failed(const char *what, int error)
{
	answer("error %s: %s", what, strerror(error < 0 ? -error : error));
}

/* The n-th argument; the command's name is the 0th. */
static const char *word(int n)
{
	return n < words_used ? words[n] : "";
}

static uint64_t number(int n)
{
	return strtoull(word(n), NULL, 0);
}

static const char *option(const char *name)
{
	size_t len = strlen(name);

	for (int i = 1; i < words_used; i++)
		if (!strncmp(words[i], name, len) && words[i][len] == '=')
			return words[i] + len + 1;
	return NULL;
}

static uint64_t value(const char *name, uint64_t otherwise)
{
	const char *text = option(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

static struct end *end_named(int n)
{
	uint64_t at = number(n);

	if (at >= (uint64_t)ends_used || !ends[at].qp) {
		answer("error no queue pair %s", word(n));
		return NULL;
	}
	return &ends[at];
}

/* Is the part within the region? If not, answers with an error. */
static int inside(uint64_t offset, uint64_t len)
{
	if (offset <= memory_len && len <= memory_len - offset)
		return 1;
	answer("error outside of the region");
	return 0;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

/* --- device and memory --------------------------------------------------------------------- */

static int gid_of(const char *text, union ibv_gid *gid)
{
	struct in_addr v4;

	memset(gid, 0, sizeof *gid);
	if (inet_pton(AF_INET, text, &v4) == 1) {
		gid->raw[10] = gid->raw[11] = 0xff;
		memcpy(gid->raw + 12, &v4, 4);
		return 1;
	}
	return inet_pton(AF_INET6, text, gid->raw) == 1;
}

static void do_open(void)
{
	union ibv_gid wanted, found;
	struct ibv_port_attr port;
	int devices = 0;
	/* The connection manager's own contexts, so that its queue pairs are on the same one. */
	struct ibv_context **all = rdma_get_devices(&devices);

	if (!all)
		return failed("no RDMA device", errno);
	if (!gid_of(word(1), &wanted))
		return answer("error no address: %s", word(1));
	for (int d = 0; d < devices; d++) {
		if (ibv_query_port(all[d], 1, &port))
			continue;
		for (int i = 0; i < port.gid_tbl_len; i++) {
			if (ibv_query_gid(all[d], 1, i, &found))
				continue;
			if (memcmp(&found, &wanted, sizeof wanted))
				continue;
			if (!context) {
				context = all[d];
				pd = ibv_alloc_pd(context);
				cq = ibv_create_cq(context, 4096, NULL, NULL, 0);
				if (!pd || !cq)
					return failed("cannot begin", errno);
			}
			if (context != all[d])
				return answer("error another device is open");
			gid_index = i;
			return answer("ok dev=%s gid=%d mtu=%d", ibv_get_device_name(context->device), i,
				      128 << port.active_mtu);
		}
	}
	answer("error no device of %d has the address %s", devices, word(1));
}

static void do_mr(void)
{
	memory_len = number(1);
	memory = aligned_alloc(4096, (memory_len + 4095) & ~4095ul);
	memset(memory, 0, memory_len);
	mr = ibv_reg_mr(pd, memory, memory_len,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	if (!mr)
		return failed("ibv_reg_mr", errno);
	answer("ok addr=%lu rkey=%u", (unsigned long)memory, mr->rkey);
}

/* The pattern and the sum are the same as at the tests' other end. */
static void do_fill(void)
{
	uint64_t offset = number(1), len = number(2);
	uint32_t seed = number(3);

	if (!inside(offset, len))
		return;
	for (uint64_t i = 0; i < len; i++)
		memory[offset + i] = (((uint32_t)i * 2654435761u) >> 24) ^ seed;
	answer("ok");
}

static void do_sum(void)
{
	uint64_t offset = number(1), len = number(2), sum = 0xcbf29ce484222325ull;

	if (!inside(offset, len))
		return;
	for (uint64_t i = 0; i < len; i++)
		sum = (sum ^ memory[offset + i]) * 0x100000001b3ull;
	answer("ok sum=%lu", sum);
}

static void do_word(int set)
{
	uint64_t offset = number(1), word;

	if (!inside(offset, 8))
		return;
	if (set) {
		word = number(2);
		memcpy(memory + offset, &word, 8);
	}
	memcpy(&word, memory + offset, 8);
	answer("ok value=%lu", word);
}

/* --- queue pairs --------------------------------------------------------------------------- */

static struct ibv_qp_init_attr plan(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = type,
		.cap = { .max_send_wr = 128,
			 .max_recv_wr = 128,
			 .max_send_sge = 1,
			 .max_recv_sge = 1,
			 .max_inline_data = 64 },
	};
	return init;
}

static struct end *add_end(struct ibv_qp *qp, struct rdma_cm_id *id)
{
	struct end *end = &ends[ends_used];

	end->qp = qp;
	end->id = id;
	end->psn = lrand48() & 0xffffff;
	return end;
}

static void do_qp(void)
{
	const char *kind = word(1);
	int ud = !strcmp(kind, "ud");
	struct ibv_qp_init_attr init =
		plan(ud ? IBV_QPT_UD : !strcmp(kind, "uc") ? IBV_QPT_UC : IBV_QPT_RC);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (ends_used == QPS)
		return answer("error too many queue pairs");
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp)
		return failed("ibv_create_qp", errno);
	if (ud) {
		attr.qkey = value("qkey", 0x11111111);
		mask |= IBV_QP_QKEY;
	} else {
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				       IBV_ACCESS_REMOTE_ATOMIC;
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	int error = ibv_modify_qp(qp, &attr, mask);
	if (error)
		return failed("to INIT", error);
	struct end *end = add_end(qp, NULL);
	answer("ok qp=%d qpn=%u psn=%u", ends_used++, qp->qp_num, end->psn);
}

static void address_vector(struct ibv_ah_attr *ah, const union ibv_gid *gid)
{
	ah->is_global = 1;
	ah->port_num = 1;
	ah->grh.dgid = *gid;
	ah->grh.sgid_index = gid_index;
	ah->grh.hop_limit = 64;
}

static void do_connect(void)
{
	struct end *end = end_named(1);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	union ibv_gid gid;
	int error, rc;

	if (!end)
		return;
	if (!gid_of(word(2), &gid))
		return answer("error no address: %s", word(2));
	rc = end->qp->qp_type == IBV_QPT_RC;
	attr.path_mtu = __builtin_ctzl(value("mtu", 1024)) - 7;
	attr.dest_qp_num = value("qpn", 0);
	attr.rq_psn = value("psn", 0);
	attr.max_dest_rd_atomic = value("rd", 1);
	attr.min_rnr_timer = value("min_rnr", 12);
	address_vector(&attr.ah_attr, &gid);
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (rc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	error = ibv_modify_qp(end->qp, &attr, mask);
	if (error)
		return failed("to RTR", error);
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = end->psn;
	attr.timeout = value("timeout", 14);
	attr.retry_cnt = value("retry", 7);
	attr.rnr_retry = value("rnr", 7);
	attr.max_rd_atomic = value("rd", 1);
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (rc)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	error = ibv_modify_qp(end->qp, &attr, mask);
	if (error)
		return failed("to RTS", error);
	answer("ok");
}

static void do_ready(void)
{
	struct end *end = end_named(1);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int error;

	if (!end)
		return;
	error = ibv_modify_qp(end->qp, &attr, IBV_QP_STATE);
	if (error)
		return failed("to RTR", error);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = end->psn;
	error = ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
	if (error)
		return failed("to RTS", error);
	answer("ok");
}

static void do_state(void)
{
	struct end *end = end_named(1);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (!end)
		return;
	if (ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init))
		return failed("ibv_query_qp", errno);
	answer("ok state=%d", attr.qp_state);
}

static void do_break(void)
{
	struct end *end = end_named(1);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (!end)
		return;
	int error = ibv_modify_qp(end->qp, &attr, IBV_QP_STATE);
	if (error)
		return failed("to ERROR", error);
	answer("ok");
}

static void do_destroy(void)
{
	struct end *end = end_named(1);
	int error = 0;

	if (!end)
		return;
	if (end->id) {
		rdma_destroy_qp(end->id);
		error = rdma_destroy_id(end->id) ? errno : 0;
	} else {
		error = ibv_destroy_qp(end->qp);
	}
	end->qp = NULL;
	end->id = NULL;
	if (error)
		return failed("destroy", error);
	answer("ok");
}

/* --- work ---------------------------------------------------------------------------------- */

static void do_recv(void)
{
	struct end *end = end_named(1);
	struct ibv_recv_wr *bad;

	if (!end || !inside(number(3), number(4)))
		return;
	struct ibv_sge sge = { (uintptr_t)memory + number(3), number(4), mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = number(2), .sg_list = &sge, .num_sge = 1 };
	int error = ibv_post_recv(end->qp, &wr, &bad);
	if (error)
		return failed("ibv_post_recv", error);
	answer("ok");
}

static const struct {
	const char *name;
	enum ibv_wr_opcode opcode;
} operations[] = {
	{ "send", IBV_WR_SEND },
	{ "send_imm", IBV_WR_SEND_WITH_IMM },
	{ "write", IBV_WR_RDMA_WRITE },
	{ "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM },
	{ "read", IBV_WR_RDMA_READ },
	{ "compare_swap", IBV_WR_ATOMIC_CMP_AND_SWP },
	{ "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD },
};

static void do_post(void)
{
	struct end *end = end_named(1);
	struct ibv_send_wr wr = { .wr_id = number(2), .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_sge sge;
	struct ibv_ah_attr to = { 0 };
	union ibv_gid gid;
	size_t i, known = sizeof operations / sizeof operations[0];

	if (!end || !inside(number(4), number(5)))
		return;
	for (i = 0; i < known && strcmp(operations[i].name, word(3)); i++)
		;
	if (i == known)
		return answer("error no operation %s", word(3));
	wr.opcode = operations[i].opcode;
	sge.addr = (uintptr_t)memory + number(4);
	sge.length = number(5);
	sge.lkey = mr->lkey;
	wr.sg_list = &sge;
	wr.num_sge = sge.length ? 1 : 0;
	wr.imm_data = htonl(value("imm", 0));
	if (value("inline", 0))
		wr.send_flags |= IBV_SEND_INLINE;
	if (value("fence", 0))
		wr.send_flags |= IBV_SEND_FENCE;
	if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = value("addr", 0);
		wr.wr.atomic.rkey = value("rkey", 0);
		wr.wr.atomic.compare_add = value("compare", value("add", 0));
		wr.wr.atomic.swap = value("swap", 0);
	} else if (end->qp->qp_type != IBV_QPT_UD) {
		wr.wr.rdma.remote_addr = value("addr", 0);
		wr.wr.rdma.rkey = value("rkey", 0);
	} else {
		if (!option("to") || !gid_of(option("to"), &gid))
			return answer("error a datagram needs to=ADDRESS");
		address_vector(&to, &gid);
		/* Kept until the program ends: a test makes only a few. */
		wr.wr.ud.ah = ibv_create_ah(pd, &to);
		if (!wr.wr.ud.ah)
			return failed("ibv_create_ah", errno);
		wr.wr.ud.remote_qpn = value("qpn", 0);
		wr.wr.ud.remote_qkey = value("qkey", 0x11111111);
	}
	int error = ibv_post_send(end->qp, &wr, &bad);
	if (error)
		return failed("ibv_post_send", error);
	answer("ok");
}

static void do_poll(void)
{
	uint64_t until = now_ms() + number(1);
	struct ibv_wc wc;

	for (unsigned int turn = 0;; turn++) {
		int polled = ibv_poll_cq(cq, 1, &wc);
		if (polled < 0)
			return answer("error ibv_poll_cq");
		if (polled > 0)
			break;
		if (now_ms() >= until)
			return answer("none");
		/* Spins for a while, then leaves the processor to other programs. */
		if (turn > 1000)
			usleep(200);
	}
	answer("ok wr_id=%lu status=%d op=%d len=%u imm=%u has_imm=%d src_qp=%u grh=%d", wc.wr_id,
	       wc.status, wc.opcode, wc.byte_len, ntohl(wc.imm_data),
	       !!(wc.wc_flags & IBV_WC_WITH_IMM), wc.src_qp, !!(wc.wc_flags & IBV_WC_GRH));
}

/* --- RDMA CM ------------------------------------------------------------------------------- */

/* Waits for the next event, copies it with its data, and acknowledges it. */
static int next_event(int timeout_ms, struct rdma_cm_event *copy, char *text, size_t room)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&fd, 1, timeout_ms < 0 ? 0 : timeout_ms) <= 0)
		return 0;
	if (rdma_get_cm_event(channel, &event))
		return 0;
	*copy = *event;
	size_t len = event->param.conn.private_data_len;
	const char *data = event->param.conn.private_data;
	text[0] = 0;
	if (data && room) {
		if (len >= room)
			len = room - 1;
		memcpy(text, data, len);
		text[len] = 0;
	}
	rdma_ack_cm_event(event);
	return 1;
}

static int begin_cm(void)
{
	if (!channel)
		channel = rdma_create_event_channel();
	if (!channel)
		failed("rdma_create_event_channel", errno);
	return channel != NULL;
}

static int sockaddr_of(const char *text, int port, struct sockaddr_storage *out)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof *out);
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		return 1;
	}
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(port);
	return inet_pton(AF_INET6, text, &v6->sin6_addr) == 1;
}

static void do_listen(void)
{
	struct sockaddr_storage any;

	if (!begin_cm())
		return;
	sockaddr_of("::", number(1), &any);
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP))
		return failed("rdma_create_id", errno);
	if (rdma_bind_addr(listener, (struct sockaddr *)&any) || rdma_listen(listener, 8))
		return failed("rdma_listen", errno);
	answer("ok");
}

static void do_unlisten(void)
{
	if (listener)
		rdma_destroy_id(listener);
	listener = NULL;
	answer("ok");
}

static struct rdma_conn_param conn_param(const char *text)
{
	struct rdma_conn_param param = {
		.private_data = text,
		.private_data_len = strlen(text),
		.responder_resources = value("rd", 1),
		.initiator_depth = value("rd", 1),
		.retry_count = value("retry", 7),
		.rnr_retry_count = 7,
	};
	return param;
}

/* Waits for one kind of event; the answer reports any other. */
static int expect(enum rdma_cm_event_type wanted, int timeout_ms, struct rdma_cm_event *event,
		  char *text, size_t room)
{
	if (!next_event(timeout_ms, event, text, room)) {
		answer("error no event, waiting for %s", rdma_event_str(wanted));
		return 0;
	}
	if (event->event == wanted)
		return 1;
	if (event->event == RDMA_CM_EVENT_REJECTED)
		answer("refused status=%d text=%s", event->status, text);
	else
		answer("error %s, status %d", rdma_event_str(event->event), event->status);
	return 0;
}

static void do_cm_connect(void)
{
	struct sockaddr_storage to;
	struct rdma_cm_id *id;
	struct rdma_cm_event event;
	struct ibv_qp_init_attr init = plan(IBV_QPT_RC);
	struct rdma_conn_param param = conn_param(word(3));
	char text[256];

	if (!begin_cm())
		return;
	if (!sockaddr_of(word(1), number(2), &to))
		return answer("error no address: %s", word(1));
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		return failed("rdma_create_id", errno);
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 5000))
		return failed("rdma_resolve_addr", errno);
	if (!expect(RDMA_CM_EVENT_ADDR_RESOLVED, 10000, &event, text, sizeof text))
		return;
	if (rdma_resolve_route(id, 5000))
		return failed("rdma_resolve_route", errno);
	if (!expect(RDMA_CM_EVENT_ROUTE_RESOLVED, 10000, &event, text, sizeof text))
		return;
	if (id->verbs != context)
		return answer("error another device");
	if (rdma_create_qp(id, pd, &init))
		return failed("rdma_create_qp", errno);
	if (rdma_connect(id, &param))
		return failed("rdma_connect", errno);
	if (!expect(RDMA_CM_EVENT_ESTABLISHED, 60000, &event, text, sizeof text)) {
		rdma_destroy_qp(id);
		rdma_destroy_id(id);
		return;
	}
	add_end(id->qp, id);
	answer("ok qp=%d qpn=%u text=%s", ends_used, id->qp->qp_num, text);
	ends_used++;
}

static void do_cm_accept(int reject)
{
	struct rdma_cm_event event;
	struct ibv_qp_init_attr init = plan(IBV_QPT_RC);
	struct rdma_conn_param param = conn_param(word(2));
	char text[256], ignored[256];

	if (!begin_cm())
		return;
	if (!expect(RDMA_CM_EVENT_CONNECT_REQUEST, number(1), &event, text, sizeof text))
		return;
	if (reject) {
		if (rdma_reject(event.id, word(2), strlen(word(2))))
			return failed("rdma_reject", errno);
		rdma_destroy_id(event.id);
		return answer("ok text=%s", text);
	}
	if (event.id->verbs != context)
		return answer("error another device");
	if (rdma_create_qp(event.id, pd, &init))
		return failed("rdma_create_qp", errno);
	if (rdma_accept(event.id, &param))
		return failed("rdma_accept", errno);
	struct rdma_cm_id *id = event.id;
	if (!expect(RDMA_CM_EVENT_ESTABLISHED, number(1), &event, ignored, sizeof ignored))
		return;
	add_end(id->qp, id);
	answer("ok qp=%d qpn=%u text=%s", ends_used, id->qp->qp_num, text);
	ends_used++;
}

static void do_cm_disconnect(void)
{
	struct end *end = end_named(1);

	if (!end)
		return;
	if (!end->id)
		return answer("error not connected by RDMA CM");
	if (rdma_disconnect(end->id))
		return failed("rdma_disconnect", errno);
	answer("ok");
}

static void do_cm_ended(void)
{
	struct rdma_cm_event event;
	char text[256];

	if (!end_named(1))
		return;
	if (expect(RDMA_CM_EVENT_DISCONNECTED, number(2), &event, text, sizeof text))
		answer("ok");
}

/* ------------------------------------------------------------------------------------------- */

int main(void)
{
	char line[4096];

	srand48(now_ms() ^ getpid());
	while (fgets(line, sizeof line, stdin)) {
		words_used = 0;
		for (char *at = strtok(line, " \n"); at && words_used < WORDS; at = strtok(NULL, " \n"))
			words[words_used++] = at;
		const char *name = word(0);
		if (!strcmp(name, "quit"))
			break;
		if (!strcmp(name, "open"))
			do_open();
		else if (!context)
			answer("error nothing is open");
		else if (!strcmp(name, "mr"))
			do_mr();
		else if (!strcmp(name, "fill"))
			do_fill();
		else if (!strcmp(name, "sum"))
			do_sum();
		else if (!strcmp(name, "set") || !strcmp(name, "get"))
			do_word(name[0] == 's');
		else if (!strcmp(name, "qp"))
			do_qp();
		else if (!strcmp(name, "connect"))
			do_connect();
		else if (!strcmp(name, "ready"))
			do_ready();
		else if (!strcmp(name, "recv"))
			do_recv();
		else if (!strcmp(name, "post"))
			do_post();
		else if (!strcmp(name, "poll"))
			do_poll();
		else if (!strcmp(name, "state"))
			do_state();
		else if (!strcmp(name, "break"))
			do_break();
		else if (!strcmp(name, "destroy"))
			do_destroy();
		else if (!strcmp(name, "listen"))
			do_listen();
		else if (!strcmp(name, "unlisten"))
			do_unlisten();
		else if (!strcmp(name, "cm_connect"))
			do_cm_connect();
		else if (!strcmp(name, "cm_accept") || !strcmp(name, "cm_reject"))
			do_cm_accept(name[3] == 'r');
		else if (!strcmp(name, "cm_disconnect"))
			do_cm_disconnect();
		else if (!strcmp(name, "cm_ended"))
			do_cm_ended();
		else
			answer("error no command %s", name);
	}
	return 0;
}
