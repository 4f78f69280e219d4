// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* The DCTCP of this project (bpf_dctcp) and MLTCP-DCTCP side by side; hooks that both share run once. */
#include "dctcp.bpf.c"
#include "side_by_side.bpf.h"

SEC("struct_ops/twice_init")
void BPF_PROG(twice_init, struct sock *sk)
{
	SIDE_BY_SIDE_VOID(HOOK_INIT, sk, BPF_SK_STORAGE_GET_F_CREATE, ____dctcp_init(ctx, sk),
			  ____mltcp_dctcp_init(ctx, sk));
}

SEC("struct_ops/twice_release")
void BPF_PROG(twice_release, struct sock *sk)
{
	SIDE_BY_SIDE_VOID(HOOK_RELEASE, sk, 0, , ____mltcp_dctcp_release(ctx, sk));
}

SEC("struct_ops/twice_acked")
void BPF_PROG(twice_acked, struct sock *sk, const struct ack_sample *sample)
{
	SIDE_BY_SIDE_VOID(HOOK_ACKED, sk, 0, , ____mltcp_dctcp_acked(ctx, sk, sample));
}

SEC("struct_ops/twice_event")
void BPF_PROG(twice_event, struct sock *sk, enum tcp_ca_event event)
{
	SIDE_BY_SIDE_VOID(HOOK_EVENT, sk, 0, ____dctcp_cwnd_event(ctx, sk, event),
			  ____mltcp_dctcp_event(ctx, sk, event));
}

SEC("struct_ops/twice_avoid")
void BPF_PROG(twice_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	SIDE_BY_SIDE_VOID(HOOK_AVOID, sk, 0, ____dctcp_cong_avoid(ctx, sk, ack, acked),
			  ____mltcp_dctcp_avoid(ctx, sk, ack, acked));
}

SEC("struct_ops/twice_ssthresh")
__u32 BPF_PROG(twice_ssthresh, struct sock *sk)
{
	return SIDE_BY_SIDE(HOOK_SSTHRESH, sk, 0, ____dctcp_ssthresh(ctx, sk), ____mltcp_dctcp_ssthr(ctx, sk));
}

SEC(".struct_ops")
struct tcp_congestion_ops dctcp_twice = {
	.init = (void *)twice_init,
	.release = (void *)twice_release,
	.in_ack_event = (void *)dctcp_in_ack,
	.pkts_acked = (void *)twice_acked,
	.cwnd_event = (void *)twice_event,
	.cong_avoid = (void *)twice_avoid,
	.set_state = (void *)dctcp_state,
	.ssthresh = (void *)twice_ssthresh,
	.undo_cwnd = (void *)dctcp_undo,
	.flags = TCP_CONG_NEEDS_ECN,
	.name = "dctcp_twice",
};
