// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * MLTCP-CUBIC: the step towards the cubic target is multiplied by F(bytes_ratio). The base is the kernel's own CUBIC,
 * called through its kfuncs, so that with F = 1 this is the CUBIC of the running kernel. CUBIC keeps its state at the
 * beginning of icsk_ca_priv, ours is at its end and in socket storage.
 */
#include "mltcp.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

extern void cubictcp_init(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
#ifdef TX_START_HOOK
extern void cubictcp_cwnd_event_tx_start(struct sock *sk) __ksym;
#else
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
#endif
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

/* The beginning of CUBIC's state. */
struct bictcp {
	__u32 epoch_start; /* 0: the next increase starts an epoch */
} CORE;

SEC("struct_ops/cubic_init")
void BPF_PROG(cubic_init, struct sock *sk)
{
	cubictcp_init(sk);
	mltcp_init(sk);
}

SEC("struct_ops/cubic_release")
void BPF_PROG(cubic_release, struct sock *sk)
{
	mltcp_release(sk);
}

SEC("struct_ops/cubic_acked")
void BPF_PROG(cubic_acked, struct sock *sk, const struct ack_sample *sample)
{
	cubictcp_acked(sk, sample);
	mltcp_acked(sk, sample);
}

/* Otherwise CUBIC would return to the window of the last iteration at once, whoever sends now. */
static __always_inline void begin_epoch(struct sock *sk)
{
	((struct bictcp *)ca_priv(sk))->epoch_start = 0;
}

#ifdef TX_START_HOOK
SEC("struct_ops/cubic_event")
void BPF_PROG(cubic_event, struct sock *sk, enum tcp_ca_event event)
{
	mltcp_event(sk, event);
}

SEC("struct_ops/cubic_tx_start")
void BPF_PROG(cubic_tx_start, struct sock *sk)
{
	cubictcp_cwnd_event_tx_start(sk);
	if (mltcp_tx_start(sk))
		begin_epoch(sk);
}
#else
SEC("struct_ops/cubic_event")
void BPF_PROG(cubic_event, struct sock *sk, enum tcp_ca_event event)
{
	cubictcp_cwnd_event(sk, event);
	if (mltcp_event(sk, event))
		begin_epoch(sk);
}
#endif

SEC("struct_ops/cubic_cong_avoid")
void BPF_PROG(cubic_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	__u32 held = mltcp_hold(sk);

	cubictcp_cong_avoid(sk, ack, mltcp_scaled(sk, acked));
	mltcp_resume(sk, held);
}

SEC("struct_ops/cubic_state")
void BPF_PROG(cubic_state, struct sock *sk, __u8 new_state)
{
	cubictcp_state(sk, new_state);
	mltcp_state(sk, new_state);
}

SEC("struct_ops/cubic_ssthresh")
__u32 BPF_PROG(cubic_ssthresh, struct sock *sk)
{
	return mltcp_decreased(sk, cubictcp_recalc_ssthresh(sk));
}

SEC("struct_ops/cubic_undo")
__u32 BPF_PROG(cubic_undo, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops")
struct tcp_congestion_ops mltcp_cubic = {
	.init = (void *)cubic_init,
	.release = (void *)cubic_release,
	.pkts_acked = (void *)cubic_acked,
	.cwnd_event = (void *)cubic_event,
	ON_TX_START(cubic_tx_start)
	.cong_avoid = (void *)cubic_cong_avoid,
	.set_state = (void *)cubic_state,
	.ssthresh = (void *)cubic_ssthresh,
	.undo_cwnd = (void *)cubic_undo,
	.name = "mltcp_cubic",
};
