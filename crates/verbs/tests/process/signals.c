/* A program that takes a signal by sigwait or signalfd blocks it in its own threads. The threads of
 * the library must not take it either: its default action would end the process. */
#include <dirent.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "connected.h"

#define TIMES 300

static unsigned long long blocked_by(const char *task)
{
	char path[300], line[200];
	unsigned long long mask = 0;
	int found = 0;
	FILE *status;
	snprintf(path, sizeof(path), "/proc/self/task/%s/status", task);
	status = fopen(path, "r");
	CHECK(status);
	while (fgets(line, sizeof(line), status))
		found += sscanf(line, "SigBlk: %llx", &mask) == 1;
	fclose(status);
	CHECK(found == 1);
	return mask;
}

/* All threads but the first are the library's. */
static int threads_that_block(int signal)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	int threads = 0;
	CHECK(tasks);
	while ((task = readdir(tasks)))
		if (task->d_name[0] != '.' && atoi(task->d_name) != getpid()) {
			threads++;
			CHECK(blocked_by(task->d_name) >> (signal - 1) & 1);
		}
	closedir(tasks);
	return threads;
}

int main(void)
{
	static struct ends ends;
	struct signalfd_siginfo info;
	sigset_t set;
	int fd, got;

	/* The library starts its threads while the program blocks nothing. */
	connect_ends(&ends);
	CHECK(!sigemptyset(&set) && !sigaddset(&set, SIGUSR2));
	CHECK(!pthread_sigmask(SIG_BLOCK, &set, NULL));
	for (int i = 0; i < TIMES; i++) {
		write_once(&ends);
		CHECK(!kill(getpid(), SIGUSR2));
		CHECK(!sigwait(&set, &got) && got == SIGUSR2);
	}
	fd = signalfd(-1, &set, 0);
	CHECK(fd >= 0);
	for (int i = 0; i < TIMES; i++) {
		write_once(&ends);
		CHECK(!kill(getpid(), SIGUSR2));
		CHECK(read(fd, &info, sizeof(info)) == sizeof(info) && info.ssi_signo == SIGUSR2);
	}
	CHECK(threads_that_block(SIGUSR2) >= 1);
	CHECK(threads_that_block(SIGTERM) >= 1);
	CHECK(threads_that_block(SIGALRM) >= 1);
	return 0;
}
