/* The handler of a timer's signal runs every millisecond, as a profiler's does: calls that wait are
 * interrupted again and again. */
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include "connected.h"

#define TOTAL (8 << 20)

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

/* An rsocket that listens; `at` becomes its address. */
static int listens(struct sockaddr_in *at)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), size = TOTAL;
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
	static char bytes[1 << 16];
	struct sockaddr_in at;
	int listener = listens(&at), total = 0, fd;
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
	static char bytes[TOTAL];
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
		CHECK(sent > 0 || errno == EINTR);
		done += sent > 0 ? sent : 0;
	}
	CHECK(!rclose(fd));
	stop_the_timer();
	stopped = 0;
	CHECK(!kill(receiver, SIGCONT));
	CHECK(waitpid(receiver, &status, 0) == receiver && WIFEXITED(status));
	CHECK(WEXITSTATUS(status) == 0);
}

int main(void)
{
	int fds[2];
	pid_t receiver;
	CHECK(!pipe(fds));
	receiver = fork();
	CHECK(receiver >= 0);
	if (!receiver)
		return receives(fds[1]);
	a_close_waits_for_what_was_sent(fds[0], receiver);
	return 0;
}
