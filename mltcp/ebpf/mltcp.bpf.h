/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * MLTCP, shared by every congestion control of this directory: jobs and flows, and the hooks that a base algorithm calls.
 * F(bytes_ratio) is in law.bpf.h, the iteration tracker in tracker.bpf.h. All functions begin with mltcp_.
 *
 * A flow that belongs to a job counts its acknowledged bytes into the job, so that all flows of a job on this host share one
 * bytes_ratio: an iteration is as slow as its slowest flow, and flows of one job gain nothing from competing with each
 * other. A flow without a job tracks its own iterations. Source: MLTCP, arXiv 2402.09589.
 */
#pragma once

#include "kernel.bpf.h"
#include "law.bpf.h"
#include "tracker.bpf.h"

/* As in job_entries.py. */
#define MOST_JOBS 4096

/* START_PROBE: the first window of an iteration, in packets. */
#define PROBE_CWND 4

/*
 * START_LOOK: the window while the others' queue lasts. The share of the link that a job takes while it begins and another
 * one ends decides how far jobs of different periods hold, and what it costs (mltcp/control/window_model/holding.py).
 */
#define LOOK_CWND 2

/* A round trip has a queue in it if it is longer than without one by 1 / 2^QUEUED_SHIFT. */
#define QUEUED_SHIFT 3

/* What user space says of a job. Programs only read it. */
struct terms {
	struct law law;
	char name[32];
	__u64 owner[3]; /* the process that created the entry: see mltcp/core/owner.py */
};

/* What the kernel knows of a job: user space creates it, and then only reads it. */
struct job {
	struct bpf_spin_lock lock;
	__u32 number;  /* of the job: an element of the map may be given to another one while a program holds it */
	__u32 flows;   /* open connections */
	__u32 sending; /* of these, the connections that have data in flight */
	__u32 scale_q16; /* of F, by mltcp_rescale(); 0 before the first iteration */
	__u32 reserved;
	__u64 sending_ns; /* the time to send an iteration without competition: a minimum that is slowly forgotten */
	struct law law; /* as the terms had it when a flow of the job last began to send */
	struct tracker tracker;
};

/* The job of a socket, as attach.bpf.c or the daemon says. The controls only read it. */
struct tag {
	__u32 job;   /* 0: none */
	__u32 level; /* of the cgroup whose program has tagged it; 0: none has */
};

/* What the kernel knows of a flow. Only the controls write it. */
struct flow {
	__u64 acked_seen;
	__u64 iteration; /* the last iteration of the job in which this flow sent */
	__u64 bytes;     /* acknowledged in that iteration */
	__u32 job;       /* by its tag when it last began to send; 0: none */
	__u32 factor_q16;
	__u32 ratio_q16;
	__u32 kept_cwnd; /* before the kernel shrank the window, in this idle period */
	__u32 good_cwnd;
	__u32 lost_q16; /* the fraction of a packet by which the window has still to be decreased */
	__u32 active_ms; /* when something of it was last acknowledged */
	__u32 start_rtt_us; /* the first round trip of an iteration without competition: a minimum that is slowly forgotten */
	__u8 counted;    /* in the flows of its job */
	__u8 sending;    /* has data in flight */
	__u8 recognised; /* the iterations of its job are known, and its law is in force */
	__u8 looks;      /* the next round trip tells whether others fill the queue */
	__u8 began_queued; /* this iteration began while there was a queue */
	__u8 reserved[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_JOBS);
	__type(key, __u32);
	__type(value, struct terms);
} mltcp_terms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_JOBS);
	__type(key, __u32);
	__type(value, struct job);
} mltcp_jobs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tag);
} mltcp_tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flow);
} mltcp_flows SEC(".maps");

/* The trackers of flows without a job. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tracker);
} mltcp_alone SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} mltcp_records SEC(".maps");

/*
 * The state of the increase step, at the end of icsk_ca_priv, which needs no map lookup. The bases use its beginning only
 * (CUBIC, the largest, 60 bytes of 104).
 */
struct increase {
	__u32 factor_q16;
	__u16 carry;
	__u8 holds;  /* START_AVOID: others fill the queue; see mltcp_hold() */
	__u8 queued; /* the iteration began in a queue, or the last round trip had one in it; see mltcp_scaled() */
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

/* The job of a flow, or NULL. */
static __always_inline struct job *mltcp_job_of(const struct flow *flow)
{
	return flow->job ? bpf_map_lookup_elem(&mltcp_jobs, &flow->job) : NULL;
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

/* ---- flows and their jobs ------------------------------------------------------------------------------------- */

/* Count the flow out of its job; true if it was the last one and so ended an iteration, which `record` then describes. */
static __always_inline bool mltcp_leave(struct flow *flow, struct record *record)
{
	bool counted = flow->counted, sending = flow->sending, finished = false;
	struct job *job = mltcp_job_of(flow);
	__u64 now = bpf_ktime_get_ns();

	flow->counted = flow->sending = 0;
	if (!job || !counted)
		return false;
	bpf_spin_lock(&job->lock);
	if (job->number == flow->job) {
		job->flows -= job->flows > 0;
		job->sending -= sending && job->sending;
		finished = !job->flows && mltcp_close_iteration(&job->tracker, now, record);
	}
	bpf_spin_unlock(&job->lock);
	return finished;
}

/* Let the flow be of the job that its tag says, under the law that the job's terms have now. */
static __always_inline void mltcp_join(struct sock *sk, struct flow *flow)
{
	struct tag *tag = bpf_sk_storage_get(&mltcp_tags, sk, 0, 0);
	__u32 number = tag ? tag->job : 0;
	struct record record = {};
	struct terms *terms;
	struct job *job;

	if (number != flow->job) {
		if (mltcp_leave(flow, &record))
			mltcp_emit(&record, flow->job, 0);
		flow->job = number;
	}
	terms = number ? bpf_map_lookup_elem(&mltcp_terms, &number) : NULL;
	job = terms ? mltcp_job_of(flow) : NULL;
	if (!job)
		return;
	bpf_spin_lock(&job->lock);
	if (job->number == number) {
		job->law = terms->law;
		if (!flow->counted) {
			job->flows++;
			flow->counted = 1;
			flow->sending = 0;
		}
	}
	bpf_spin_unlock(&job->lock);
}

/*
 * Keep account of the flows that have data in flight, whose number is `sending`. `sends`: this one has, after this event;
 * `begins`: it had none before. Returns whether a flow had since the last event.
 */
static __always_inline bool mltcp_in_flight(struct flow *flow, __u32 *sending, bool sends, bool begins)
{
	bool busy;

	/* Where the program was not called at the acknowledgement that emptied the pipe (docs/ebpf.md). */
	if (begins && flow->sending) {
		*sending -= *sending > 0;
		flow->sending = 0;
	}
	busy = *sending > 0;
	if (sends && !flow->sending)
		++*sending;
	else if (!sends && flow->sending)
		*sending -= *sending > 0;
	flow->sending = sends;
	return busy;
}

/* Set bytes_ratio, and F by the law; returns the number of the tracker's iteration. */
static __always_inline __u64 mltcp_set_factor(struct flow *flow, const struct tracker *t, const struct law *law, __u64 scale)
{
	flow->ratio_q16 = mltcp_bytes_ratio(t->bytes, t->total_bytes);
	flow->recognised = law->shape != SHAPE_ONE && mltcp_is_recognised(t);
	flow->factor_q16 = flow->recognised ? mltcp_factor(law, flow->ratio_q16, scale ? scale : Q16_ONE) : Q16_ONE;
	return t->iteration;
}

/* Count the bytes acknowledged since the last call, and set the flow's F. `starts`: the flow begins to send. */
static __always_inline void mltcp_count(struct sock *sk, struct flow *flow, bool starts)
{
	__u64 now = tcp_sk(sk)->tcp_mstamp * 1000, acked_now = mltcp_payload_acked(tcp_sk(sk)), acked, idle = 0, iteration;
	bool in_flight = tcp_sk(sk)->packets_out, finished = false, busy, is_its = false;
	__u32 now_ms = now / 1000000, most = 0, flows = 1, number = 0, alone_sending = flow->sending;
	struct record record = {};
	struct tracker *tracker;
	struct job *job;

	if (sk->__sk_common.skc_state == TCP_SYN_SENT) {
		flow->acked_seen = acked_now;
		return;
	}
	iteration = flow->iteration;
	acked = acked_now > flow->acked_seen ? acked_now - flow->acked_seen : 0;
	flow->acked_seen += acked;
	if (acked)
		flow->active_ms = now_ms;
	else if (starts && flow->active_ms)
		idle = (__u64)(now_ms - flow->active_ms) * 1000000;
	job = flow->counted ? mltcp_job_of(flow) : NULL;
	if (job) {
		bpf_spin_lock(&job->lock);
		is_its = job->number == flow->job;
		if (is_its) {
			busy = mltcp_in_flight(flow, &job->sending, starts || in_flight, starts && !in_flight);
			finished = mltcp_observe(&job->tracker, now, acked, idle, busy, &record);
			if (finished && record.total_bytes &&
			    mltcp_are_alike(record.bytes, record.total_bytes, ALIKE_SHIFT))
				mltcp_rescale(job, record.end_ns - record.start_ns);
			iteration = mltcp_set_factor(flow, &job->tracker, &job->law, job->scale_q16);
			most = job->law.increase_q16;
			flows = job->flows;
		}
		bpf_spin_unlock(&job->lock);
		number = flow->job;
	}
	if (!is_its) {
		const struct law paper = { SHAPE_LINEAR, 7 * Q16_ONE / 4, Q16_ONE / 4 };

		tracker = bpf_sk_storage_get(&mltcp_alone, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!tracker)
			return;
		number = 0;
		busy = mltcp_in_flight(flow, &alone_sending, starts || in_flight, starts && !in_flight);
		finished = mltcp_observe(tracker, now, acked, idle, busy, &record);
		iteration = mltcp_set_factor(flow, tracker, &paper, 0);
	}
	if (finished)
		mltcp_emit(&record, number, flows);
	if (flow->iteration != iteration) {
		flow->iteration = iteration;
		flow->bytes = 0;
	}
	flow->bytes += acked;
	mltcp_increase_of(sk)->factor_q16 = most && flow->factor_q16 > most ? most : flow->factor_q16;
}

/* ---- hooks of a base algorithm -------------------------------------------------------------------------------- */

/* To be called when a socket gets the congestion control: create its flow, and count it into its job. */
static __always_inline void mltcp_init(struct sock *sk)
{
	struct flow *flow = bpf_sk_storage_get(&mltcp_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!flow)
		return;
	flow->acked_seen = tcp_sk(sk)->bytes_acked;
	flow->factor_q16 = Q16_ONE;
	flow->recognised = flow->looks = 0;
	*mltcp_increase_of(sk) = (struct increase){ .factor_q16 = Q16_ONE };
	mltcp_join(sk, flow);
}

/*
 * To be called when a socket loses the congestion control. The last flow of a job ends the job's last iteration, since no
 * later acknowledgement will.
 */
static __always_inline void mltcp_release(struct sock *sk)
{
	struct flow *flow = mltcp_flow_of(sk);
	struct record record = {};
	struct tracker *tracker;
	__u32 number;

	if (!flow)
		return;
	mltcp_count(sk, flow, false);
	number = flow->counted && mltcp_job_of(flow) ? flow->job : 0;
	if (number) {
		if (mltcp_leave(flow, &record))
			mltcp_emit(&record, number, 0);
		return;
	}
	flow->counted = flow->sending = 0;
	tracker = bpf_sk_storage_get(&mltcp_alone, sk, 0, 0);
	if (tracker && mltcp_close_iteration(tracker, bpf_ktime_get_ns(), &record))
		mltcp_emit(&record, 0, 1);
}

/*
 * START_AVOID and START_LOOK: the first round trip of an iteration has little in it of what the flow itself sends. If it is
 * twice as long as without competition, others fill the queue, and will do so until their iteration ends.
 *
 * What the round trip is without competition, START_AVOID takes from the starts of earlier iterations, not from the
 * shortest one of all: a host or an adapter that wakes up, or acknowledges several packets at once, is no competition.
 */
static __always_inline void mltcp_look(struct sock *sk, struct flow *flow, __u32 rtt_us)
{
	struct increase *increase = mltcp_increase_of(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 least = tp->rtt_min.s[0].v, clear = flow->start_rtt_us > least ? flow->start_rtt_us : least;
	bool is_queue = rtt_us > least + (least >> QUEUED_SHIFT);
	struct job *job;

	if (flow->looks)
		flow->began_queued = is_queue;
	increase->queued = is_queue || flow->began_queued;
	if (increase->holds && rtt_us < 2 * clear)
		increase->holds = 0;
	if (!flow->looks)
		return;
	flow->looks = 0;
	job = flow->recognised ? mltcp_job_of(flow) : NULL;
	if (job && job->law.start == START_AVOID && flow->start_rtt_us)
		increase->holds = rtt_us >= 2 * clear;
	if (job && job->law.start == START_LOOK && rtt_us >= 2 * least)
		tp->snd_cwnd = tp->snd_ssthresh = LOOK_CWND;
	if (!flow->start_rtt_us || rtt_us < flow->start_rtt_us)
		flow->start_rtt_us = rtt_us;
	else
		flow->start_rtt_us += (rtt_us - flow->start_rtt_us) >> 3;
}

/* To be called on every acknowledgement. */
static __always_inline void mltcp_acked(struct sock *sk, const struct ack_sample *sample)
{
	struct flow *flow = mltcp_flow_of(sk);

	if (!flow)
		return;
	repair_window(sk, &flow->good_cwnd);
	mltcp_count(sk, flow, false);
	if (sample->rtt_us > 0)
		mltcp_look(sk, flow, sample->rtt_us);
}

/*
 * F * acked, rounded down, with the fraction carried to the next call. Passed to the base's increase step in place of
 * `acked`, it multiplies that step by F (equation 1.2 of the thesis: cwnd += F * acked / cwnd for Reno). Slow start is the
 * base's.
 *
 * F below 1 gives way to others. A job whose iteration has begun on a free link gives way where there is a queue only:
 * otherwise it would take longer than its base to fill a link that nobody else wants.
 */
static __always_inline __u32 mltcp_scaled(struct sock *sk, __u32 acked)
{
	struct increase *increase = mltcp_increase_of(sk);
	__u64 scaled;

	if (in_slow_start(tcp_sk(sk)) || increase->factor_q16 == Q16_ONE || !increase->factor_q16)
		return acked;
	if (increase->factor_q16 < Q16_ONE && !increase->queued)
		return acked;
	scaled = increase->carry + (__u64)acked * increase->factor_q16;
	increase->carry = scaled & (Q16_ONE - 1);
	return scaled >> 16;
}

/*
 * To be called before the base's increase step: if the flow waits for others' queue to pass (START_AVOID), end slow start
 * for this step. mltcp_resume(), after it, takes back what this returns.
 */
static __always_inline __u32 mltcp_hold(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 ssthresh = tp->snd_ssthresh;

	if (!mltcp_increase_of(sk)->holds || !in_slow_start(tp))
		return 0;
	tp->snd_ssthresh = tp->snd_cwnd;
	return ssthresh;
}

static __always_inline void mltcp_resume(struct sock *sk, __u32 ssthresh)
{
	if (ssthresh)
		tcp_sk(sk)->snd_ssthresh = ssthresh;
}

/*
 * The base's ssthresh, with the decrease scaled by F (an option of the thesis; the form is ours): with d in [0, 1], the
 * window lost to a congestion signal is divided by 1 - d + d * F, so that a flow late in its iteration yields less. d = 0
 * leaves the base's decrease unchanged.
 */
static __always_inline __u32 mltcp_decreased(struct sock *sk, __u32 ssthresh)
{
	struct flow *flow = mltcp_flow_of(sk);
	struct job *job = flow ? mltcp_job_of(flow) : NULL;
	__u64 divisor, lost, cwnd = tcp_sk(sk)->snd_cwnd, d = job ? job->law.decrease_q16 : 0;

	if (!d || flow->factor_q16 <= Q16_ONE || ssthresh >= cwnd)
		return ssthresh;
	divisor = Q16_ONE - d + ((d * flow->factor_q16) >> 16);
	lost = (((cwnd - ssthresh) << 32) / divisor) + flow->lost_q16;
	flow->lost_q16 = lost & (Q16_ONE - 1);
	return cwnd - (lost >> 16);
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
	struct job *job;

	if (!flow)
		return false;
	kept = flow->kept_cwnd;
	flow->kept_cwnd = 0;
	before_start = flow->iteration;
	flow->looks |= !flow->active_ms; /* the first data of all */
	mltcp_join(sk, flow);
	mltcp_count(sk, flow, true);
	if (flow->iteration == before_start)
		return false;
	flow->looks = 1;
	mltcp_increase_of(sk)->holds = 0;
	job = flow->recognised ? mltcp_job_of(flow) : NULL;
	start = job ? job->law.start : START_KERNEL;
	if (start == START_PROBE || start == START_LOOK) {
		if (tp->snd_cwnd > PROBE_CWND)
			tp->snd_cwnd = PROBE_CWND;
		return true;
	}
	if (start == START_KEEP) {
		if (kept > tp->snd_cwnd)
			tp->snd_cwnd = kept;
		if (tp->snd_ssthresh > tp->snd_cwnd)
			tp->snd_ssthresh = tp->snd_cwnd;
	}
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
