/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * MLTCP, shared by every congestion control of this directory: what a job and a flow are, the iteration tracker,
 * F(bytes_ratio), and the hooks that a base algorithm calls.
 *
 * A flow that belongs to a job (its socket was tagged by attach.bpf.c) counts its acknowledged bytes into the job, so that
 * all flows of a job on this host share one bytes_ratio: an iteration is as slow as its slowest flow, and flows of one job
 * gain nothing from competing with each other. A flow without a job tracks its own iterations.
 *
 * The tracker is the twin of mltcp/iteration.py, F that of mltcp/aggressiveness.py: change both together.
 */
#pragma once

#include "kernel.bpf.h"

#define Q16_ONE 65536ULL
#define PAUSE_FLOOR_NS 5000000ULL
#define ALIKE_SHIFT 4
#define LEARN_ALIKE 2
#define MISSES_TO_FORGET 4

#define GIVEN_TOTAL 1U
#define GIVEN_GAP 2U

/* The codes of mltcp.aggressiveness.Shape. */
enum shape { SHAPE_ONE, SHAPE_LINEAR, SHAPE_QUADRATIC, SHAPE_RECIPROCAL, SHAPE_CONCAVE, SHAPE_FALLING_LINEAR,
	     SHAPE_FALLING_QUADRATIC };

/* What happens at an iteration's first bytes; see docs/ebpf.md for the measurements behind the default. */
enum start { START_KERNEL, START_AVOID, START_KEEP };

struct law {
	__u32 shape;
	__u32 slope_q16;
	__u32 intercept_q16;
	__u32 start;
	__u32 decrease_q16; /* how much of F also divides the decrease; 0: the base's decrease */
	__u32 reserved;
};

struct tracker {
	__u64 last_ns;
	__u64 start_ns;
	__u64 bytes;
	__u64 iteration;
	__u64 total_bytes;
	__u64 gap_ns;
	__u64 longest_pause_ns;
	__u64 previous_bytes;
	__u32 alike;
	__u32 misses;
	__u32 given;
	__u32 started; /* 0 before the first activity */
};

struct job {
	struct bpf_spin_lock lock;
	__u32 flows;
	struct law law;
	struct tracker tracker;
	char name[32];
	__u64 owner; /* for user space: the process that made this job */
};

struct flow {
	__u32 job;     /* 0: none */
	__u32 counted; /* this flow is in its job's count of flows */
	__u64 acked_seen;
	__u64 iteration; /* the job's iteration that this flow last took part in */
	__u64 bytes;     /* acknowledged in that iteration */
	__u32 factor_q16;
	__u32 carry;
	__u32 kept_cwnd;
	__u32 ratio_q16;
	struct tracker tracker; /* in use only without a job */
};

/* One finished iteration, as it leaves through the ring buffer. */
struct record {
	__u32 job;
	__u32 flows;
	__u64 iteration;
	__u64 start_ns;
	__u64 end_ns;
	__u64 bytes;
	__u64 total_bytes;
	__u64 gap_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct job);
} mltcp_jobs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flow);
} mltcp_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} mltcp_records SEC(".maps");

/* ---- F(bytes_ratio) ------------------------------------------------------------------------------------------- */

static __always_inline __u64 ratio_q16(__u64 acked, __u64 total)
{
	if (!total)
		return 0;
	if (acked >= total)
		return Q16_ONE;
	return (acked << 16) / total;
}

/* F of the spec, in Q16; `x` is bytes_ratio in Q16. Equation 1.2 of the thesis multiplies the increase by it. */
static __always_inline __u64 factor_q16(const struct law *law, __u64 x)
{
	__u64 s = law->slope_q16, i = law->intercept_q16, square = (x * x) >> 16;

	switch (law->shape) {
	case SHAPE_LINEAR:
		return ((s * x) >> 16) + i;
	case SHAPE_QUADRATIC:
		return ((s * square) >> 16) + i;
	case SHAPE_RECIPROCAL: {
		__u64 below = (s + i) - ((s * x) >> 16);

		return below ? (i * (s + i)) / below : Q16_ONE;
	}
	case SHAPE_CONCAVE:
		return ((s * (2 * x - square)) >> 16) + i;
	case SHAPE_FALLING_LINEAR:
		return (s + i) - ((s * x) >> 16);
	case SHAPE_FALLING_QUADRATIC:
		return (s + i) - ((s * square) >> 16);
	default:
		return Q16_ONE;
	}
}

/* ---- iterations ----------------------------------------------------------------------------------------------- */

static __always_inline bool are_alike(__u64 first, __u64 second)
{
	__u64 larger = first > second ? first : second, smaller = first > second ? second : first;

	return larger - smaller <= larger >> ALIKE_SHIFT;
}

static __always_inline void forget(struct tracker *t)
{
	t->alike = 0;
	t->misses = 0;
	t->previous_bytes = 0;
	if (!(t->given & GIVEN_TOTAL))
		t->total_bytes = 0;
	if (!(t->given & GIVEN_GAP)) {
		t->gap_ns = 0;
		t->longest_pause_ns = 0;
	}
}

/* A pause while nothing is known yet: half of the longest will separate iterations; a long one at start-up fades. */
static __always_inline void learn_gap(struct tracker *t, __u64 pause)
{
	__u64 faded = t->longest_pause_ns - t->longest_pause_ns / 4;

	t->longest_pause_ns = pause > faded ? pause : faded;
	t->gap_ns = t->longest_pause_ns / 2;
}

/* The gap follows the compute phase slowly; one outlier, clipped to twice the usual, moves it by an eighth at most. */
static __always_inline void follow_gap(struct tracker *t, __u64 pause)
{
	__u64 usual = t->longest_pause_ns;

	if (pause > 2 * usual)
		pause = 2 * usual;
	if (pause > usual)
		t->longest_pause_ns += (pause - usual) / 8;
	else
		t->longest_pause_ns -= (usual - pause) / 8;
	t->gap_ns = t->longest_pause_ns / 2;
}

static __always_inline void learn_total(struct tracker *t, __u64 pause)
{
	if (t->given & GIVEN_TOTAL)
		return;
	if (!t->total_bytes) {
		t->alike = are_alike(t->bytes, t->previous_bytes) ? t->alike + 1 : 1;
		t->previous_bytes = t->bytes;
		if (t->alike >= LEARN_ALIKE) {
			t->total_bytes = t->bytes;
			t->misses = 0;
		}
	} else if (are_alike(t->bytes, t->total_bytes)) {
		t->misses = 0;
		t->total_bytes = t->bytes;
		if (!(t->given & GIVEN_GAP))
			follow_gap(t, pause);
	} else if (++t->misses >= MISSES_TO_FORGET) {
		forget(t);
	}
}

static __always_inline void close_iteration(struct tracker *t, __u64 pause, struct record *record)
{
	record->iteration = t->iteration;
	record->start_ns = t->start_ns;
	record->end_ns = t->last_ns;
	record->bytes = t->bytes;
	t->iteration++;
	learn_total(t, pause);
	record->total_bytes = t->total_bytes;
	record->gap_ns = t->gap_ns;
}

/* Count `acked` bytes at `now`. Returns whether this finished an iteration, then described in `record`. */
static __always_inline bool observe(struct tracker *t, __u64 now, __u64 acked, struct record *record)
{
	bool finished = false;
	__u64 pause;

	if (!t->started) {
		t->started = 1;
		t->start_ns = now;
		t->last_ns = now;
		t->bytes = acked;
		return false;
	}
	pause = now > t->last_ns ? now - t->last_ns : 0;
	if (pause >= PAUSE_FLOOR_NS && !(t->given & GIVEN_GAP) && (!t->total_bytes || (t->given & GIVEN_TOTAL)))
		learn_gap(t, pause);
	if (t->gap_ns && pause > t->gap_ns && (pause >= PAUSE_FLOOR_NS || (t->given & GIVEN_GAP))) {
		if (t->bytes) {
			close_iteration(t, pause, record);
			finished = true;
		}
		t->bytes = 0;
		t->start_ns = now;
	}
	t->bytes += acked;
	t->last_ns = now;
	if (t->total_bytes && !(t->given & GIVEN_TOTAL) && t->bytes > 2 * t->total_bytes)
		forget(t);
	return finished;
}

/* ---- what a base algorithm calls ------------------------------------------------------------------------------ */

static __always_inline struct flow *flow_of(struct sock *sk)
{
	return bpf_sk_storage_get(&mltcp_flows, sk, 0, 0);
}

static __always_inline void emit(struct record *record, __u32 job, __u32 flows)
{
	record->job = job;
	record->flows = flows;
	bpf_ringbuf_output(&mltcp_records, record, sizeof(*record), 0);
}

/* A FIN takes one sequence number, which bytes_acked counts and the application never sent. */
static __always_inline __u64 payload_acked(const struct tcp_sock *tp)
{
	unsigned char state = tp->inet_conn.icsk_inet.sk.__sk_common.skc_state;
	bool closing = state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_CLOSING || state == TCP_LAST_ACK ||
		       state == TCP_TIME_WAIT || state == TCP_CLOSE;

	return tp->bytes_acked - (closing && tp->bytes_acked && tp->snd_una == tp->write_seq);
}

/* Count what was acknowledged since the last call, and set the flow's F. Returns the law in force, or none. */
static __always_inline void mltcp_count(struct sock *sk, struct flow *flow)
{
	__u64 now = bpf_ktime_get_ns(), acked_now = payload_acked(tcp_sk(sk)), acked, x;
	struct record record = {};
	bool finished;
	struct job *job;
	__u64 iteration;

	acked = acked_now > flow->acked_seen ? acked_now - flow->acked_seen : 0;
	flow->acked_seen += acked;
	job = flow->job ? bpf_map_lookup_elem(&mltcp_jobs, &flow->job) : NULL;
	if (job) {
		bpf_spin_lock(&job->lock);
		finished = observe(&job->tracker, now, acked, &record);
		x = ratio_q16(job->tracker.bytes, job->tracker.total_bytes);
		iteration = job->tracker.iteration;
		flow->factor_q16 = job->tracker.total_bytes ? factor_q16(&job->law, x) : Q16_ONE;
		bpf_spin_unlock(&job->lock);
		if (finished)
			emit(&record, flow->job, job->flows);
	} else {
		const struct law paper = { SHAPE_LINEAR, 7 * Q16_ONE / 4, Q16_ONE / 4 };

		finished = observe(&flow->tracker, now, acked, &record);
		x = ratio_q16(flow->tracker.bytes, flow->tracker.total_bytes);
		iteration = flow->tracker.iteration;
		flow->factor_q16 = flow->tracker.total_bytes ? factor_q16(&paper, x) : Q16_ONE;
		if (finished)
			emit(&record, 0, 1);
	}
	flow->ratio_q16 = x;
	if (flow->iteration != iteration) {
		flow->iteration = iteration;
		flow->bytes = 0;
	}
	flow->bytes += acked;
}

static __always_inline void mltcp_init(struct sock *sk)
{
	struct flow *flow = bpf_sk_storage_get(&mltcp_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	struct job *job;

	if (!flow)
		return;
	flow->acked_seen = tcp_sk(sk)->bytes_acked;
	flow->factor_q16 = Q16_ONE;
	if (flow->counted || !flow->job)
		return;
	job = bpf_map_lookup_elem(&mltcp_jobs, &flow->job);
	if (job) {
		flow->counted = 1;
		__sync_fetch_and_add(&job->flows, 1);
	}
}

/* The last flow of a job closes the job's last iteration: no later acknowledgement will. */
static __always_inline void mltcp_release(struct sock *sk)
{
	struct flow *flow = flow_of(sk);
	struct record record = {};
	struct job *job;
	bool finished = false;

	if (!flow)
		return;
	mltcp_count(sk, flow);
	job = flow->counted ? bpf_map_lookup_elem(&mltcp_jobs, &flow->job) : NULL;
	flow->counted = 0;
	if (!job) {
		if (!flow->job && flow->tracker.bytes) {
			close_iteration(&flow->tracker, 0, &record);
			flow->tracker.bytes = 0;
			emit(&record, 0, 1);
		}
		return;
	}
	bpf_spin_lock(&job->lock);
	if (job->flows)
		job->flows--;
	if (!job->flows && job->tracker.bytes) {
		close_iteration(&job->tracker, job->tracker.longest_pause_ns, &record);
		job->tracker.bytes = 0;
		finished = true;
	}
	bpf_spin_unlock(&job->lock);
	if (finished)
		emit(&record, flow->job, 0);
}

static __always_inline void mltcp_acked(struct sock *sk)
{
	struct flow *flow = flow_of(sk);

	if (flow)
		mltcp_count(sk, flow);
}

/* How many of `acked` packets the increase step is to see: F times as many, the remainder carried to the next. */
static __always_inline __u32 mltcp_scaled(struct sock *sk, __u32 acked)
{
	struct flow *flow = flow_of(sk);
	__u64 scaled;

	if (!flow || flow->factor_q16 == Q16_ONE)
		return acked;
	scaled = flow->carry + (__u64)acked * flow->factor_q16;
	flow->carry = scaled & (Q16_ONE - 1);
	return scaled >> 16;
}

/*
 * The spec allows F to act on the decrease too: with decrease d in [0, 1] the window lost to a congestion signal is divided
 * by 1 - d + d * F, so that a flow late in its iteration gives way less. d = 0 leaves the base's decrease as it is.
 */
static __always_inline __u32 mltcp_decreased(struct sock *sk, __u32 ssthresh)
{
	struct flow *flow = flow_of(sk);
	struct job *job = flow && flow->job ? bpf_map_lookup_elem(&mltcp_jobs, &flow->job) : NULL;
	__u64 divisor, lost, cwnd = tcp_sk(sk)->snd_cwnd, d = job ? job->law.decrease_q16 : 0;

	if (!d || flow->factor_q16 == Q16_ONE || ssthresh >= cwnd)
		return ssthresh;
	divisor = Q16_ONE - d + ((d * flow->factor_q16) >> 16);
	lost = ((cwnd - ssthresh) << 16) / (divisor ? divisor : 1);
	return lost + 2 > cwnd ? 2 : cwnd - lost;
}

static __always_inline __u32 start_of(const struct flow *flow)
{
	struct job *job = flow->job ? bpf_map_lookup_elem(&mltcp_jobs, &flow->job) : NULL;

	return job ? job->law.start : START_KERNEL;
}

static __always_inline void mltcp_event(struct sock *sk, enum tcp_ca_event event)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct flow *flow;
	__u64 before_event;
	__u32 start;

	if (event != CA_EVENT_TX_START && event != CA_EVENT_CWND_RESTART)
		return;
	flow = flow_of(sk);
	if (!flow)
		return;
	if (event == CA_EVENT_CWND_RESTART) {
		flow->kept_cwnd = tp->snd_cwnd;
		return;
	}
	before_event = flow->iteration;
	mltcp_count(sk, flow);
	if (flow->iteration == before_event || flow->factor_q16 == Q16_ONE)
		return;
	start = start_of(flow);
	if (start == START_KEEP && flow->kept_cwnd > tp->snd_cwnd)
		tp->snd_cwnd = flow->kept_cwnd;
	if (start != START_KERNEL && tp->snd_ssthresh > tp->snd_cwnd)
		tp->snd_ssthresh = tp->snd_cwnd;
	flow->kept_cwnd = 0;
}
