/* Datagram rsockets, in one process: they find each other by UDP, then use queue pairs. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <rdma/rsocket.h>

#define CHECK(what) do { if (!(what)) { \
	printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(1); } } while (0)
#define FAILS(what, error) do { errno = 0; CHECK((what) == -1); CHECK(errno == (error)); } while (0)

static char data[3000];
static char buf[3000];

static struct sockaddr *to(struct sockaddr_storage *addr)
{
	return (struct sockaddr *) addr;
}

/* The bytes that the kernel's socket holds: none if queue pairs carried the datagram. */
static ssize_t in_the_kernel(int fd)
{
	return recv(fd, buf, sizeof(buf), MSG_PEEK | MSG_DONTWAIT);
}

/* Once a second a datagram goes by UDP to confirm the queue pair; that may be now. */
static void queue_pairs_carry(int from, int at, struct sockaddr *to, socklen_t len)
{
	int tries, n, seen, by_udp = 1;
	for (tries = 0; by_udp && tries < 20; tries++) {
		for (n = 0; n < 40; n++) {
			data[0] = n;
			CHECK(rsendto(from, data, 1 + n * 50, 0, to, len) == 1 + n * 50);
		}
		by_udp = in_the_kernel(at) != -1;
		for (n = 0, seen = 0; n < 40; n++) {
			ssize_t got = rrecv(at, buf, sizeof(buf), 0);
			CHECK(got == 1 + buf[0] * 50);
			seen += buf[0];
		}
		CHECK(seen == 39 * 40 / 2);
	}
	CHECK(!by_udp);
}

static void between(int family)
{
	struct sockaddr_storage at = { .ss_family = family }, from = { 0 };
	struct sockaddr_in *v4 = (void *) &at;
	struct sockaddr_in6 *v6 = (void *) &at;
	socklen_t len = family == AF_INET ? sizeof(*v4) : sizeof(*v6), room = sizeof(from);
	int one, two, n, most = 2048 - (family == AF_INET ? 8 : 24);
	struct pollfd fd;
	struct iovec parts[2] = { { buf, 3 }, { buf + 100, 2 } };
	struct msghdr msg = { .msg_iov = parts, .msg_iovlen = 2 };

	if (family == AF_INET)
		v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		v6->sin6_addr = in6addr_loopback;
	CHECK((one = rsocket(family, SOCK_DGRAM, 0)) >= 0);
	CHECK((two = rsocket(family, SOCK_DGRAM, IPPROTO_UDP)) >= 0);
	n = 1 << 17;
	CHECK(!rsetsockopt(one, SOL_SOCKET, SO_RCVBUF, &n, sizeof(n)));
	CHECK(!rbind(one, to(&at), len));
	CHECK(!rgetsockname(one, to(&at), &len));
	FAILS(rlisten(one, 1), EINVAL);
	FAILS(rsend(two, data, 1, 0), EDESTADDRREQ);
	FAILS(rsendto(two, data, most + 1, 0, to(&at), len), EMSGSIZE);
	FAILS(rrecv(one, buf, sizeof(buf), MSG_DONTWAIT), EAGAIN);
	CHECK(!rfcntl(one, F_SETFL, O_NONBLOCK));
	FAILS(rrecv(one, buf, sizeof(buf), 0), EAGAIN);
	CHECK(!rfcntl(one, F_SETFL, 0));

	/* The first datagram goes by UDP. */
	fd = (struct pollfd) { .fd = one, .events = POLLIN };
	CHECK(rpoll(&fd, 1, 0) == 0);
	CHECK(rsendto(two, "first", 6, 0, to(&at), len) == 6);
	CHECK(in_the_kernel(one) > 6);
	CHECK(rpoll(&fd, 1, 10000) == 1 && fd.revents == POLLIN);
	CHECK(rrecvfrom(one, buf, sizeof(buf), MSG_PEEK, to(&from), &room) == 6);
	CHECK(rrecvfrom(one, buf, sizeof(buf), 0, to(&from), &room) == 6 && !strcmp(buf, "first"));
	CHECK(room == len && from.ss_family == family);
	CHECK(rsendto(one, "back", 5, 0, to(&from), room) == 5);
	CHECK(rrecv(two, buf, sizeof(buf), 0) == 5 && !strcmp(buf, "back"));
	/* Now both know each other's queue pair. */
	queue_pairs_carry(two, one, to(&at), len);
	queue_pairs_carry(one, two, to(&from), room);
	CHECK(rsendto(one, data, most, 0, to(&from), room) == most);
	CHECK(rrecv(two, buf, sizeof(buf), 0) == most);
	/* Bytes that do not fit are lost; an empty datagram is not lost. */
	CHECK(rsendto(two, "0123456789", 10, 0, to(&at), len) == 10);
	CHECK(rrecvmsg(one, &msg, 0) == 5 && msg.msg_flags == MSG_TRUNC);
	CHECK(!memcmp(buf, "012", 3) && !memcmp(buf + 100, "34", 2));
	CHECK(rsendto(two, data, 0, 0, to(&at), len) == 0);
	CHECK(rrecv(one, buf, sizeof(buf), 0) == 0);
	/* A connected socket has one peer. */
	CHECK(!rconnect(one, to(&from), room));
	CHECK(rwrite(one, "to you", 7) == 7 && rread(two, buf, sizeof(buf)) == 7);
	CHECK(rsend(two, "x", 1, 0) == -1 && errno == EDESTADDRREQ);
	CHECK(!rconnect(two, to(&at), len));
	CHECK(rsend(two, "and you", 8, 0) == 8 && rrecv(one, buf, sizeof(buf), 0) == 8);
	CHECK(!rclose(one));
	FAILS(rsend(one, data, 1, 0), EBADF);
	CHECK(!rclose(two));
}

int main(void)
{
	between(AF_INET);
	between(AF_INET6);
	return 0;
}
