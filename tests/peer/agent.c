/*
 * Runs the tests' commands in the virtual machine, where it is process 1.
 *
 * Each TCP connection carries one command. First comes a line for the shell. Then the connection is
 * the command's standard input, output and errors; when the command has ended, the byte 4, its exit
 * status in decimal and a newline follow. A connection that is closed early ends the command.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Reads byte by byte, because the bytes after the line belong to the command. */
static int read_line(int fd, char *line, size_t room)
{
	size_t at = 0;

	while (at + 1 < room && read(fd, line + at, 1) == 1) {
		if (line[at] == '\n') {
			line[at] = 0;
			return 0;
		}
		at++;
	}
	return -1;
}

static void serve(int fd)
{
	char line[4096], trailer[32];
	sigset_t children;
	int status = 0, one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (read_line(fd, line, sizeof line))
		return;
	sigemptyset(&children);
	sigaddset(&children, SIGCHLD);
	sigprocmask(SIG_BLOCK, &children, NULL);
	int ended = signalfd(-1, &children, SFD_CLOEXEC);
	pid_t child = fork();
	if (child == 0) {
		sigprocmask(SIG_UNBLOCK, &children, NULL);
		setpgid(0, 0);
		dup2(fd, 0);
		dup2(fd, 1);
		dup2(fd, 2);
		close(fd);
		execl("/bin/sh", "sh", "-c", line, (char *)NULL);
		_exit(127);
	}
	struct pollfd watched[2] = {
		{ .fd = ended, .events = POLLIN },
		{ .fd = fd, .events = POLLRDHUP },
	};
	for (;;) {
		poll(watched, 2, -1);
		if (waitpid(child, &status, WNOHANG) == child)
			break;
		if (watched[1].revents & (POLLRDHUP | POLLHUP | POLLERR)) {
			kill(-child, SIGKILL);
			waitpid(child, &status, 0);
			break;
		}
		if (watched[0].revents) {
			struct signalfd_siginfo info;
			if (read(ended, &info, sizeof info) < 0)
				break;
		}
	}
	/* Processes that the command has left running do not outlive it. */
	kill(-child, SIGKILL);
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	int len = snprintf(trailer, sizeof trailer, "\004%d\n", code);
	if (write(fd, trailer, len) != len)
		return;
	shutdown(fd, SHUT_WR);
}

int main(int argc, char **argv)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_addr = in6addr_any };
	int one = 1;

	any.sin6_port = htons(argc > 1 ? atoi(argv[1]) : 7000);
	signal(SIGCHLD, SIG_IGN); /* so that no process has to wait for them */
	int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 64)) {
		perror("agent");
		return 1;
	}
	puts("agent: ready");
	fflush(stdout);
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		if (fd < 0)
			continue;
		if (fork() == 0) {
			close(listener);
			signal(SIGCHLD, SIG_DFL);
			serve(fd);
			_exit(0);
		}
		close(fd);
	}
}
