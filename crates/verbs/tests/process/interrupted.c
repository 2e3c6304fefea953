/* The handler of a timer's signal runs every millisecond, as a profiler's does: calls that wait are
 * interrupted again and again. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#define CHECK(what) do { if (!(what)) { \
	dprintf(1, "line %d: %s (errno %d)\n", __LINE__, #what, errno); _Exit(1); } } while (0)

#define TOTAL (8 << 20)
#define SMALL (1 << 16)

static char bytes[TOTAL];
static volatile sig_atomic_t ticks, go_on_at;
static volatile pid_t stopped;

static void tick(int signal)
{
	int before = errno;
	ticks++;
	if (stopped && ticks == go_on_at)
		kill(stopped, SIGCONT);
	errno = before;
}

static void let_the_timer_run(int flags)
{
	struct sigaction action = { .sa_handler = tick, .sa_flags = flags };
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
	CHECK(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &often, NULL));
}

static void stop_the_timer(void)
{
	struct itimerval never = { { 0, 0 }, { 0, 0 } };
	CHECK(!setitimer(ITIMER_REAL, &never, NULL));
}

/* An rsocket that listens, whose streams have so large a buffer; `at` becomes its address. */
static int listens(struct sockaddr_in *at, int size)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(*at);
	*at = (struct sockaddr_in) { .sin_family = AF_INET };
	at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(fd >= 0 && !rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)));
	CHECK(!rbind(fd, (struct sockaddr *) at, len) && !rlisten(fd, 1));
	CHECK(!rgetsockname(fd, (struct sockaddr *) at, &len));
	return fd;
}

/* Counts the bytes of a stream up to its end. */
static int receives(int told)
{
	struct sockaddr_in at;
	int listener = listens(&at, TOTAL), total = 0, fd;
	ssize_t got;
	CHECK(write(told, &at, sizeof(at)) == sizeof(at));
	fd = raccept(listener, NULL, NULL);
	CHECK(fd >= 0 && rsend(fd, "x", 1, 0) == 1);
	while ((got = rrecv(fd, bytes, sizeof(bytes), 0)) > 0)
		total += got;
	CHECK(got == 0 && total == TOTAL);
	return 0;
}

/* A stream is closed while its peer is stopped, and so acknowledges nothing. */
static void a_close_waits_for_what_was_sent(int from, pid_t receiver)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), size = TOTAL, status, done = 0;
	struct sockaddr_in at;
	CHECK(read(from, &at, sizeof(at)) == sizeof(at));
	CHECK(fd >= 0 && !rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
	CHECK(!rconnect(fd, (struct sockaddr *) &at, sizeof(at)));
	CHECK(rrecv(fd, bytes, 1, 0) == 1);
	CHECK(!kill(receiver, SIGSTOP));
	CHECK(waitpid(receiver, &status, WUNTRACED) == receiver && WIFSTOPPED(status));
	go_on_at = 100;
	stopped = receiver;
	let_the_timer_run(SA_RESTART);
	while (done < TOTAL) {
		ssize_t sent = rsend(fd, bytes + done, TOTAL - done, 0);
		CHECK(sent > 0);
		done += sent;
	}
	CHECK(!rclose(fd));
	stop_the_timer();
	stopped = 0;
	CHECK(!kill(receiver, SIGCONT));
	CHECK(waitpid(receiver, &status, 0) == receiver && WIFEXITED(status));
	CHECK(WEXITSTATUS(status) == 0);
}

/* A thread that the timer does not interrupt does its work once the handler has run some more. */
static pthread_t later(void *(*work)(void *), void *arg)
{
	pthread_t thread;
	sigset_t set;
	CHECK(!sigemptyset(&set) && !sigaddset(&set, SIGALRM));
	CHECK(!pthread_sigmask(SIG_BLOCK, &set, NULL));
	CHECK(!pthread_create(&thread, NULL, work, arg));
	CHECK(!pthread_sigmask(SIG_UNBLOCK, &set, NULL));
	return thread;
}

static void let_it_tick(void)
{
	int until = ticks + 30;
	while (ticks < until)
		usleep(1000);
}

static struct sockaddr_in at;

static void *resolves(void *id)
{
	let_it_tick();
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *) &at, 2000));
	return NULL;
}

static void an_event_is_waited_for(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	pthread_t thread;
	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	at = (struct sockaddr_in) { .sin_family = AF_INET, .sin_port = htons(1) };
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	let_the_timer_run(SA_RESTART);
	thread = later(resolves, id);
	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && !rdma_ack_cm_event(event));
	CHECK(!pthread_join(thread, NULL));
	/* Without SA_RESTART, a program wants to know of the signal. */
	let_the_timer_run(0);
	errno = 0;
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EINTR);
	stop_the_timer();
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* Each connection has queue pairs of its own. */
static unsigned next_qp_num = 0x1234;

static void *accepts(void *channel)
{
	struct rdma_conn_param param = { .qp_num = next_qp_num++ };
	struct rdma_cm_event *event;
	let_it_tick();
	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && !rdma_accept(event->id, &param));
	CHECK(!rdma_ack_cm_event(event));
	return NULL;
}

/* A synchronous call cannot be made again: it sees through what it has asked for. */
static void a_synchronous_call_sees_it_through(int flags)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .qp_num = next_qp_num++ };
	struct rdma_cm_id *listener, *id;
	pthread_t thread;
	at.sin_port = 0;
	CHECK(channel && !rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *) &at) && !rdma_listen(listener, 1));
	at.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	let_the_timer_run(flags);
	thread = later(accepts, channel);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *) &at, 2000));
	CHECK(!rdma_resolve_route(id, 2000) && !rdma_connect(id, &param));
	stop_the_timer();
	CHECK(!pthread_join(thread, NULL));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(listener));
}

static void *is_accepted(void *listener)
{
	int fd;
	let_it_tick();
	fd = raccept(*(int *) listener, NULL, NULL);
	CHECK(fd >= 0 && !rclose(fd));
	return NULL;
}

static void *connects(void *fd)
{
	let_it_tick();
	CHECK(!rconnect(*(int *) fd, (struct sockaddr *) &at, sizeof(at)));
	return NULL;
}

static void sockets_connect(int ends[2])
{
	int listener = listens(&at, SMALL);
	pthread_t thread;
	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	let_the_timer_run(0);
	thread = later(is_accepted, &listener);
	CHECK(!rconnect(ends[0], (struct sockaddr *) &at, sizeof(at)));
	CHECK(!pthread_join(thread, NULL) && !rclose(ends[0]));
	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	let_the_timer_run(SA_RESTART);
	thread = later(connects, &ends[0]);
	ends[1] = raccept(listener, NULL, NULL);
	CHECK(ends[1] >= 0);
	CHECK(!pthread_join(thread, NULL));
	let_the_timer_run(0);
	errno = 0;
	CHECK(raccept(listener, NULL, NULL) == -1 && errno == EINTR);
	stop_the_timer();
	CHECK(!rclose(listener));
}

/* Datagram sockets, of which the first sends to the second. */
static void datagram_sockets(int ends[2])
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	socklen_t len = sizeof(to);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	ends[0] = rsocket(AF_INET, SOCK_DGRAM, 0);
	ends[1] = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(ends[0] >= 0 && ends[1] >= 0 && !rbind(ends[1], (struct sockaddr *) &to, len));
	CHECK(!rgetsockname(ends[1], (struct sockaddr *) &to, &len));
	CHECK(!rconnect(ends[0], (struct sockaddr *) &to, len));
}

static void *sends(void *fd)
{
	let_it_tick();
	CHECK(rsend(*(int *) fd, "x", 1, 0) == 1);
	return NULL;
}

static volatile sig_atomic_t told, enough;

static void on_told(int signal)
{
	(void) signal;
	told++;
}

/* Sends a signal until it has had its effect: one that comes while nothing is waited for has none. */
static void *tells(void *receiver)
{
	let_it_tick();
	while (!enough) {
		CHECK(!pthread_kill(*(pthread_t *) receiver, SIGUSR1));
		usleep(1000);
	}
	return NULL;
}

/* The handler of SIGALRM runs every millisecond; SIGUSR1's lets no call go on. */
static void a_receive_ends_as_handlers_want(int ends[2])
{
	struct sigaction action = { .sa_handler = on_told };
	pthread_t thread, self = pthread_self();
	char byte;
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	let_the_timer_run(SA_RESTART);
	thread = later(sends, &ends[0]);
	CHECK(rrecv(ends[1], &byte, 1, 0) == 1);
	CHECK(!pthread_join(thread, NULL));
	told = enough = errno = 0;
	thread = later(tells, &self);
	CHECK(rrecv(ends[1], &byte, 1, 0) == -1 && errno == EINTR && told);
	enough = 1;
	CHECK(!pthread_join(thread, NULL));
	let_the_timer_run(0);
	errno = 0;
	CHECK(rrecv(ends[1], &byte, 1, 0) == -1 && errno == EINTR);
	stop_the_timer();
}

static void *reads(void *fd)
{
	static char got[SMALL];
	int total = 0;
	let_it_tick();
	while (total < TOTAL) {
		ssize_t part = rrecv(*(int *) fd, got, sizeof(got), 0);
		CHECK(part > 0);
		total += part;
	}
	return NULL;
}

/* A call that has sent some of its bytes says how many. */
static void a_send_ends_as_handlers_want(int ends[2])
{
	pthread_t thread;
	ssize_t sent;
	let_the_timer_run(SA_RESTART);
	thread = later(reads, &ends[1]);
	CHECK(rsend(ends[0], bytes, TOTAL, 0) == TOTAL);
	CHECK(!pthread_join(thread, NULL));
	let_the_timer_run(0);
	errno = 0;
	while ((sent = rsend(ends[0], bytes, TOTAL, 0)) > 0)
		CHECK(sent < TOTAL);
	CHECK(sent == -1 && errno == EINTR);
	stop_the_timer();
}

int main(void)
{
	int fds[2], streams[2], datagrams[2];
	pid_t receiver;
	CHECK(!pipe(fds));
	receiver = fork();
	CHECK(receiver >= 0);
	if (!receiver) {
		CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));
		return receives(fds[1]);
	}
	a_close_waits_for_what_was_sent(fds[0], receiver);
	an_event_is_waited_for();
	a_synchronous_call_sees_it_through(SA_RESTART);
	a_synchronous_call_sees_it_through(0);
	sockets_connect(streams);
	a_receive_ends_as_handlers_want(streams);
	a_send_ends_as_handlers_want(streams);
	CHECK(!rclose(streams[0]) && !rclose(streams[1]));
	datagram_sockets(datagrams);
	a_receive_ends_as_handlers_want(datagrams);
	CHECK(!rclose(datagrams[0]) && !rclose(datagrams[1]));
	return 0;
}
