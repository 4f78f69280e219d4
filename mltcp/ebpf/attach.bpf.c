// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * A sockops program on a job's cgroup: tags every TCP socket that a process in it opens or accepts with the job, and sets
 * its congestion control, mark and priority. One copy is loaded per job; `attachment` is set before loading.
 *
 * Where jobs are nested, the kernel runs the programs of all cgroups from the socket's own upwards. The innermost job has
 * the socket; the programs above leave it alone.
 */
#include "mltcp.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

struct attachment {
	__u32 job;
	__u32 class; /* the HTB class of a paced job, which a priority selects; 0: none */
	__u32 mark;  /* selects it, too; 0: none */
	__u32 level; /* of the cgroup: how far it is below the root */
	char control[CONTROL_NAME_BYTES];
};

const volatile struct attachment attachment = {};

/* Take the socket for the job, if there is one in the kernel. Returns false if it is an inner job's. */
static __always_inline bool take(struct bpf_sock_ops *context, bool connected)
{
	struct bpf_sock *sk = context->sk;
	struct tag *tag;

	if (!sk)
		return true;
	/* Without controls of ours there is no storage that the programs share: the class of another job tells. */
	if (attachment.class && sk->priority != attachment.class && sk->priority >> 16 == attachment.class >> 16)
		return false;
	tag = bpf_sk_storage_get(&mltcp_tags, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!tag)
		return true;
	if (tag->level > attachment.level)
		return false;
	tag->level = attachment.level;
	if (connected && attachment.job)
		tag->job = attachment.job;
	return true;
}

/* HTB selects the class by priority; a classifier selects it by mark: see mltcp/pacing/tc/htb_qdisc.py. */
static __always_inline void classify(struct bpf_sock_ops *context)
{
	__u32 class = attachment.class, mark = attachment.mark;

	if (class)
		bpf_setsockopt(context, SOL_SOCKET, SO_PRIORITY, &class, sizeof(class));
	if (mark)
		bpf_setsockopt(context, SOL_SOCKET, SO_MARK, &mark, sizeof(mark));
}

static __always_inline void control(struct bpf_sock_ops *context)
{
	if (attachment.control[0])
		bpf_setsockopt(context, IPPROTO_TCP, TCP_CONGESTION, (void *)attachment.control, CONTROL_NAME_BYTES);
}

SEC("sockops")
int mltcp_attach(struct bpf_sock_ops *context)
{
	switch (context->op) {
	case BPF_SOCK_OPS_TCP_LISTEN_CB: /* before the SYN-ACK: the control decides whether ECN is accepted */
		if (take(context, false))
			control(context);
		break;
	case BPF_SOCK_OPS_TCP_CONNECT_CB:         /* before the SYN, for the same reason */
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:  /* again, if the program chose another control in between */
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (take(context, true)) {
			classify(context);
			control(context);
		}
	}
	return 1;
}
