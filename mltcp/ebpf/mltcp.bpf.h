/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * MLTCP, shared by every congestion control of this directory: jobs and flows, the iteration tracker, F(bytes_ratio), and
 * the hooks that a base algorithm calls. All functions begin with mltcp_.
 *
 * A flow that belongs to a job (attach.bpf.c has tagged its socket) counts its acknowledged bytes into the job, so that all
 * flows of a job on this host share one bytes_ratio: an iteration is as slow as its slowest flow, and flows of one job gain
 * nothing from competing with each other. A flow without a job tracks its own iterations.
 *
 * The tracker is the twin of mltcp/control/iteration.py, F that of mltcp/control/aggressiveness.py, and the tests compare
 * them: change both together. Source: MLTCP, arXiv 2402.09589.
 */
#pragma once

#include "kernel.bpf.h"

#define Q16_ONE 65536ULL
/* As in mltcp/control/iteration.py, which has the reasons. */
#define PAUSE_FLOOR_NS 5000000ULL
#define RUNGS 14
#define ALIKE_SHIFT 4
#define LEARN_SHIFT 6
#define LEARN_ALIKE 2
#define MISSES_TO_FORGET 4
#define LARGEST_REGROUPING 16
#define SMALL_SHIFT 4
#define MEAN_WINDOWS (1ULL << 14)
#define SHORTEST_STRETCH_NS (4 * PAUSE_FLOOR_NS)
#define SILENCES_IN_STRETCH 4

#define GIVEN_TOTAL 1U
#define GIVEN_GAP 2U

/* The codes of mltcp.control.aggressiveness.Shape. */
enum shape { SHAPE_ONE, SHAPE_LINEAR, SHAPE_QUADRATIC, SHAPE_RECIPROCAL, SHAPE_CONCAVE, SHAPE_FALLING_LINEAR,
	     SHAPE_FALLING_QUADRATIC, SHAPE_REMAINING };

/* The window of an iteration's first bytes; docs/ebpf.md has the measurements behind the default. */
enum start { START_KERNEL, START_AVOID, START_KEEP, START_PROBE, START_LOOK };

/* As in job_entries.py. */
#define MOST_JOBS 4096

/* START_PROBE: the first window of an iteration, in packets. */
#define PROBE_CWND 4

/*
 * START_LOOK: the window while the others' queue lasts. The share of the link that a job takes while it begins and another
 * one ends decides how far jobs of different periods hold, and what it costs (mltcp/control/window_model/holding.py).
 */
#define LOOK_CWND 2

struct law {
	__u32 shape;
	__u32 slope_q16;
	__u32 intercept_q16;
	__u32 start;
	__u32 decrease_q16; /* d of mltcp_decreased(), 0 to 1; 0: the base's decrease */
	__u32 increase_q16; /* the largest F on the increase; 0: no limit */
	__u32 reference_us; /* F is scaled by sqrt(reference / time to send an iteration); 0: not scaled */
	__u32 reserved;
};

/* Counts the bytes between pauses of at least a certain length. */
struct rung {
	__u64 mark;
	__u64 previous_bytes;
	__u64 alike;
};

struct tracker {
	__u64 last_ns; /* 0 before the first activity */
	__u64 start_ns;
	__u64 bytes;
	__u64 iteration;
	__u64 total_bytes;
	__u64 gap_ns;
	__u64 longest_pause_ns;
	__u64 seen_bytes;
	__u32 misses;
	__u32 given;
	__u32 gap_settled; /* given, or learned: until then gap_ns is a guess */
	__u32 reserved;
	/* Small traffic: since stretch_ns there has been nothing else; a window of PAUSE_FLOOR_NS has few bytes or not. */
	__u64 stretch_ns;
	__u64 stretch_mark;
	__u64 silence_ns; /* the longest in the stretch */
	__u64 window_ns;
	__u64 window_bytes;
	__u64 window_floor;
	__u64 mean_from_ns;
	__u64 mean_bytes;
	struct rung rungs[RUNGS];
};

struct job {
	struct bpf_spin_lock lock;
	__u32 reserved_count;
	struct law law;
	struct tracker tracker;
	char name[32];
	__u64 owner; /* for user space: the process that created the entry */
	__u64 sending_ns; /* the time to send an iteration without competition: a minimum that is slowly forgotten */
	__u32 scale_q16;  /* of F, by mltcp_scale(); 0 before the first iteration */
	__u32 reserved;
};

struct flow {
	__u32 job;     /* 0: none */
	__u32 counted; /* whether this flow is included in its job's count */
	__u64 acked_seen;
	__u64 iteration; /* the last iteration of the job in which this flow sent */
	__u64 bytes;     /* acknowledged in that iteration */
	__u32 factor_q16;
	__u32 kept_cwnd;
	__u32 ratio_q16;
	__u32 good_cwnd;
	__u32 lost_q16; /* the fraction of a packet by which the window has still to be decreased */
	__u32 looks; /* whether the next round trip is to tell if others fill the queue */
	__u32 level; /* of the cgroup whose program has tagged it; 0: none has */
	__u32 active_ms; /* when something of it was last acknowledged */
	struct tracker tracker; /* only used without a job */
};

/* One finished iteration, as written to the ring buffer. */
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
	__uint(max_entries, MOST_JOBS);
	__type(key, __u32);
	__type(value, struct job);
} mltcp_jobs SEC(".maps");

/* The number of flows of each job. Only the kernel writes it, while user space replaces entries of mltcp_jobs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_JOBS);
	__type(key, __u32);
	__type(value, __u32);
} mltcp_counts SEC(".maps");

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

/* bytes_ratio = min(1, acked / total) in Q16; 0 while the total is unknown. */
static __always_inline __u64 mltcp_bytes_ratio(__u64 acked, __u64 total)
{
	if (!total)
		return 0;
	if (acked >= total)
		return Q16_ONE;
	return (acked << 16) / total;
}

/*
 * F(bytes_ratio) in Q16, with x = bytes_ratio in Q16. MLTCP, arXiv 2402.09589: F = slope * bytes_ratio + intercept; equation
 * 1.2 of the thesis multiplies the increase step by it. The other shapes are those of mltcp/control/aggressiveness.py.
 */
static __always_inline __u64 mltcp_factor(const struct law *law, __u64 x, __u64 scale)
{
	__u64 s = law->slope_q16, i = law->intercept_q16, square = (x * x) >> 16, rest = Q16_ONE - x;

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
	case SHAPE_REMAINING: {
		__u64 f = rest ? ((i * scale) << 16) / (rest * rest) : s + i;

		return f < s + i ? f : s + i;
	}
	default:
		return Q16_ONE;
	}
}

/* ---- iterations ----------------------------------------------------------------------------------------------- */

/* |first - second| <= max(first, second) / 2^shift */
static __always_inline bool mltcp_are_alike(__u64 first, __u64 second, __u32 shift)
{
	__u64 larger = first > second ? first : second, smaller = first > second ? second : first;

	return larger - smaller <= larger >> shift;
}

/* Whether total_bytes is known and the gap is more than a guess; F is 1 until then. */
static __always_inline bool mltcp_is_recognised(const struct tracker *t)
{
	return t->total_bytes && (t->gap_settled || t->given & GIVEN_GAP);
}

/* Return to learning everything that was not given; the rungs keep their counts. */
static __always_inline void mltcp_forget(struct tracker *t)
{
	t->misses = 0;
	if (!(t->given & GIVEN_TOTAL))
		t->total_bytes = 0;
	if (!(t->given & GIVEN_GAP)) {
		t->gap_settled = 0;
		t->longest_pause_ns = 0;
		t->gap_ns = 0;
	}
}

/* Let the gap follow slow changes of the compute time, by 1/8 of the difference; a single long pause is ignored. */
static __always_inline void mltcp_follow(struct tracker *t, __u64 pause)
{
	if (pause < t->longest_pause_ns)
		t->longest_pause_ns -= (t->longest_pause_ns - pause) >> 3;
	else if (pause <= 2 * t->longest_pause_ns)
		t->longest_pause_ns += (pause - t->longest_pause_ns) >> 3;
	t->gap_ns = t->longest_pause_ns >> 1;
}

/* Compare the iteration that this pause ends with total_bytes; forget after MISSES_TO_FORGET misses in a row. */
static __always_inline void mltcp_check(struct tracker *t, __u64 pause)
{
	if (!mltcp_are_alike(t->bytes, t->total_bytes, ALIKE_SHIFT)) {
		if (++t->misses >= MISSES_TO_FORGET)
			mltcp_forget(t);
		return;
	}
	t->misses = 0;
	if (!(t->given & GIVEN_TOTAL))
		t->total_bytes = t->bytes;
	if (!(t->given & GIVEN_GAP))
		mltcp_follow(t, pause);
}

/* Close the count of a rung at a pause of its length, after `seen` bytes in all. */
static __always_inline void mltcp_count_rung(struct rung *rung, __u64 seen)
{
	__u64 enclosed = seen - rung->mark;

	if (seen <= rung->mark)
		return;
	rung->alike = mltcp_are_alike(enclosed, rung->previous_bytes, LEARN_SHIFT) ? rung->alike + 1 : 1;
	rung->previous_bytes = enclosed;
	rung->mark = seen;
}

/* Whether the counts of a rung show iterations that are not known yet. */
static __always_inline bool mltcp_teaches(const struct tracker *t, __u64 alike, __u64 bytes, __u64 pause)
{
	if (t->given & GIVEN_TOTAL)
		return !(t->gap_settled || t->given & GIVEN_GAP) && mltcp_are_alike(bytes, t->total_bytes, ALIKE_SHIFT);
	if (alike < LEARN_ALIKE)
		return false;
	if (!t->total_bytes)
		return true;
	return !(t->given & GIVEN_GAP) && pause > 2 * t->longest_pause_ns &&
	       !mltcp_are_alike(bytes, t->total_bytes, ALIKE_SHIFT) && bytes <= LARGEST_REGROUPING * t->total_bytes;
}

/* Whether a silence at the begin of small traffic was taken for the whole pause. */
static __always_inline bool mltcp_teaches_longer(const struct tracker *t, __u64 alike, __u64 bytes, __u64 pause)
{
	return t->gap_settled && !(t->given & GIVEN_GAP) && pause > 2 * t->longest_pause_ns &&
	       (t->given & GIVEN_TOTAL || alike >= LEARN_ALIKE) && mltcp_are_alike(bytes, t->total_bytes, ALIKE_SHIFT);
}

/* Count a pause on the rungs, and learn total_bytes and the gap from the highest one that counts it. */
static __always_inline void mltcp_learn(struct tracker *t, __u64 pause, bool holds_small)
{
	__u64 alike = 0, bytes = 0;

	/* Visit every rung that counts a pause of this length; the last one visited is the highest. */
#pragma unroll
	for (int k = 0; k < RUNGS; k++) {
		if (k && (t->given & GIVEN_GAP || pause < PAUSE_FLOOR_NS << k))
			break;
		mltcp_count_rung(&t->rungs[k], t->seen_bytes);
		alike = t->rungs[k].alike;
		bytes = t->rungs[k].previous_bytes;
	}
	if (mltcp_teaches(t, alike, bytes, pause) || (holds_small && mltcp_teaches_longer(t, alike, bytes, pause))) {
		if (!(t->given & GIVEN_TOTAL))
			t->total_bytes = bytes;
		if (!(t->given & GIVEN_GAP)) {
			t->longest_pause_ns = pause;
			t->gap_ns = pause >> 1;
		}
		t->gap_settled = 1;
		t->misses = 0;
	} else if (!t->gap_settled && !(t->given & GIVEN_GAP)) {
		__u64 faded = t->longest_pause_ns - (t->longest_pause_ns >> 2);

		t->longest_pause_ns = pause > faded ? pause : faded;
		t->gap_ns = t->longest_pause_ns >> 1;
	}
}

/* End the current iteration and describe it in `record`; false if nothing was sent in it. */
static __always_inline bool mltcp_close_iteration(struct tracker *t, __u64 now, struct record *record)
{
	bool finished = t->bytes != 0;

	if (finished) {
		record->iteration = t->iteration;
		record->start_ns = t->start_ns;
		record->end_ns = t->last_ns;
		record->bytes = t->bytes;
		record->total_bytes = t->total_bytes;
		record->gap_ns = t->gap_ns;
		t->iteration++;
	}
	t->start_ns = now;
	t->bytes = 0;
	return finished;
}

/* Handle a pause that ends at `now`; returns whether it ends an iteration. */
static __always_inline bool mltcp_after_pause(struct tracker *t, __u64 pause, __u64 now, bool holds_small,
					      struct record *record)
{
	if (t->given & GIVEN_GAP ? pause <= t->gap_ns : pause < PAUSE_FLOOR_NS)
		return false;
	if (mltcp_is_recognised(t) && t->bytes && pause > t->gap_ns)
		mltcp_check(t, pause);
	mltcp_learn(t, pause, holds_small);
	return pause > t->gap_ns && mltcp_close_iteration(t, now, record);
}

/* Begin to count the bytes of the next PAUSE_FLOOR_NS, and set how many are few: a part of the mean. */
static __always_inline void mltcp_begin_window(struct tracker *t, __u64 now)
{
	__u64 windows = (now - t->mean_from_ns) / PAUSE_FLOOR_NS + 1;

	t->mean_bytes += t->window_bytes;
	t->window_ns = now;
	t->window_bytes = 0;
	t->window_floor = t->mean_bytes / windows >> SMALL_SHIFT;
	if (windows >= MEAN_WINDOWS) {
		t->mean_bytes >>= 1;
		t->mean_from_ns += (now - t->mean_from_ns) >> 1;
	}
}

/* Whether the stretch of small traffic up to this window was a pause. */
static __always_inline bool mltcp_is_stretch(const struct tracker *t)
{
	return t->window_ns >= t->stretch_ns + SHORTEST_STRETCH_NS &&
	       t->window_ns - t->stretch_ns >= SILENCES_IN_STRETCH * t->silence_ns;
}

/* Whether a silence separates small traffic from small traffic, and so teaches nothing. */
static __always_inline bool mltcp_is_within_small(const struct tracker *t, __u64 silence, __u64 now)
{
	return t->stretch_ns < t->last_ns && 2 * silence <= now - t->stretch_ns;
}

/*
 * Count `acked` bytes at `now`. `idle` is how long the flow was silent that begins to send now, otherwise 0. Returns whether
 * this finished an iteration, which `record` then describes.
 */
static __always_inline bool mltcp_observe(struct tracker *t, __u64 now, __u64 acked, __u64 idle, struct record *record)
{
	__u64 silence = 0, pause = 0, until = now, last, small = 0, within;
	bool active, stretch, finished = false;

	if (!t->last_ns) {
		t->start_ns = t->last_ns = t->mean_from_ns = t->stretch_ns = t->window_ns = now;
	} else if (now > t->last_ns) {
		silence = now - t->last_ns;
		if (silence > t->silence_ns)
			t->silence_ns = silence;
		if (now - t->window_ns >= PAUSE_FLOOR_NS)
			mltcp_begin_window(t, now);
	}
	t->window_bytes += acked;
	active = t->window_bytes > t->window_floor || (idle > t->gap_ns && mltcp_is_recognised(t));
	stretch = active && mltcp_is_stretch(t);
	last = t->last_ns;
	if (stretch) {
		small = t->seen_bytes - t->stretch_mark;
		until = t->window_ns;
		pause = until - t->stretch_ns;
		t->last_ns = t->stretch_ns;
	} else if (silence && !mltcp_is_within_small(t, silence, now)) {
		pause = silence;
	}
	if (pause) {
		/* What was small is of the next iteration. */
		within = small < t->bytes ? small : t->bytes;
		t->bytes -= within;
		t->seen_bytes -= small;
		finished = mltcp_after_pause(t, pause, until, stretch, record);
		t->bytes += within;
		t->seen_bytes += small;
	}
	t->last_ns = now > last ? now : last;
	t->bytes += acked;
	t->seen_bytes += acked;
	if (active) {
		t->stretch_ns = t->last_ns;
		t->stretch_mark = t->seen_bytes;
		t->silence_ns = 0;
	}
	if (mltcp_is_recognised(t) && t->bytes > 2 * t->total_bytes)
		mltcp_forget(t);
	return finished;
}

/* ---- hooks of a base algorithm -------------------------------------------------------------------------------- */

/*
 * The state of the increase step, at the end of icsk_ca_priv, which needs no map lookup. The bases use its beginning only
 * (CUBIC, the largest, 60 bytes of 104).
 */
struct increase {
	__u32 factor_q16;
	__u32 carry;
};

static __always_inline struct increase *mltcp_increase_of(const struct sock *sk)
{
	return ca_priv(sk) + 96;
}

/* The flow of a socket, or NULL. */
static __always_inline struct flow *mltcp_flow_of(struct sock *sk)
{
	return bpf_sk_storage_get(&mltcp_flows, sk, 0, 0);
}

/* The number of flows of a flow's job, or NULL. */
static __always_inline __u32 *mltcp_flows_of_job(const struct flow *flow)
{
	return flow->job ? bpf_map_lookup_elem(&mltcp_counts, &flow->job) : NULL;
}

/* Write the record of a finished iteration to the ring buffer. */
static __always_inline void mltcp_emit(struct record *record, __u32 job, __u32 flows)
{
	record->job = job;
	record->flows = flows;
	bpf_ringbuf_output(&mltcp_records, record, sizeof(*record), 0);
}

/* bytes_acked without SYN and FIN, which take one sequence number each. */
static __always_inline __u64 mltcp_payload_acked(const struct tcp_sock *tp)
{
	unsigned char state = tp->inet_conn.icsk_inet.sk.__sk_common.skc_state;
	bool closing = state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_CLOSING || state == TCP_LAST_ACK ||
		       state == TCP_TIME_WAIT || state == TCP_CLOSE;

	return tp->bytes_acked - (closing && tp->bytes_acked && tp->snd_una == tp->write_seq);
}

/* The largest and the smallest scale of F, squared, in Q32. */
#define LARGEST_SQUARED_SCALE (16ULL << 32)
#define SMALLEST_SQUARED_SCALE (1ULL << 28)

/* The square root of x within these limits, in Q16, by Newton's method from 1 (the verifier cannot follow a search). */
static __always_inline __u64 mltcp_square_root(__u64 x)
{
	__u64 root = Q16_ONE;

#pragma unroll
	for (int step = 0; step < 6; step++)
		root = (root + x / root) >> 1;
	return root;
}

/*
 * Scale F by sqrt(reference / time to send an iteration), so that of two jobs that collide the one with less left to send
 * has the larger F. Without it a small job would always be at the beginning of its iteration, and wait for large ones.
 */
static __always_inline void mltcp_rescale(struct job *job, __u64 took_ns)
{
	__u64 squared;

	if (!job->law.reference_us || !took_ns)
		return;
	if (!job->sending_ns || took_ns < job->sending_ns)
		job->sending_ns = took_ns;
	else
		job->sending_ns += (took_ns - job->sending_ns) >> 6;
	squared = (((__u64)job->law.reference_us * 1000) << 32) / job->sending_ns;
	if (squared > LARGEST_SQUARED_SCALE)
		squared = LARGEST_SQUARED_SCALE;
	if (squared < SMALLEST_SQUARED_SCALE)
		squared = SMALLEST_SQUARED_SCALE;
	job->scale_q16 = mltcp_square_root(squared);
}

/* Count the bytes acknowledged since the last call, and set the flow's F. `starts`: the flow begins to send. */
static __always_inline void mltcp_count(struct sock *sk, struct flow *flow, bool starts)
{
	__u64 now = tcp_sk(sk)->tcp_mstamp * 1000, acked_now = mltcp_payload_acked(tcp_sk(sk)), acked, x, idle = 0;
	__u32 now_ms = now / 1000000;
	struct record record = {};
	__u32 most = 0, *flows;
	bool finished;
	struct job *job;
	__u64 iteration;

	if (sk->__sk_common.skc_state == TCP_SYN_SENT) {
		flow->acked_seen = acked_now;
		return;
	}
	acked = acked_now > flow->acked_seen ? acked_now - flow->acked_seen : 0;
	flow->acked_seen += acked;
	if (acked)
		flow->active_ms = now_ms;
	else if (starts && flow->active_ms)
		idle = (__u64)(now_ms - flow->active_ms) * 1000000;
	job = flow->job ? bpf_map_lookup_elem(&mltcp_jobs, &flow->job) : NULL;
	if (job) {
		bpf_spin_lock(&job->lock);
		finished = mltcp_observe(&job->tracker, now, acked, idle, &record);
		x = mltcp_bytes_ratio(job->tracker.bytes, job->tracker.total_bytes);
		iteration = job->tracker.iteration;
		flow->factor_q16 = mltcp_is_recognised(&job->tracker) ? mltcp_factor(&job->law, x, job->scale_q16 ? job->scale_q16 : Q16_ONE) : Q16_ONE;
		bpf_spin_unlock(&job->lock);
		most = job->law.increase_q16;
		if (finished) {
			if (record.total_bytes && mltcp_are_alike(record.bytes, record.total_bytes, ALIKE_SHIFT))
				mltcp_rescale(job, record.end_ns - record.start_ns);
			flows = mltcp_flows_of_job(flow);
			mltcp_emit(&record, flow->job, flows ? *flows : 0);
		}
	} else {
		const struct law paper = { SHAPE_LINEAR, 7 * Q16_ONE / 4, Q16_ONE / 4 };

		finished = mltcp_observe(&flow->tracker, now, acked, idle, &record);
		x = mltcp_bytes_ratio(flow->tracker.bytes, flow->tracker.total_bytes);
		iteration = flow->tracker.iteration;
		flow->factor_q16 = mltcp_is_recognised(&flow->tracker) ? mltcp_factor(&paper, x, Q16_ONE) : Q16_ONE;
		if (finished)
			mltcp_emit(&record, 0, 1);
	}
	flow->ratio_q16 = x;
	if (flow->iteration != iteration) {
		flow->iteration = iteration;
		flow->bytes = 0;
	}
	flow->bytes += acked;
	mltcp_increase_of(sk)->factor_q16 = most && flow->factor_q16 > most ? most : flow->factor_q16;
}

/* To be called when a socket gets the congestion control: create its flow, and count it into its job. */
static __always_inline void mltcp_init(struct sock *sk)
{
	struct flow *flow = bpf_sk_storage_get(&mltcp_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	__u32 *flows;

	if (!flow)
		return;
	flow->acked_seen = tcp_sk(sk)->bytes_acked;
	flow->factor_q16 = Q16_ONE;
	mltcp_increase_of(sk)->factor_q16 = Q16_ONE;
	if (flow->counted)
		return;
	flows = mltcp_flows_of_job(flow);
	if (flows) {
		flow->counted = 1;
		__sync_fetch_and_add(flows, 1);
	}
}

/*
 * To be called when a socket loses the congestion control. The last flow of a job ends the job's last iteration, since no
 * later acknowledgement will.
 */
static __always_inline void mltcp_release(struct sock *sk)
{
	struct flow *flow = mltcp_flow_of(sk);
	struct record record = {};
	bool finished = false, last;
	__u32 *flows;
	struct job *job;
	__u64 now;

	if (!flow)
		return;
	mltcp_count(sk, flow, false);
	now = bpf_ktime_get_ns();
	flows = flow->counted ? mltcp_flows_of_job(flow) : NULL;
	flow->counted = 0;
	last = flows && __sync_fetch_and_add(flows, -1) == 1;
	job = flow->job ? bpf_map_lookup_elem(&mltcp_jobs, &flow->job) : NULL;
	if (!job) {
		if (!flow->job && mltcp_close_iteration(&flow->tracker, bpf_ktime_get_ns(), &record))
			mltcp_emit(&record, 0, 1);
		return;
	}
	if (!last)
		return;
	bpf_spin_lock(&job->lock);
	finished = mltcp_close_iteration(&job->tracker, now, &record);
	bpf_spin_unlock(&job->lock);
	if (finished)
		mltcp_emit(&record, flow->job, 0);
}

/*
 * START_LOOK: the first round trip of an iteration has nothing in it of what the flow itself sends. If it is twice the
 * shortest one, others fill the queue, and will do so until their iteration ends.
 */
static __always_inline void mltcp_look(struct sock *sk, struct flow *flow, __s32 rtt_us)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (!flow->looks || rtt_us <= 0)
		return;
	flow->looks = 0;
	if ((__u32)rtt_us < 2 * tp->rtt_min.s[0].v)
		return;
	tp->snd_cwnd = LOOK_CWND;
	tp->snd_ssthresh = LOOK_CWND;
}

/* To be called on every acknowledgement. */
static __always_inline void mltcp_acked(struct sock *sk, const struct ack_sample *sample)
{
	struct flow *flow = mltcp_flow_of(sk);

	if (!flow)
		return;
	repair_window(sk, &flow->good_cwnd);
	mltcp_count(sk, flow, false);
	mltcp_look(sk, flow, sample->rtt_us);
}

/*
 * F * acked, rounded down, with the fraction carried to the next call. Passed to the base's increase step in place of
 * `acked`, it multiplies that step by F (equation 1.2 of the thesis: cwnd += F * acked / cwnd for Reno).
 */
static __always_inline __u32 mltcp_scaled(struct sock *sk, __u32 acked)
{
	struct increase *increase = mltcp_increase_of(sk);
	__u64 scaled;

	if (increase->factor_q16 == Q16_ONE || !increase->factor_q16)
		return acked;
	scaled = increase->carry + (__u64)acked * increase->factor_q16;
	increase->carry = scaled & (Q16_ONE - 1);
	return scaled >> 16;
}

/*
 * The base's ssthresh, with the decrease scaled by F (an option of the thesis; the form is ours): with d in [0, 1], the
 * window lost to a congestion signal is divided by 1 - d + d * F, so that a flow late in its iteration yields less. d = 0
 * leaves the base's decrease unchanged.
 */
static __always_inline __u32 mltcp_decreased(struct sock *sk, __u32 ssthresh)
{
	struct flow *flow = mltcp_flow_of(sk);
	struct job *job = flow && flow->job ? bpf_map_lookup_elem(&mltcp_jobs, &flow->job) : NULL;
	__u64 divisor, lost, cwnd = tcp_sk(sk)->snd_cwnd, d = job ? job->law.decrease_q16 : 0;

	if (!d || flow->factor_q16 <= Q16_ONE || ssthresh >= cwnd )
		return ssthresh;
	divisor = Q16_ONE - d + ((d * flow->factor_q16) >> 16);
	lost = (((cwnd - ssthresh) << 32) / divisor) + flow->lost_q16;
	flow->lost_q16 = lost & (Q16_ONE - 1);
	return cwnd - (lost >> 16);
}

/* The `start` of a flow's job; START_KERNEL without a job. */
static __always_inline __u32 mltcp_start_of(const struct flow *flow)
{
	struct job *job = flow->job ? bpf_map_lookup_elem(&mltcp_jobs, &flow->job) : NULL;

	return job ? job->law.start : START_KERNEL;
}

/* To be called before the kernel shrinks the window after an idle period. */
static __always_inline void mltcp_cwnd_restart(struct sock *sk)
{
	struct flow *flow = mltcp_flow_of(sk);

	if (flow)
		flow->kept_cwnd = tcp_sk(sk)->snd_cwnd;
}

/*
 * To be called at the first transmission after an idle period: set the window by the `start` of the job. Returns whether
 * what the base knows of the last iteration's window must not bring it back.
 */
static __always_inline bool mltcp_tx_start(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct flow *flow = mltcp_flow_of(sk);
	__u64 before_start;
	__u32 start, kept;

	if (!flow)
		return false;
	before_start = flow->iteration;
	mltcp_count(sk, flow, true);
	if (flow->iteration == before_start || flow->factor_q16 == Q16_ONE)
		return false;
	start = mltcp_start_of(flow);
	kept = flow->kept_cwnd;
	flow->kept_cwnd = 0;
	if (start == START_PROBE || start == START_LOOK) {
		flow->looks = start == START_LOOK;
		if (tp->snd_cwnd > PROBE_CWND)
			tp->snd_cwnd = PROBE_CWND;
		return true;
	}
	if (start == START_KEEP && kept > tp->snd_cwnd)
		tp->snd_cwnd = kept;
	if (start != START_KERNEL && tp->snd_ssthresh > tp->snd_cwnd)
		tp->snd_ssthresh = tp->snd_cwnd;
	return false;
}

/* To be called on every congestion window event; returns what mltcp_tx_start() does. */
static __always_inline bool mltcp_event(struct sock *sk, enum tcp_ca_event event)
{
	if (event == CA_EVENT(CWND_RESTART))
		mltcp_cwnd_restart(sk);
#ifndef TX_START_HOOK
	if (event == CA_EVENT(TX_START))
		return mltcp_tx_start(sk);
#endif
	return false;
}
