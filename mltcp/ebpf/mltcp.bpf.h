/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * MLTCP, shared by every congestion control of this directory: the hooks that a base algorithm calls. F(bytes_ratio) is in
 * law.bpf.h, the iteration tracker in tracker.bpf.h, jobs and flows are in flow.bpf.h. All functions begin with mltcp_.
 *
 * Source: MLTCP, arXiv 2402.09589.
 */
#pragma once

#include "flow.bpf.h"

/* START_PROBE: the first window of an iteration, in packets. */
#define PROBE_CWND 4

/*
 * START_LOOK: the window while the others' queue lasts. The share of the link that a job takes while it begins and another
 * one ends decides how far jobs of different periods hold, and what it costs (placement/simulator/network/laws/holding.py).
 */
#define LOOK_CWND 2

/* A round trip has a queue in it if it is longer than without one by 1 / 2^QUEUED_SHIFT. */
#define QUEUED_SHIFT 3

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

/* The bits of the type of service that are not of ECN. */
#define DSCP_MASK 0xfc
#define CLASS_SHIFT 5

/* Whether the packets of a socket are of another class than this. Of IPv6 only what this program has set is known. */
static __always_inline bool mltcp_has_other_class(struct sock *sk, const struct flow *flow, __u32 tos)
{
	return sk->__sk_common.skc_family == AF_INET ? (((struct inet_sock *)sk)->tos & DSCP_MASK) != tos : flow->tos != tos;
}

/*
 * Let the packets of a flow say its class, which a program that has the socket cannot change for longer than a round trip.
 * A flow that does not send says the highest one: its acknowledgements must not wait behind others' data. Setting the type
 * of service sets the priority as well, by which a qdisc of this host may have a class of its own.
 */
static __always_inline void mltcp_classify(struct sock *sk, struct flow *flow, bool sends)
{
	__u32 tos, priority = sk->sk_priority, now_ms = tcp_sk(sk)->tcp_mstamp / 1000;

	if (!flow->highest_class && !flow->tos)
		return;
	if (flow->class < flow->highest_class && flow->patience_ms && !before(now_ms, flow->raise_ms)) {
		flow->class++;
		flow->raise_ms += flow->patience_ms;
	}
	tos = (sends ? flow->class : flow->highest_class) << CLASS_SHIFT;
	if (!mltcp_has_other_class(sk, flow, tos))
		return;
	flow->tos = tos;
	if (sk->__sk_common.skc_family == AF_INET)
		bpf_setsockopt(sk, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
	else
		bpf_setsockopt(sk, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof(tos));
	if (priority)
		bpf_setsockopt(sk, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
}

/* To be called on every acknowledgement. */
static __always_inline void mltcp_acked(struct sock *sk, const struct ack_sample *sample)
{
	struct flow *flow = mltcp_flow_of(sk);

	if (!flow)
		return;
	repair_window(sk, &flow->good_cwnd);
	mltcp_count(sk, flow, false);
	mltcp_classify(sk, flow, tcp_sk(sk)->packets_out);
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

/*
 * To be called when the state is set, as at each retransmission time-out: a flow whose packets all wait behind others gets
 * no acknowledgement that could raise its class.
 */
static __always_inline void mltcp_state(struct sock *sk, __u8 new_state)
{
	struct flow *flow = mltcp_flow_of(sk);

	if (flow && new_state == TCP_CA_Loss)
		mltcp_classify(sk, flow, true);
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
	mltcp_classify(sk, flow, true);
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
