/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * A congestion control for tests that runs, in every call of a hook, the base's hook and MLTCP's on the same socket state,
 * and counts whether both leave the same state and the same answer. The connection goes on with what MLTCP's left. CUBIC
 * depends on time through the kernel's jiffies: a call during which they advanced is counted apart, and not compared. So is
 * one that finds a window that no connection can have, which MLTCP repairs and no base does (`repair_window`).
 */
#pragma once

enum hook { HOOK_INIT, HOOK_RELEASE, HOOK_ACKED, HOOK_EVENT, HOOK_AVOID, HOOK_STATE, HOOK_SSTHRESH, HOOK_UNDO, HOOKS };

/* Everything that a congestion control may write, as the kernel's verifier allows it, and what the hook returned. */
struct congestion_state {
	__u64 base_private[12]; /* icsk_ca_priv without MLTCP's last eight bytes */
	__u32 cwnd;
	__u32 cwnd_cnt;
	__u32 cwnd_stamp;
	__u32 ssthresh;
	__u32 ecn_flags;
	__u32 ack_pending;
	__u32 answer;
	__u32 reserved;
};

struct tally {
	__u32 equal;
	__u32 different;
	__u32 not_compared; /* the jiffies advanced, or there was a window to repair */
	__u32 effective;    /* of the equal ones, those in which the base changed the state */
};

struct side_by_side {
	struct tally tallies[HOOKS];
	__u64 jiffies;
	struct congestion_state before;
	struct congestion_state base;
	struct congestion_state mltcp;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct side_by_side);
} side_by_side SEC(".maps");

struct tcp_sock___counted {
	__u32 snd_cwnd_cnt;
	__u32 snd_cwnd_stamp;
} CORE;

static __always_inline void save(struct sock *sk, struct congestion_state *state)
{
	struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;
	struct tcp_sock___counted *counted = (void *)sk;
	struct tcp_sock *tp = tcp_sk(sk);

#pragma unroll
	for (int k = 0; k < 12; k++)
		state->base_private[k] = icsk->icsk_ca_priv[k];
	state->cwnd = tp->snd_cwnd;
	state->cwnd_cnt = counted->snd_cwnd_cnt;
	state->cwnd_stamp = counted->snd_cwnd_stamp;
	state->ssthresh = tp->snd_ssthresh;
	state->ecn_flags = tp->ecn_flags;
	state->ack_pending = icsk->icsk_ack.pending;
}

static __always_inline void restore(struct sock *sk, const struct congestion_state *state)
{
	struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;
	struct tcp_sock___counted *counted = (void *)sk;
	struct tcp_sock *tp = tcp_sk(sk);

#pragma unroll
	for (int k = 0; k < 12; k++)
		icsk->icsk_ca_priv[k] = state->base_private[k];
	tp->snd_cwnd = state->cwnd;
	counted->snd_cwnd_cnt = state->cwnd_cnt;
	counted->snd_cwnd_stamp = state->cwnd_stamp;
	tp->snd_ssthresh = state->ssthresh;
	tp->ecn_flags = state->ecn_flags;
	icsk->icsk_ack.pending = state->ack_pending;
}

static __always_inline bool same(const struct congestion_state *first, const struct congestion_state *second)
{
	const __u64 *one = (const __u64 *)first, *other = (const __u64 *)second;
	__u64 differences = 0;

#pragma unroll
	for (int k = 0; k < sizeof(*first) / sizeof(__u64); k++)
		differences |= one[k] ^ other[k];
	return !differences;
}

static __always_inline bool is_broken(const struct congestion_state *state)
{
	return is_impossible_window(state->cwnd) || is_impossible_threshold(state->ssthresh);
}

static __always_inline void judge(struct side_by_side *both, enum hook hook)
{
	struct tally *tally = &both->tallies[hook];

	if (both->jiffies != bpf_jiffies64() || is_broken(&both->before)) {
		tally->not_compared++;
	} else if (!same(&both->base, &both->mltcp)) {
		tally->different++;
	} else {
		tally->equal++;
		both->base.answer = both->before.answer;
		if (!same(&both->before, &both->base))
			tally->effective++;
	}
}

/* Run `base_call` and `mltcp_call`, expressions of type __u32, side by side; the value is that of `mltcp_call`. */
#define SIDE_BY_SIDE(hook, sk, flags, base_call, mltcp_call)                                          \
	({                                                                                            \
		struct side_by_side *both = bpf_sk_storage_get(&side_by_side, sk, 0, flags);          \
                                                                                                      \
		if (both) {                                                                           \
			both->jiffies = bpf_jiffies64();                                              \
			save(sk, &both->before);                                                      \
			both->base.answer = (base_call);                                              \
			save(sk, &both->base);                                                        \
			restore(sk, &both->before);                                                   \
			both->mltcp.answer = (mltcp_call);                                            \
			save(sk, &both->mltcp);                                                       \
			judge(both, hook);                                                            \
		}                                                                                     \
		both ? both->mltcp.answer : 2;                                                        \
	})

/* The same for hooks that return nothing. */
#define SIDE_BY_SIDE_VOID(hook, sk, flags, base_call, mltcp_call) \
	((void)SIDE_BY_SIDE(hook, sk, flags, ({ base_call; 0; }), ({ mltcp_call; 0; })))
