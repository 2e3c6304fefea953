/* Queue pairs of one process, connected to each other, and two processes that talk. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define CHECK(what) do { if (!(what)) { \
	printf("%s, line %d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
	fflush(stdout); _Exit(1); } } while (0)

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static inline struct ibv_context *open_first(void)
{
	/* Whatever does not come ends the program. */
	alarm(60);
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static inline union ibv_gid gid_of(struct ibv_context *context)
{
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	return gid;
}

static inline struct ibv_qp *make(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static inline void to_init_with(struct ibv_qp *qp, int access)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = access };
	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     IBV_QP_ACCESS_FLAGS));
}

static inline void to_init(struct ibv_qp *qp)
{
	to_init_with(qp, ALL);
}

/* Connects to queue pair `peer` at `gid`, which may use memory so. All first PSNs are 7. */
static inline void connect_with(struct ibv_qp *qp, union ibv_gid gid, uint32_t peer, int access)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer, .rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = gid, .hop_limit = 64 } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14,
		.retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	to_init_with(qp, access);
	CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			     IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			     IBV_QP_MIN_RNR_TIMER));
	if (qp->qp_type != IBV_QPT_XRC_RECV)
		CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
				     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

static inline void connect_to(struct ibv_qp *qp, union ibv_gid gid, uint32_t peer)
{
	connect_with(qp, gid, peer, ALL);
}

static inline void wait_for(struct ibv_cq *cq, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc;
	int found;
	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	if (found != 1 || wc.status || wc.opcode != opcode)
		printf("%d: status %d, opcode %d\n", found, wc.status, wc.opcode);
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
}

/* Writes `len` bytes from `from` to `addr` of `rkey`, and waits until it is done. */
static inline void write_to(struct ibv_qp *qp, void *from, uint32_t lkey, uint64_t addr,
			    uint32_t rkey, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t) from, len, lkey };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey } };
	CHECK(!ibv_post_send(qp, &wr, &bad));
	wait_for(qp->send_cq, IBV_WC_RDMA_WRITE);
}

static inline void tell(int socket, const void *what, size_t len)
{
	CHECK(write(socket, what, len) == (ssize_t) len);
}

static inline void hear(int socket, void *what, size_t len)
{
	CHECK(read(socket, what, len) == (ssize_t) len);
}

static inline void pass(int socket, int fd)
{
	char control[CMSG_SPACE(sizeof fd)] = { 0 }, byte = 0;
	struct iovec bytes = { &byte, 1 };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(head), &fd, sizeof fd);
	CHECK(sendmsg(socket, &message, 0) == 1);
}

static inline int take(int socket)
{
	int fd;
	char control[CMSG_SPACE(sizeof fd)], byte;
	struct iovec bytes = { &byte, 1 };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	CHECK(recvmsg(socket, &message, 0) == 1);
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	CHECK(head && head->cmsg_type == SCM_RIGHTS);
	memcpy(&fd, CMSG_DATA(head), sizeof fd);
	return fd;
}

/* Runs `one` in a child and `other` here, each with an end of a socket. */
static inline void run_both(void (*one)(int), void (*other)(int))
{
	int ends[2], status;
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		close(ends[0]);
		one(ends[1]);
		_Exit(0);
	}
	close(ends[1]);
	other(ends[0]);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}
