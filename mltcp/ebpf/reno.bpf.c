// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * MLTCP-Reno: cwnd += F(bytes_ratio) * acked / cwnd in congestion avoidance (equation 1.2 of the thesis). Everything else is
 * the kernel's own Reno, called through its kfuncs.
 */
#include "mltcp.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

SEC("struct_ops/reno_init")
void BPF_PROG(reno_init, struct sock *sk)
{
	mltcp_init(sk);
}

SEC("struct_ops/reno_release")
void BPF_PROG(reno_release, struct sock *sk)
{
	mltcp_release(sk);
}

SEC("struct_ops/reno_acked")
void BPF_PROG(reno_acked, struct sock *sk, const struct ack_sample *sample)
{
	mltcp_acked(sk, sample);
}

SEC("struct_ops/reno_event")
void BPF_PROG(reno_event, struct sock *sk, enum tcp_ca_event event)
{
	mltcp_event(sk, event);
}

#ifdef TX_START_HOOK
SEC("struct_ops/reno_tx_start")
void BPF_PROG(reno_tx_start, struct sock *sk)
{
	mltcp_tx_start(sk);
}
#endif

SEC("struct_ops/reno_cong_avoid")
void BPF_PROG(reno_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	__u32 held = mltcp_hold(sk);

	tcp_reno_cong_avoid(sk, ack, mltcp_scaled(sk, acked));
	mltcp_resume(sk, held);
}

SEC("struct_ops/reno_state")
void BPF_PROG(reno_state, struct sock *sk, __u8 new_state)
{
	mltcp_state(sk, new_state);
}

SEC("struct_ops/reno_ssthresh")
__u32 BPF_PROG(reno_ssthresh, struct sock *sk)
{
	return mltcp_decreased(sk, tcp_reno_ssthresh(sk));
}

SEC("struct_ops/reno_undo")
__u32 BPF_PROG(reno_undo, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops")
struct tcp_congestion_ops mltcp_reno = {
	.init = (void *)reno_init,
	.release = (void *)reno_release,
	.pkts_acked = (void *)reno_acked,
	.cwnd_event = (void *)reno_event,
	ON_TX_START(reno_tx_start)
	.cong_avoid = (void *)reno_cong_avoid,
	.set_state = (void *)reno_state,
	.ssthresh = (void *)reno_ssthresh,
	.undo_cwnd = (void *)reno_undo,
	.name = "mltcp_reno",
};
