/* A program may call exit() in a signal's handler, wherever the signal has interrupted it: here while
 * it posts and polls, or makes and destroys objects, and so mostly inside the library or the
 * allocator. The process must end. */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "connected.h"

#define TRIES 60
#define PATIENCE_MS 30000

static void leave(int signal)
{
	exit(signal == SIGTERM ? 7 : 8);
}

static void make_and_destroy(struct ends *ends)
{
	struct rdma_cm_id *id;
	struct ibv_mr *region = ibv_reg_mr(ends->client->pd, ends->bytes, 100, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(ends->client->verbs, 8, NULL, NULL, 0);
	CHECK(region && cq && !rdma_create_id(ends->client->channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!ibv_dereg_mr(region) && !ibv_destroy_cq(cq) && !rdma_destroy_id(id));
}

static void work(int told, int posts)
{
	static struct ends ends;
	connect_ends(&ends);
	signal(SIGTERM, leave);
	CHECK(write(told, "x", 1) == 1);
	for (;;)
		posts ? write_once(&ends) : make_and_destroy(&ends);
}

/* Waits for the end of a child; it alone holds the other end of the pipe. */
static void ends_with(pid_t child, int pipe, int code)
{
	struct pollfd end = { .fd = pipe };
	int status;
	if (poll(&end, 1, PATIENCE_MS) != 1) {
		printf("a process that called exit() in a handler hangs\n");
		kill(child, SIGKILL);
		exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

int main(void)
{
	for (int i = 0; i < TRIES; i++) {
		struct timespec later = { 0, 37000 * i };
		int fds[2];
		char byte;
		pid_t child;
		CHECK(!pipe(fds));
		child = fork();
		CHECK(child >= 0);
		if (!child) {
			close(fds[0]);
			work(fds[1], i % 2);
		}
		close(fds[1]);
		CHECK(read(fds[0], &byte, 1) == 1);
		nanosleep(&later, NULL);
		CHECK(!kill(child, SIGTERM));
		ends_with(child, fds[0], 7);
		close(fds[0]);
	}
	return 0;
}
