/* Calls of releases later than the distribution's, whose header lacks them: so they are declared
 * here. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#define CHECK(what) do { if (!(what)) { \
	printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(1); } } while (0)
#define FAILS(what, error) do { errno = 0; CHECK((what) == -1); CHECK(errno == (error)); } while (0)

/* Since v60. */
enum { ADDRINFO_RESOLVED = 16, ADDRINFO_ERROR = 17, USER_EVENT = 18 };
#define RAI_SA 0x10
#define RAI_DNS 0x20
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
			uint64_t arg);

/* Since v64. */
struct ibv_buf;
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length,
			      int access);

/* After v64. */
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);
int repoll_create(int flags);
int repoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int repoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);

static void expect(struct rdma_event_channel *channel, unsigned type, struct rdma_cm_id *id,
		   int status, uint64_t arg)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != type || event->status != status) {
		printf("expected event %u, got %u (status %d)\n", type, event->event, event->status);
		exit(1);
	}
	CHECK(event->id == id);
	if (type == USER_EVENT) /* `param.arg`, which older headers lack */
		CHECK(!memcmp(&event->param, &arg, sizeof(arg)));
	CHECK(!rdma_ack_cm_event(event));
}

static void addresses(struct rdma_event_channel *channel)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_UDP }, *info;
	struct sockaddr_in *to;
	struct rdma_cm_id *id, *gone;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_UDP));
	FAILS(rdma_query_addrinfo(id, &info), ENOENT);
	CHECK(!rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints));
	FAILS(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints), EBUSY);
	expect(channel, ADDRINFO_RESOLVED, id, 0, 0);
	FAILS(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints), EBUSY);
	CHECK(!rdma_query_addrinfo(id, &info));
	to = (struct sockaddr_in *) info->ai_dst_addr;
	CHECK(info->ai_qp_type == IBV_QPT_UD && to->sin_port == htons(7471));
	CHECK(to->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	rdma_freeaddrinfo(info);
	FAILS(rdma_query_addrinfo(id, &info), ENOENT);

	hints.ai_flags = RAI_NUMERICHOST;
	CHECK(!rdma_resolve_addrinfo(id, "no number", "7471", &hints));
	expect(channel, ADDRINFO_ERROR, id, -ENOENT, 0);
	FAILS(rdma_query_addrinfo(id, &info), ENOENT);
	hints.ai_flags = RAI_SA;
	FAILS(rdma_resolve_addrinfo(id, NULL, "service", &hints), EOPNOTSUPP);
	hints.ai_flags = RAI_SA | RAI_DNS;
	FAILS(rdma_resolve_addrinfo(id, "127.0.0.1", "1", &hints), ENOTSUP);
	CHECK(!strcmp(rdma_event_str(ADDRINFO_RESOLVED), "RDMA_CM_EVENT_ADDRINFO_RESOLVED"));

	/* An answer that comes for an id that is gone reaches nobody. */
	for (int i = 0; i < 50; i++) {
		CHECK(!rdma_create_id(channel, &gone, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addrinfo(gone, "127.0.0.1", "1", NULL));
		CHECK(!rdma_destroy_id(gone));
	}
	FAILS(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
	CHECK(!rdma_write_cm_event(id, USER_EVENT, 5, 0x1122334455667788));
	expect(channel, USER_EVENT, id, 5, 0x1122334455667788);
	CHECK(!rdma_destroy_id(id));

	/* A synchronous id waits for its answer. */
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addrinfo(id, "127.0.0.1", "7471", NULL));
	CHECK(!rdma_query_addrinfo(id, &info));
	CHECK(info->ai_qp_type == IBV_QPT_RC);
	rdma_freeaddrinfo(info);
	CHECK(!rdma_destroy_id(id));
}

static void buffers(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, devices;
	struct ibv_context **list = rdma_get_devices(&devices);
	struct ibv_pd *pd = ibv_alloc_pd(list[0]), *other = ibv_alloc_pd(list[0]);
	struct ibv_buf *buf;
	struct ibv_mr *mr;
	char *bytes = ibv_alloc_buf(pd, 10000, &buf);
	CHECK(pd && other && bytes && (uintptr_t) bytes % sysconf(_SC_PAGESIZE) == 0);
	CHECK(!bytes[0] && !bytes[9999]);
	mr = ibv_reg_buf_mr(pd, buf, bytes + 8, 9000, access);
	CHECK(mr && mr->addr == bytes + 8 && mr->length == 9000 && mr->pd == pd);
	errno = 0;
	CHECK(!ibv_reg_buf_mr(other, buf, bytes, 16, access) && errno == EINVAL);
	errno = 0;
	CHECK(!ibv_reg_buf_mr(pd, buf, bytes + 5000, 6000, access) && errno == EINVAL);
	errno = 0;
	CHECK(!ibv_reg_buf_mr(pd, buf, bytes - 1, 16, access) && errno == EINVAL);
	FAILS(ibv_export_buf_dmabuf_fd(buf), ENODATA);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	/* Too early: the region keeps the memory. */
	ibv_free_buf(buf);
	bytes[8] = 1;
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_dealloc_pd(other));
	errno = 0;
	CHECK(!ibv_alloc_buf(pd, 16, &buf) && errno == EINVAL);
	rdma_free_devices(list);
}

static void *changes_it(void *arg)
{
	int *fds = arg;
	struct epoll_event in = { .events = EPOLLIN, .data.u64 = 9 };
	CHECK(!repoll_ctl(fds[0], EPOLL_CTL_ADD, fds[1], &in));
	return NULL;
}

/* `fd` is watched, and another socket gets its number. */
static void a_closed_socket_is_forgotten(int epfd, int fd, int peer)
{
	struct epoll_event in = { .events = EPOLLIN, .data.u64 = 10 }, got;
	int others[64], count = 0, next;
	CHECK(!repoll_ctl(epfd, EPOLL_CTL_MOD, fd, &in));
	CHECK(rsend(peer, "x", 1, 0) == 1);
	CHECK(repoll_wait(epfd, &got, 1, -1) == 1 && got.data.u64 == 10);
	CHECK(!rclose(peer) && !rclose(fd));
	while ((others[count] = dup(0)) != fd)
		CHECK(others[count] >= 0 && ++count < 64);
	close(fd);
	next = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(next == fd);
	CHECK(repoll_wait(epfd, &got, 1, 0) == 0);
	FAILS(repoll_ctl(epfd, EPOLL_CTL_MOD, fd, &in), ENOENT);
	FAILS(repoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL), ENOENT);
	in.data.u64 = 11;
	CHECK(!repoll_ctl(epfd, EPOLL_CTL_ADD, fd, &in));
	CHECK(repoll_wait(epfd, &got, 1, -1) == 1 && got.data.u64 == 11);
	CHECK(!rclose(next));
	while (count)
		close(others[--count]);
}

static void events_of_sockets(void)
{
	struct epoll_event in = { .events = EPOLLIN, .data.u64 = 7 }, got[4];
	struct sockaddr_in addr = { .sin_family = AF_INET };
	socklen_t len = sizeof(addr);
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), client = rsocket(AF_INET, SOCK_STREAM, 0);
	int epfd = repoll_create(0), server, plain[2], shared[2];
	pthread_t other;
	char byte;
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(epfd >= 0 && listener >= 0 && client >= 0 && !pipe(plain));
	CHECK(!rbind(listener, (struct sockaddr *) &addr, sizeof(addr)) && !rlisten(listener, 4));
	CHECK(!rgetsockname(listener, (struct sockaddr *) &addr, &len));
	FAILS(repoll_ctl(epfd, EPOLL_CTL_MOD, listener, &in), ENOENT);
	FAILS(repoll_ctl(epfd, EPOLL_CTL_ADD, epfd, &in), EINVAL);
	FAILS(repoll_ctl(epfd, EPOLL_CTL_ADD, -1, &in), EBADF);
	FAILS(repoll_ctl(listener, EPOLL_CTL_ADD, plain[0], &in), EINVAL);
	FAILS(repoll_wait(epfd, got, 0, 0), EINVAL);
	CHECK(!repoll_ctl(epfd, EPOLL_CTL_ADD, listener, &in));
	FAILS(repoll_ctl(epfd, EPOLL_CTL_ADD, listener, &in), EEXIST);
	CHECK(repoll_wait(epfd, got, 4, 0) == 0);
	CHECK(repoll_wait(epfd, got, 4, 20) == 0);

	CHECK(!rfcntl(client, F_SETFL, O_NONBLOCK));
	FAILS(rconnect(client, (struct sockaddr *) &addr, sizeof(addr)), EINPROGRESS);
	CHECK(repoll_wait(epfd, got, 4, -1) == 1 && got[0].data.u64 == 7);
	CHECK(got[0].events == EPOLLIN);
	server = raccept(listener, NULL, NULL);
	CHECK(server >= 0);
	in.events = EPOLLOUT;
	CHECK(!repoll_ctl(epfd, EPOLL_CTL_ADD, client, &in));
	CHECK(repoll_wait(epfd, got, 4, -1) == 1 && got[0].events == EPOLLOUT);
	CHECK(!repoll_ctl(epfd, EPOLL_CTL_DEL, client, NULL));
	CHECK(rsend(client, "x", 1, 0) == 1);
	in.events = EPOLLIN | EPOLLONESHOT;
	in.data.u64 = 8;
	CHECK(!repoll_ctl(epfd, EPOLL_CTL_ADD, server, &in));
	CHECK(repoll_wait(epfd, got, 4, -1) == 1 && got[0].data.u64 == 8);
	CHECK(repoll_wait(epfd, got, 4, 0) == 0);
	CHECK(rrecv(server, &byte, 1, 0) == 1 && byte == 'x');

	/* Another thread adds a descriptor, an ordinary one, while this one may wait already. */
	CHECK(write(plain[1], "y", 1) == 1);
	shared[0] = epfd;
	shared[1] = plain[0];
	CHECK(!pthread_create(&other, NULL, changes_it, shared));
	CHECK(repoll_wait(epfd, got, 4, -1) == 1 && got[0].data.u64 == 9);
	CHECK(!pthread_join(other, NULL));
	/* A closed descriptor is forgotten. */
	close(plain[0]);
	CHECK(repoll_wait(epfd, got, 4, 0) == 0);
	a_closed_socket_is_forgotten(epfd, server, client);
	CHECK(!rclose(listener) && !rclose(epfd));
	FAILS(repoll_wait(epfd, got, 4, 0), EINVAL);
	FAILS(rclose(epfd), EBADF);
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	addresses(channel);
	rdma_destroy_event_channel(channel);
	buffers();
	events_of_sockets();
	return 0;
}
