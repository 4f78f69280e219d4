/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Jobs and their flows: what the kernel knows of both, and how acknowledged bytes become the F of a flow.
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
	__u32 scale_q16; /* of F, for the present burst, by mltcp_rescale(); 0 before the first iteration */
	__u32 sending_kb; /* the size of the iterations of which sending_ns is the time, in KiB */
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
	__u8 highest_class; /* of the job; 0: it leaves packets as they are */
	__u8 class; /* of the burst */
	__u8 tos; /* that these programs have set and that says so; 0: none */
	__u32 raise_ms; /* when the burst gets the next higher class */
	__u32 patience_ms; /* and how long after that the one above */
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

/* Learn how long an iteration of this size takes to send without competition. */
static __always_inline void mltcp_learn_sending(struct job *job, __u64 took_ns, __u64 total_bytes)
{
	if (!took_ns)
		return;
	if (!job->sending_ns || took_ns < job->sending_ns ||
	    !mltcp_are_alike(total_bytes >> 10, job->sending_kb, ALIKE_SHIFT))
		job->sending_ns = took_ns;
	else
		job->sending_ns += (took_ns - job->sending_ns) >> 6;
	job->sending_kb = total_bytes >> 10;
}

/*
 * Scale F by the root of the reference over the time that the burst takes to send without competition, so that of two
 * jobs that collide the one with less left to send has the larger F. Without it a small job would always be at the
 * beginning of its burst, and wait for large ones.
 */
static __always_inline void mltcp_rescale(struct job *job)
{
	__u64 sending_us = job->sending_ns / 1000, burst_kb = mltcp_burst_bytes(&job->tracker) >> 10, squared;
	__u64 silent_us = job->tracker.last_silent_ns / 1000;

	if (!job->law.reference_us || !sending_us || !job->sending_kb)
		return;
	if (!job->law.whole && sending_us > silent_us)
		sending_us = (sending_us - silent_us) * burst_kb / job->sending_kb;
	squared = ((__u64)job->law.reference_us << 32) / (sending_us ? sending_us : 1);
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
		if (!job->flows) {
			finished = mltcp_close_iteration(&job->tracker, now, record);
			/* A program that is started again counts anew. */
			job->tracker.given &= ~GIVEN_BOUNDARIES;
		}
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
static __always_inline __u64 mltcp_set_factor(struct flow *flow, struct tracker *t, const struct law *law, __u64 scale)
{
	flow->ratio_q16 = law->whole ? mltcp_bytes_ratio(t->bytes, t->total_bytes)
				     : mltcp_bytes_ratio(mltcp_burst_acked(t), mltcp_burst_bytes(t));
	flow->recognised = law->shape != SHAPE_ONE && mltcp_is_recognised(t);
	flow->factor_q16 = flow->recognised ? mltcp_factor(law, flow->ratio_q16, scale ? scale : Q16_ONE) : Q16_ONE;
	return t->iteration;
}

/* A burst gets the next higher class after so many times the time that its iteration takes to send: nothing starves. */
#define PATIENCE 4

/* Choose the class of a burst that begins now, by what is left of the iteration and by how long that has taken already. */
static __always_inline void mltcp_choose_class(struct flow *flow, const struct job *job, __u64 now)
{
	__u64 patience_ms = PATIENCE * job->sending_ns / 1000000 + 1, left, raised;

	flow->highest_class = job->law.highest_class;
	flow->class = 0;
	flow->patience_ms = 0;
	if (!flow->highest_class || !job->sending_ns || !mltcp_is_recognised(&job->tracker))
		return;
	left = job->tracker.total_bytes > job->tracker.bytes ? job->tracker.total_bytes - job->tracker.bytes : 0;
	raised = now > job->tracker.start_ns ? (now - job->tracker.start_ns) / 1000000 / patience_ms : 0;
	flow->patience_ms = patience_ms;
	flow->raise_ms = job->tracker.start_ns / 1000000 + (raised + 1) * patience_ms;
	raised += mltcp_traffic_class(&job->law, left >> 10);
	flow->class = raised < flow->highest_class ? raised : flow->highest_class;
}

/* Count the bytes acknowledged since the last call, and set the flow's F. `starts`: the flow begins to send. */
static __always_inline void mltcp_count(struct sock *sk, struct flow *flow, bool starts)
{
	__u64 now = tcp_sk(sk)->tcp_mstamp * 1000, acked_now = mltcp_payload_acked(tcp_sk(sk)), acked, idle = 0, iteration;
	bool in_flight = tcp_sk(sk)->packets_out, finished = false, busy, is_its = false;
	__u32 now_ms = now / 1000000, most = 0, flows = 1, together = 1, number = 0, alone_sending = flow->sending;
	__u32 boundary = tcp_sk(sk)->inet_conn.icsk_syn_retries; /* see iteration_boundaries.py */
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
			finished |= mltcp_boundary(&job->tracker, boundary, now, &record);
			if (finished && record.total_bytes &&
			    mltcp_are_alike(record.bytes, record.total_bytes, ALIKE_SHIFT))
				mltcp_learn_sending(job, record.end_ns - record.start_ns, record.total_bytes);
			if (starts)
				mltcp_rescale(job);
			iteration = mltcp_set_factor(flow, &job->tracker, &job->law, job->scale_q16);
			if (starts)
				mltcp_choose_class(flow, job, now);
			most = job->law.increase_q16;
			flows = job->flows;
			together = job->law.fair ? job->sending : 1;
		}
		bpf_spin_unlock(&job->lock);
		number = flow->job;
	}
	if (!is_its) {
		const struct law paper = { SHAPE_LINEAR, 7 * Q16_ONE / 4, Q16_ONE / 4 };

		flow->highest_class = flow->class = 0;
		tracker = bpf_sk_storage_get(&mltcp_alone, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!tracker)
			return;
		number = 0;
		busy = mltcp_in_flight(flow, &alone_sending, starts || in_flight, starts && !in_flight);
		finished = mltcp_observe(tracker, now, acked, idle, busy, &record);
		finished |= mltcp_boundary(tracker, boundary, now, &record);
		iteration = mltcp_set_factor(flow, tracker, &paper, 0);
	}
	if (finished)
		mltcp_emit(&record, number, flows);
	if (flow->iteration != iteration) {
		flow->iteration = iteration;
		flow->bytes = 0;
	}
	flow->bytes += acked;
	mltcp_increase_of(sk)->factor_q16 =
		mltcp_shared(most && flow->factor_q16 > most ? most : flow->factor_q16, together);
}
