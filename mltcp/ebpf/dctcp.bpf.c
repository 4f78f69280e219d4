// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * DCTCP (RFC 8257) and MLTCP-DCTCP. Few kernels have DCTCP built in, and its functions cannot be called from here if they
 * have not, so this file implements it: bpf_dctcp is the base, and mltcp_dctcp is the same with Reno's increase step
 * multiplied by F(bytes_ratio). Both have DCTCP's ECN-proportional decrease. A connection whose peer has not negotiated ECN
 * is given to Reno or MLTCP-Reno.
 */
#include "mltcp.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;

#define ALPHA_ONE 1024U /* DCTCP.Alpha in units of 1/1024 */
#define G_SHIFT 4       /* g = 1/16, RFC 8257 section 4.2 */

struct dctcp {
	__u32 alpha;
	__u32 window_end;       /* the observation window ends when this is acknowledged */
	__u32 delivered;        /* at the start of the window */
	__u32 delivered_ce;
	__u32 rcv_nxt;          /* everything before it was acknowledged with the last CE state */
	__u32 ce_state;
	__u32 cwnd_before_loss;
	__u32 good_cwnd;
};

/* The control of connections of mltcp_dctcp without ECN: user space sets the name under which mltcp_reno is loaded. */
const volatile char fallback[CONTROL_NAME_BYTES] SEC(".rodata.fallback") = "mltcp_reno";

/*
 * Give a connection for which ECN was not negotiated to MLTCP-Reno, if `mltcp` is set and it is loaded, otherwise to Reno:
 * RFC 8257 falls back to Reno, and the kernel then takes ECT from the packets, which TCP_CONG_NEEDS_ECN has put there.
 * Otherwise switches would mark packets in place of dropping them, and nobody would hear of it. True if it was given away.
 *
 * A control that is set before the SYN is initialised before the negotiation, and one that a program sets (attach.bpf.c) may
 * not choose another one at once: so this is called with every acknowledgement and before the first packet too.
 */
static __always_inline bool dctcp_falls_back(struct sock *sk, bool mltcp)
{
	char reno[CONTROL_NAME_BYTES] = "reno";

	if (tcp_sk(sk)->ecn_flags & ECN_OK)
		return false;
	if (!mltcp || bpf_setsockopt(sk, IPPROTO_TCP, TCP_CONGESTION, (void *)fallback, CONTROL_NAME_BYTES))
		bpf_setsockopt(sk, IPPROTO_TCP, TCP_CONGESTION, reno, CONTROL_NAME_BYTES);
	return true;
}

/* The same at initialisation, which is before the negotiation in these states. */
static __always_inline bool dctcp_falls_back_at_init(struct sock *sk, bool mltcp)
{
	unsigned char state = sk->__sk_common.skc_state;

	return state != TCP_SYN_SENT && state != TCP_CLOSE && state != TCP_LISTEN && dctcp_falls_back(sk, mltcp);
}

static __always_inline void open_window(const struct tcp_sock *tp, struct dctcp *ca)
{
	ca->window_end = tp->snd_nxt;
	ca->delivered = tp->delivered;
	ca->delivered_ce = tp->delivered_ce;
}

static __always_inline void dctcp_begin(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = ca_priv(sk);

	ca->rcv_nxt = tp->rcv_nxt;
	ca->alpha = ALPHA_ONE;
	ca->cwnd_before_loss = 0;
	ca->ce_state = 0;
	open_window(tp, ca);
}

/* RFC 8257 section 3.3: once a window, alpha = alpha * (1 - g) + g * M, M the fraction of marked packets. */
static __always_inline void dctcp_update_alpha(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = ca_priv(sk);
	__u32 marked, delivered, alpha = ca->alpha, fade;

	/* A control that was set before the SYN was initialised before the sequence numbers were chosen. */
	if (sk->__sk_common.skc_state == TCP_SYN_SENT) {
		dctcp_begin(sk);
		return;
	}
	if (before(tp->snd_una, ca->window_end))
		return;
	/* If the subtraction rounded to 0, alpha would get stuck below 1/g. */
	fade = alpha >> G_SHIFT ? alpha >> G_SHIFT : alpha;
	alpha -= fade;
	marked = tp->delivered_ce - ca->delivered_ce;
	delivered = tp->delivered - ca->delivered;
	if (marked) {
		alpha += (marked << (10 - G_SHIFT)) / (delivered ? delivered : 1);
		if (alpha > ALPHA_ONE)
			alpha = ALPHA_ONE;
	}
	ca->alpha = alpha;
	open_window(tp, ca);
}

/*
 * RFC 8257 section 3.2: when the CE state changes, the receiver sends an ACK at once, and before it, with the old state,
 * an ACK for the segments that a delayed ACK still covers.
 */
static __always_inline void dctcp_echo(struct sock *sk, __u32 ce)
{
	struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = ca_priv(sk);

	if (ca->ce_state != ce) {
		if (icsk->icsk_ack.pending & ACK_TIMER) {
			if (ca->ce_state)
				tp->ecn_flags |= ECN_DEMAND_CWR;
			else
				tp->ecn_flags &= ~ECN_DEMAND_CWR;
			bpf_tcp_send_ack(tp, ca->rcv_nxt);
		}
		icsk->icsk_ack.pending |= ACK_NOW;
	}
	ca->rcv_nxt = tp->rcv_nxt;
	ca->ce_state = ce;
	if (ce)
		tp->ecn_flags |= ECN_DEMAND_CWR;
	else
		tp->ecn_flags &= ~ECN_DEMAND_CWR;
}

static __always_inline void dctcp_loss(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = ca_priv(sk);
	__u32 half = tp->snd_cwnd >> 1;

	ca->cwnd_before_loss = tp->snd_cwnd;
	tp->snd_ssthresh = half > 2 ? half : 2;
}

static __always_inline void dctcp_event(struct sock *sk, enum tcp_ca_event event)
{
	if (event == CA_EVENT(ECN_IS_CE) || event == CA_EVENT(ECN_NO_CE))
		dctcp_echo(sk, event == CA_EVENT(ECN_IS_CE));
	else if (event == CA_EVENT(LOSS))
		dctcp_loss(sk);
}

/* RFC 8257 section 3.3: cwnd = cwnd * (1 - alpha / 2). */
static __always_inline __u32 dctcp_reduced(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = ca_priv(sk);
	__u32 reduced;

	ca->cwnd_before_loss = tp->snd_cwnd;
	reduced = tp->snd_cwnd - (__u32)(((__u64)tp->snd_cwnd * ca->alpha) >> 11);
	return reduced > 2 ? reduced : 2;
}

SEC("struct_ops/dctcp_init")
void BPF_PROG(dctcp_init, struct sock *sk)
{
	if (!dctcp_falls_back_at_init(sk, false))
		dctcp_begin(sk);
}

SEC("struct_ops/mltcp_dctcp_init")
void BPF_PROG(mltcp_dctcp_init, struct sock *sk)
{
	if (dctcp_falls_back_at_init(sk, true))
		return;
	dctcp_begin(sk);
	mltcp_init(sk);
}

SEC("struct_ops/mltcp_dctcp_release")
void BPF_PROG(mltcp_dctcp_release, struct sock *sk)
{
	mltcp_release(sk);
}

SEC("struct_ops/dctcp_in_ack")
void BPF_PROG(dctcp_in_ack, struct sock *sk, __u32 flags)
{
	struct dctcp *ca = ca_priv(sk);

	if (dctcp_falls_back(sk, false))
		return;
	repair_window(sk, &ca->good_cwnd);
	dctcp_update_alpha(sk);
}

SEC("struct_ops/mltcp_dctcp_in_ack")
void BPF_PROG(mltcp_dctcp_in_ack, struct sock *sk, __u32 flags)
{
	if (!dctcp_falls_back(sk, true))
		dctcp_update_alpha(sk);
}

SEC("struct_ops/mltcp_dctcp_acked")
void BPF_PROG(mltcp_dctcp_acked, struct sock *sk, const struct ack_sample *sample)
{
	mltcp_acked(sk, sample);
}

SEC("struct_ops/dctcp_cwnd_event")
void BPF_PROG(dctcp_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
#ifndef TX_START_HOOK
	if (event == CA_EVENT(TX_START) && dctcp_falls_back(sk, false))
		return;
#endif
	dctcp_event(sk, event);
}

SEC("struct_ops/mltcp_dctcp_event")
void BPF_PROG(mltcp_dctcp_event, struct sock *sk, enum tcp_ca_event event)
{
#ifndef TX_START_HOOK
	if (event == CA_EVENT(TX_START) && dctcp_falls_back(sk, true))
		return;
#endif
	dctcp_event(sk, event);
	mltcp_event(sk, event);
}

#ifdef TX_START_HOOK
SEC("struct_ops/dctcp_start")
void BPF_PROG(dctcp_start, struct sock *sk)
{
	dctcp_falls_back(sk, false);
}

SEC("struct_ops/mltcp_dctcp_start")
void BPF_PROG(mltcp_dctcp_start, struct sock *sk)
{
	if (!dctcp_falls_back(sk, true))
		mltcp_tx_start(sk);
}
#endif

SEC("struct_ops/dctcp_cong_avoid")
void BPF_PROG(dctcp_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops/mltcp_dctcp_avoid")
void BPF_PROG(mltcp_dctcp_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	__u32 held = mltcp_hold(sk);

	tcp_reno_cong_avoid(sk, ack, mltcp_scaled(sk, acked));
	mltcp_resume(sk, held);
}

SEC("struct_ops/dctcp_state")
void BPF_PROG(dctcp_state, struct sock *sk, __u8 new_state)
{
	/* Entering recovery has reduced the window by alpha; a loss halves it, RFC 8257 section 3.5. */
	if (new_state == TCP_CA_Recovery)
		dctcp_loss(sk);
}

SEC("struct_ops/mltcp_dctcp_state")
void BPF_PROG(mltcp_dctcp_state, struct sock *sk, __u8 new_state)
{
	if (new_state == TCP_CA_Recovery)
		dctcp_loss(sk);
	mltcp_state(sk, new_state);
}

SEC("struct_ops/dctcp_ssthresh")
__u32 BPF_PROG(dctcp_ssthresh, struct sock *sk)
{
	return dctcp_reduced(sk);
}

SEC("struct_ops/mltcp_dctcp_ssthr")
__u32 BPF_PROG(mltcp_dctcp_ssthr, struct sock *sk)
{
	return mltcp_decreased(sk, dctcp_reduced(sk));
}

SEC("struct_ops/dctcp_undo")
__u32 BPF_PROG(dctcp_undo, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = ca_priv(sk);

	return tp->snd_cwnd > ca->cwnd_before_loss ? tp->snd_cwnd : ca->cwnd_before_loss;
}

SEC(".struct_ops")
struct tcp_congestion_ops bpf_dctcp = {
	.init = (void *)dctcp_init,
	.in_ack_event = (void *)dctcp_in_ack,
	.cwnd_event = (void *)dctcp_cwnd_event,
	ON_TX_START(dctcp_start)
	.cong_avoid = (void *)dctcp_cong_avoid,
	.set_state = (void *)dctcp_state,
	.ssthresh = (void *)dctcp_ssthresh,
	.undo_cwnd = (void *)dctcp_undo,
	.flags = TCP_CONG_NEEDS_ECN,
	.name = "bpf_dctcp",
};

SEC(".struct_ops")
struct tcp_congestion_ops mltcp_dctcp = {
	.init = (void *)mltcp_dctcp_init,
	.release = (void *)mltcp_dctcp_release,
	.in_ack_event = (void *)mltcp_dctcp_in_ack,
	.pkts_acked = (void *)mltcp_dctcp_acked,
	.cwnd_event = (void *)mltcp_dctcp_event,
	ON_TX_START(mltcp_dctcp_start)
	.cong_avoid = (void *)mltcp_dctcp_avoid,
	.set_state = (void *)mltcp_dctcp_state,
	.ssthresh = (void *)mltcp_dctcp_ssthr,
	.undo_cwnd = (void *)dctcp_undo,
	.flags = TCP_CONG_NEEDS_ECN,
	.name = "mltcp_dctcp",
};
