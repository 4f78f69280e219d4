// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* Delays every packet of a TUN device by a constant time, in order, and writes it to another TUN device.
 *
 * usage: relay IN OUT DELAY_NS PROCESSOR
 *
 * IN and OUT are descriptors of TUN devices, in the namespaces of the receiver and of the sender. A line on standard
 * input asks for the counters since the last line, which are written to standard output as one line of JSON; its end
 * ends the relay. A packet that finds the ring full is lost, and counted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 32768 /* a power of two */
#define SLOT_BYTES 1600
#define BATCH 64
#define NANO 1000000000LL
#define BUCKET_NS 1000
#define MOST_BATCH_NS 100000
#define BUCKETS 200000

struct slot {
	int64_t read_ns;
	int length;
	unsigned char data[SLOT_BYTES];
};

static struct slot *ring;
static uint64_t head, tail; /* packets written and read so far */
static uint32_t delays[BUCKETS];
static uint64_t packets, lost, longest;
static int64_t cpu_before_ns;

static int64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * NANO + now.tv_nsec;
}

/* Read what has arrived since then, up to one batch, and spread the times of arrival; returns the number of packets. */
static int take(int from, int64_t since_ns)
{
	static unsigned char spare[SLOT_BYTES];
	uint64_t first = tail;
	int taken = 0;
	int64_t passed_ns;

	for (; taken < BATCH; taken++) {
		int full = tail - head == SLOTS;
		struct slot *slot = &ring[tail % SLOTS];
		int length = read(from, full ? spare : slot->data, SLOT_BYTES);

		if (length <= 0)
			break;
		slot->length = full ? slot->length : length;
		tail += !full;
		lost += full;
	}
	passed_ns = clock_ns(CLOCK_MONOTONIC) - since_ns;
	for (uint64_t each = first; each != tail; each++)
		ring[each % SLOTS].read_ns = since_ns + passed_ns * (int64_t)(each - first) / (int64_t)(tail - first);
	if (tail - head > longest)
		longest = tail - head;
	return taken;
}

/* Write what is due until then, up to one batch; returns when the next packet is due, 0 for now, -1 for never. */
static int64_t pass(int to, int64_t delay_ns, int64_t slack_ns)
{
	for (int passed = 0; head != tail; passed++) {
		struct slot *slot = &ring[head % SLOTS];
		int64_t now = clock_ns(CLOCK_MONOTONIC), due = slot->read_ns + delay_ns;
		int64_t bucket = (now - slot->read_ns) / BUCKET_NS;

		if (now + slack_ns < due)
			return due;
		if (passed == BATCH)
			return 0;
		if (write(to, slot->data, slot->length) != slot->length)
			lost++;
		delays[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
		packets++;
		head++;
	}
	return -1;
}

static double quantile_us(double share)
{
	uint64_t wanted = share * packets, seen = 0;

	for (int bucket = 0; bucket < BUCKETS; bucket++) {
		seen += delays[bucket];
		if (seen > wanted)
			return (bucket + 0.5) * BUCKET_NS / 1000;
	}
	return 0;
}

static void report(void)
{
	int64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);

	printf("{\"packets\": %llu, \"lost\": %llu, \"longest\": %llu, \"median_us\": %.1f, \"p99_us\": %.1f, "
	       "\"most_us\": %.1f, \"cpu_s\": %.4f}\n",
	       (unsigned long long)packets, (unsigned long long)lost, (unsigned long long)longest,
	       quantile_us(0.5), quantile_us(0.99), quantile_us(0.9999), (cpu_ns - cpu_before_ns) / 1e9);
	fflush(stdout);
	cpu_before_ns = cpu_ns;
	memset(delays, 0, sizeof(delays));
	packets = lost = longest = 0;
}

/* Answer a line on standard input; returns 0 at its end. */
static int asked(void)
{
	char line[64];
	int length = read(STDIN_FILENO, line, sizeof(line));

	if (length <= 0)
		return 0;
	report();
	return 1;
}

/* Run before ordinary processes where that is allowed; returns whether it is. */
static int prioritise(int processor)
{
	struct sched_param priority = {.sched_priority = 20};
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	sched_setaffinity(0, sizeof(set), &set);
	prctl(PR_SET_TIMERSLACK, 1);
	return sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
}

/* Wait for so long, or until one of two descriptors can be read. */
static void until(int64_t wait_ns, struct pollfd *wanted)
{
	struct timespec wait = {.tv_sec = wait_ns / NANO, .tv_nsec = wait_ns % NANO};

	if (wait_ns > 0 || wanted)
		ppoll(wanted, wanted ? 2 : 0, wait_ns > 0 ? &wait : &(struct timespec){0}, NULL);
}

int main(int count, char **given)
{
	int from, to;
	int64_t delay_ns, batch_ns;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (count != 5)
		return 2;
	from = atoi(given[1]);
	to = atoi(given[2]);
	delay_ns = atoll(given[3]);
	ring = calloc(SLOTS, sizeof(*ring));
	if (!ring)
		return 1;
	fcntl(from, F_SETFL, fcntl(from, F_GETFL) | O_NONBLOCK);
	printf("{\"real_time\": %s}\n", prioritise(atoi(given[4])) ? "true" : "false");
	fflush(stdout);
	/* Packets that come or leave within a twentieth of the delay share one waking. */
	batch_ns = delay_ns / 20 < MOST_BATCH_NS ? delay_ns / 20 : MOST_BATCH_NS;
	for (;;) {
		struct pollfd wanted[] = {{from, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
		int64_t due = pass(to, delay_ns, batch_ns / 2), since;

		if (due)
			until(due < 0 ? NANO : due - clock_ns(CLOCK_MONOTONIC), wanted);
		since = clock_ns(CLOCK_MONOTONIC);
		if (wanted[1].revents && !asked())
			return 0;
		if (!wanted[0].revents && due)
			continue;
		if (due < 0 || due - since > batch_ns)
			until(batch_ns, NULL);
		take(from, since);
	}
}
