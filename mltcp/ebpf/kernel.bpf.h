/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The kernel types that the congestion controls use, declared for CO-RE: only the fields named here have to exist, and
 * libbpf relocates them to their offsets in the running kernel by its BTF. No generated vmlinux.h is needed.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define CORE __attribute__((preserve_access_index))

enum { TCP_SYN_SENT = 2, TCP_FIN_WAIT1 = 4, TCP_FIN_WAIT2 = 5, TCP_TIME_WAIT = 6, TCP_CLOSE = 7, TCP_LAST_ACK = 9,
       TCP_LISTEN = 10, TCP_CLOSING = 11 };

enum tcp_ca_state { TCP_CA_Open, TCP_CA_Disorder, TCP_CA_CWR, TCP_CA_Recovery, TCP_CA_Loss };

enum tcp_ca_event { CA_EVENT_TX_START, CA_EVENT_CWND_RESTART, CA_EVENT_COMPLETE_CWR, CA_EVENT_LOSS, CA_EVENT_ECN_NO_CE,
		    CA_EVENT_ECN_IS_CE };

/* The value of an event in the running kernel. */
#define CA_EVENT(name) bpf_core_enum_value(enum tcp_ca_event, CA_EVENT_##name)

enum { TCP_CONG_NEEDS_ECN = 0x2 };

/* Of setsockopt(2). */
enum { SOL_SOCKET = 1, SO_PRIORITY = 12, SO_MARK = 36, IPPROTO_TCP = 6, TCP_CONGESTION = 13, CONTROL_NAME_BYTES = 16,
       IPPROTO_IP = 0, IP_TOS = 1, IPPROTO_IPV6 = 41, IPV6_TCLASS = 67 };

enum { AF_INET = 2 };

/* tcp_sock.ecn_flags: RFC 3168 ECN was negotiated; the receiver must echo congestion. */
enum { ECN_OK = 0x1, ECN_DEMAND_CWR = 0x4 };

/* inet_connection_sock.icsk_ack.pending: a delayed ACK waits for its timer; an ACK must be sent now. */
enum { ACK_TIMER = 0x2, ACK_NOW = 0x10 };

struct in6_addr {
	__u8 s6_addr[16];
};

struct sock_common {
	unsigned short skc_family;
	volatile unsigned char skc_state;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
} CORE;

struct sock {
	struct sock_common __sk_common;
	__u32 sk_priority;
} CORE;

struct inet_sock {
	struct sock sk;
	__u8 tos;
} CORE;

struct tcp_congestion_ops;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_congestion_ops *icsk_ca_ops;
	struct {
		__u8 pending;
	} icsk_ack;
	__u8 icsk_syn_retries; /* of TCP_SYNCNT */
	__u64 icsk_ca_priv[13];
} CORE;

struct minmax_sample {
	__u32 t;
	__u32 v;
} CORE;

struct minmax {
	struct minmax_sample s[3];
} CORE;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct minmax rtt_min; /* microseconds, over five minutes */
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 write_seq;
	__u32 snd_cwnd;
	__u32 snd_ssthresh;
	__u32 srtt_us;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 total_retrans;
	__u32 packets_out;
	__u64 bytes_acked;
	__u64 tcp_mstamp; /* CLOCK_MONOTONIC in microseconds, at the current packet */
	__u8 ecn_flags;
} CORE;

struct ack_sample {
	__u32 pkts_acked;
	__s32 rtt_us;
	__u32 in_flight;
} CORE;

/*
 * From 7.1 on the kernel calls cwnd_event_tx_start at the first transmission after an idle period, and cwnd_event for other
 * events only. libbpf before 1.5 refuses a member that the running kernel does not have, so build.py compiles the controls
 * with and without TX_START_HOOK.
 */
#ifdef TX_START_HOOK
#define ON_TX_START(program) .cwnd_event_tx_start = (void *)program,
#else
#define ON_TX_START(program)
#endif

struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
#ifdef TX_START_HOOK
	void (*cwnd_event_tx_start)(struct sock *sk);
#endif
	void (*in_ack_event)(struct sock *sk, __u32 flags);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	__u32 flags;
	char name[16];
} CORE;

static __always_inline struct tcp_sock *tcp_sk(const struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static __always_inline void *ca_priv(const struct sock *sk)
{
	return (void *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

/* Whether a sequence number is before another; they wrap. */
static __always_inline bool before(__u32 first, __u32 second)
{
	return (__s32)(first - second) < 0;
}

static __always_inline bool in_slow_start(const struct tcp_sock *tp)
{
	return tp->snd_cwnd < tp->snd_ssthresh;
}

/*
 * Some kernels skip struct_ops programs while PID 1 is the current task (docs/ebpf.md, "Calls that do not happen"). The
 * caller then takes an uninitialised stack slot as the result: ssthresh() has returned the lower half of a kernel address,
 * and the window then grew without bound. So this replaces a window or threshold that no connection can have by the last
 * good one.
 */
#define LARGEST_WINDOW (1U << 24)
#define INFINITE_SSTHRESH 0x7fffffffU

static __always_inline bool is_impossible_window(__u32 cwnd)
{
	return cwnd > LARGEST_WINDOW;
}

static __always_inline bool is_impossible_threshold(__u32 ssthresh)
{
	return ssthresh > LARGEST_WINDOW && ssthresh != INFINITE_SSTHRESH;
}

static __always_inline void repair_window(struct sock *sk, __u32 *good_cwnd)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (is_impossible_threshold(tp->snd_ssthresh))
		tp->snd_ssthresh = *good_cwnd > 4 ? *good_cwnd / 2 : 2;
	if (is_impossible_window(tp->snd_cwnd))
		tp->snd_cwnd = *good_cwnd > 2 ? *good_cwnd : 2;
	else
		*good_cwnd = tp->snd_cwnd;
}
