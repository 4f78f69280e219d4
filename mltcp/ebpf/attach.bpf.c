// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Attached to a job's cgroup: every TCP socket that a process in it opens or accepts gets the job's identity and its
 * congestion control. One copy is loaded per job, with the two filled in before loading.
 */
#include "mltcp.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

#define IPPROTO_TCP 6
#define TCP_CONGESTION 13
#define CONTROL_NAME_BYTES 16

struct attachment {
	__u32 job;
	char control[CONTROL_NAME_BYTES];
};

const volatile struct attachment attachment = {};

static __always_inline void tag(struct bpf_sock_ops *context)
{
	struct bpf_sock *sk = context->sk;
	struct flow *flow;

	if (!sk || !attachment.job)
		return;
	flow = bpf_sk_storage_get(&mltcp_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (flow)
		flow->job = attachment.job;
}

SEC("sockops")
int mltcp_attach(struct bpf_sock_ops *context)
{
	switch (context->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:         /* before the SYN: whether to ask for ECN hangs on the control */
	case BPF_SOCK_OPS_TCP_LISTEN_CB:          /* before the SYN-ACK, for the same reason */
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:  /* again, in case the program chose a control of its own in between */
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (context->op != BPF_SOCK_OPS_TCP_LISTEN_CB)
			tag(context);
		bpf_setsockopt(context, IPPROTO_TCP, TCP_CONGESTION, (void *)attachment.control, CONTROL_NAME_BYTES);
	}
	return 1;
}
