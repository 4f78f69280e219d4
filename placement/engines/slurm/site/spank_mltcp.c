// SPDX-License-Identifier: BSD-3-Clause
/*
 * A SPANK plugin: registers the cgroup of every job step's tasks at mltcpd, before they run, as job slurm-JOBID. The
 * cgroup stays as Slurm has made it. The daemon ends the registration with the last process in the cgroup.
 *
 *     cc -shared -fPIC -O2 -Wall -o /usr/local/lib/slurm/mltcp.so spank_mltcp.c     with the headers of this Slurm
 *     echo 'optional /usr/local/lib/slurm/mltcp.so' >> /etc/slurm/plugstack.conf
 *
 * Arguments in plugstack.conf: socket=PATH of the daemon, cc=NAME of a congestion control, by=step (a job of its own
 * for each step, slurm-JOBID.STEP, in place of one for all steps of a job).
 *
 * A step never fails or waits because of this: whatever is missing is one line in slurmd's log. slurmstepd runs this
 * as root.
 */
#include <errno.h>
#include <fcntl.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

SPANK_PLUGIN(mltcp, 1);

#define LONGEST_WAIT_S 2
#define LABEL_BYTES 65      /* the daemon takes 64 characters */
#define PATH_BYTES 1024
#define PACKET_BYTES 2048

struct step {
	uint32_t job;
	uint32_t step;
	uid_t uid;
	char cgroup[PATH_BYTES]; /* of its tasks, as in /proc/PID/cgroup */
	char label[LABEL_BYTES]; /* the job's name */
};

static const char *option(int count, char **options, const char *name, const char *otherwise)
{
	size_t length = strlen(name);

	for (int i = 0; i < count; i++)
		if (!strncmp(options[i], name, length) && options[i][length] == '=')
			return options[i] + length + 1;
	return otherwise;
}

/* Leave out what JSON or a terminal would take for something else. */
static void make_plain(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || (unsigned char)*text > '~' || *text == '"' || *text == '\\')
			*text = '_';
}

/* The cgroup v2 of a process. */
static bool read_cgroup(pid_t pid, char *path, size_t size)
{
	char name[32], line[PATH_BYTES];
	bool found = false;
	FILE *file;

	snprintf(name, sizeof(name), "/proc/%d/cgroup", (int)pid);
	file = fopen(name, "re");
	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file))
		if (!strncmp(line, "0::", 3)) {
			line[strcspn(line, "\n")] = '\0';
			found = strlen(line + 3) < size && strcpy(path, line + 3);
		}
	fclose(file);
	return found;
}

/*
 * Cut .../job_ID/step_S/user/task_N after "user": the cgroup of all the step's tasks, and not that of slurmstepd beside
 * it, whose connections to srun and slurmctld are Slurm's own.
 */
static bool cut_to_tasks(char *path, uint32_t job)
{
	char mark[32], *at;

	snprintf(mark, sizeof(mark), "/job_%u/step_", job);
	at = strstr(path, mark);
	if (!at || !(at = strchr(at + strlen(mark), '/')) || at[1] == '\0')
		return false;
	at[1 + strcspn(at + 1, "/")] = '\0';
	return true;
}

static bool describe(spank_t spank, struct step *step)
{
	pid_t pid;

	if (spank_get_item(spank, S_JOB_ID, &step->job) || spank_get_item(spank, S_JOB_STEPID, &step->step) ||
	    spank_get_item(spank, S_JOB_UID, &step->uid) || spank_get_item(spank, S_TASK_PID, &pid)) {
		slurm_info("mltcp: Slurm does not say which step this is; it runs without MLTCP");
		return false;
	}
	if (!read_cgroup(pid, step->cgroup, sizeof(step->cgroup)) || !cut_to_tasks(step->cgroup, step->job)) {
		slurm_info("mltcp: job %u runs without MLTCP: its step has no cgroup of the v2 hierarchy, which takes "
			   "cgroup/v2 and proctrack/cgroup",
			   step->job);
		return false;
	}
	if (spank_getenv(spank, "SLURM_JOB_NAME", step->label, sizeof(step->label)))
		step->label[0] = '\0';
	make_plain(step->label);
	return true;
}

static void name_job(const struct step *step, bool by_step, char *name, size_t size)
{
	if (!by_step)
		snprintf(name, size, "slurm-%u", step->job);
	else if (step->step == SLURM_BATCH_SCRIPT)
		snprintf(name, size, "slurm-%u.batch", step->job);
	else if (step->step == SLURM_INTERACTIVE_STEP)
		snprintf(name, size, "slurm-%u.interactive", step->job);
	else
		snprintf(name, size, "slurm-%u.%u", step->job, step->step);
}

/* Connect to the daemon; -1 with errno if it does not answer. */
static int connected(const char *path)
{
	struct timeval longest = { .tv_sec = LONGEST_WAIT_S };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd;

	if (strlen(path) >= sizeof(address.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	/* The time limit for sending is that for connecting, too. */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof(longest)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof(longest)) ||
	    connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		int error = errno;

		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

/* Send a request and receive the reply. */
static bool ask(int fd, const char *request, size_t length, char *reply, size_t size)
{
	ssize_t got;

	if (send(fd, request, length, MSG_NOSIGNAL) < 0)
		return false;
	got = recv(fd, reply, size - 1, 0);
	if (got == 0)
		errno = ECONNRESET;
	reply[got > 0 ? got : 0] = '\0';
	return got > 0;
}

static void register_step(const struct step *step, const char *job, const char *socket_path, const char *control)
{
	char request[PACKET_BYTES], reply[PACKET_BYTES];
	int length, fd = connected(socket_path);

	if (fd < 0) {
		slurm_info("mltcp: %s runs without MLTCP: no mltcpd answers at %s: %s", job, socket_path, strerror(errno));
		return;
	}
	length = snprintf(request, sizeof(request),
			  "{\"version\":1,\"request\":\"attach\",\"cgroup\":\"%s\",\"job\":\"%s\",\"label\":\"%s\","
			  "\"uid\":%u,\"control\":\"%s\"}",
			  step->cgroup, job, step->label, (unsigned int)step->uid, control);
	if (length < 0 || (size_t)length >= sizeof(request))
		slurm_info("mltcp: %s runs without MLTCP: the name of its cgroup is too long", job);
	else if (!ask(fd, request, (size_t)length, reply, sizeof(reply)))
		slurm_info("mltcp: %s runs without MLTCP: mltcpd does not reply: %s", job, strerror(errno));
	else if (!strstr(reply, "\"ok\":true"))
		slurm_info("mltcp: %s runs without MLTCP: mltcpd refuses: %s", job, reply);
	else
		slurm_verbose("mltcp: %s: new connections in %s are its flows", job, step->cgroup);
	close(fd);
}

/* Called for each task between its fork and its exec, which waits for this; the first one registers all. */
int slurm_spank_task_post_fork(spank_t spank, int count, char **options)
{
	struct step step = { 0 };
	char job[64];
	int task = 0;

	if (spank_get_item(spank, S_TASK_ID, &task) || task != 0 || !describe(spank, &step))
		return ESPANK_SUCCESS;
	name_job(&step, !strcmp(option(count, options, "by", "job"), "step"), job, sizeof(job));
	register_step(&step, job, option(count, options, "socket", "/run/mltcp/mltcpd.sock"),
		      option(count, options, "cc", "default"));
	return ESPANK_SUCCESS;
}
