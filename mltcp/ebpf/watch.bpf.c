// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* An iterator over the flows of all controls of this project, in every network namespace. */
#include "mltcp.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} CORE;

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
} CORE;

/* The addresses of IPv6, which a kernel without it does not have. */
struct sock_common___ipv6 {
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} CORE;

enum { AF_INET6 = 10 };

struct flow_line {
	__u64 cookie;
	__u32 job;
	__u32 state;
	__u16 family;
	__u16 local_port;
	__be16 remote_port;
	__u16 reserved_port;
	__u8 local_address[16]; /* of IPv4: the first four bytes */
	__u8 remote_address[16];
	__u32 ratio_q16;
	__u32 factor_q16;
	__u32 cwnd;
	__u32 srtt_us;
	__u32 retransmits;
	__u32 marks;
	__u64 iteration;
	__u64 bytes;
	__u64 acked;
	char control[16];
};

static __always_inline void put_addresses(struct flow_line *line, const struct sock *sk)
{
	const struct sock_common___ipv6 *six = (const void *)sk;
	__be32 local = sk->__sk_common.skc_rcv_saddr, remote = sk->__sk_common.skc_daddr;

	if (line->family == AF_INET6 && bpf_core_field_exists(six->skc_v6_daddr)) {
		bpf_core_read(line->local_address, sizeof(line->local_address), &six->skc_v6_rcv_saddr);
		bpf_core_read(line->remote_address, sizeof(line->remote_address), &six->skc_v6_daddr);
		return;
	}
	__builtin_memcpy(line->local_address, &local, sizeof(local));
	__builtin_memcpy(line->remote_address, &remote, sizeof(remote));
}

SEC("iter/bpf_sk_storage_map")
int mltcp_watch(struct bpf_iter__bpf_sk_storage_map *context)
{
	struct seq_file *seq = context->meta->seq;
	struct sock *sk = context->sk;
	struct flow *flow = context->value;
	struct flow_line line = {};
	struct tcp_sock *tp;
	struct tag *tag;

	if (!sk || !flow)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	tag = bpf_sk_storage_get(&mltcp_tags, sk, 0, 0);
	line.cookie = bpf_get_socket_cookie(sk);
	line.job = tag ? tag->job : 0;
	line.state = sk->__sk_common.skc_state;
	line.family = sk->__sk_common.skc_family;
	line.local_port = sk->__sk_common.skc_num;
	line.remote_port = sk->__sk_common.skc_dport;
	put_addresses(&line, sk);
	line.ratio_q16 = flow->ratio_q16;
	line.factor_q16 = flow->factor_q16;
	line.cwnd = tp->snd_cwnd;
	line.srtt_us = tp->srtt_us >> 3;
	line.retransmits = tp->total_retrans;
	line.marks = tp->delivered_ce;
	line.iteration = flow->iteration;
	line.bytes = flow->bytes;
	line.acked = flow->acked_seen;
	BPF_CORE_READ_STR_INTO(&line.control, tp, inet_conn.icsk_ca_ops, name);
	bpf_seq_write(seq, &line, sizeof(line));
	return 0;
}
