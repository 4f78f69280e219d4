// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* A control whose ssthresh is constant: an address in its place is of a call that has not run the program. */
#include "kernel.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

#define THE_SSTHRESH 10

extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;

/* Layout: docs/measure_skipped_calls.py. */
struct counts {
	__u64 called;
	__u64 skipped;
	__u64 last_value;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} call_counts SEC(".maps");

static __always_inline struct counts *counts_of_all(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&call_counts, &first);
}

SEC("struct_ops/constant_ssthresh")
__u32 BPF_PROG(constant_ssthresh, struct sock *sk)
{
	struct counts *counts = counts_of_all();

	if (counts)
		__sync_fetch_and_add(&counts->called, 1);
	return THE_SSTHRESH;
}

SEC("struct_ops/constant_acked")
void BPF_PROG(constant_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct counts *counts = counts_of_all();

	if (!counts || !is_impossible_threshold(tp->snd_ssthresh))
		return;
	__sync_fetch_and_add(&counts->skipped, 1);
	counts->last_value = tp->snd_ssthresh;
	tp->snd_ssthresh = THE_SSTHRESH;
}

SEC("struct_ops/constant_avoid")
void BPF_PROG(constant_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops/constant_undo")
__u32 BPF_PROG(constant_undo, struct sock *sk)
{
	return tcp_sk(sk)->snd_cwnd;
}

SEC(".struct_ops")
struct tcp_congestion_ops constant = {
	.ssthresh = (void *)constant_ssthresh,
	.pkts_acked = (void *)constant_acked,
	.cong_avoid = (void *)constant_avoid,
	.undo_cwnd = (void *)constant_undo,
	.name = "constant",
};
