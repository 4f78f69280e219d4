// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* The earliest departure time of each packet of a paced job, by its mark; the qdisc fq keeps to it.
 *
 * The packets of a job, in whatever transmit queues, leave one after the other: each takes the time that its bytes need
 * at the job's rate. Packets of no job, and of jobs without a rate, are left as they are.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#define NSEC_PER_SEC 1000000000ULL

char _license[] SEC("license") = "Dual BSD/GPL";

struct config {
	__u32 mark; /* the bits that tell that a mark is one of a job's */
	__u32 mask;
	__u64 credit_ns; /* a job that was late may catch up by so much */
};

const volatile struct config config = { 0 };

struct rate {
	__u64 bytes_per_s;
	__u64 ahead_ns; /* no packet leaves later than so long from now: fq drops what is beyond its horizon */
};

struct departures {
	struct bpf_spin_lock lock;
	__u64 next_ns; /* CLOCK_MONOTONIC: when the next packet may leave, at this rate: */
	__u64 bytes_per_s;
	__u64 sent_bytes;
	__u64 forwarded_ns; /* the departure of the last packet without a socket */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct rate);
} rates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct departures);
} jobs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64); /* the departure of its last packet */
} flows SEC(".maps");

/* What the job has sent ahead of its rate is bytes: at another rate they take another time.
 *
 * In microseconds, so that nothing overflows: at most 10 s at 10^12 bytes a second.
 */
static __always_inline void follow_rate(struct departures *job, __u64 bytes_per_s, __u64 now)
{
	if (job->bytes_per_s == bytes_per_s)
		return;
	if (job->next_ns > now)
		job->next_ns = now + (job->next_ns - now) / 1000 * job->bytes_per_s / bytes_per_s * 1000;
	job->bytes_per_s = bytes_per_s;
}

/* The departure of a packet that a job sends now, and the time of its next one. */
static __always_inline __u64 take_turn(struct departures *job, struct rate rate, __u64 wire_bytes, __u64 now)
{
	__u64 takes_ns = wire_bytes * NSEC_PER_SEC / rate.bytes_per_s;
	__u64 earliest = now - config.credit_ns, latest = now + rate.ahead_ns, next;

	bpf_spin_lock(&job->lock);
	follow_rate(job, rate.bytes_per_s, now);
	next = job->next_ns < earliest ? earliest : job->next_ns;
	if (next > latest)
		next = latest;
	job->next_ns = next + takes_ns < latest ? next + takes_ns : latest;
	job->sent_bytes += wire_bytes;
	bpf_spin_unlock(&job->lock);
	return next;
}

/* After a rate was raised a packet must not overtake those of its flow that got their departure before: to TCP that
 * would be a loss. Packets without a socket, which this host forwards, are one flow of the job.
 */
static __always_inline __u64 in_order(struct __sk_buff *packet, struct departures *job, __u64 departure)
{
	struct bpf_sock *sk = packet->sk;
	__u64 *last_ns = &job->forwarded_ns;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk)
		last_ns = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!last_ns)
		return departure;
	if (*last_ns < departure)
		*last_ns = departure;
	return *last_ns;
}

SEC("tc")
int departure(struct __sk_buff *packet)
{
	__u32 mark = packet->mark, number = mark & ~config.mask;
	__u64 now = bpf_ktime_get_ns(), next;
	struct departures *job;
	struct rate *rate;

	if ((mark & config.mask) != config.mark)
		return TC_ACT_UNSPEC;
	rate = bpf_map_lookup_elem(&rates, &number);
	job = bpf_map_lookup_elem(&jobs, &number);
	if (!rate || !job || !rate->bytes_per_s)
		return TC_ACT_UNSPEC;

	next = take_turn(job, *rate, packet->wire_len, now);
	/* TCP may have set a later one, by its own pacing. */
	next = in_order(packet, job, next > packet->tstamp ? next : packet->tstamp);
	/* One that is past is set, too, where there is another: fq sorts a flow by it. Without one fq takes the present. */
	if (next > packet->tstamp && (next > now || packet->tstamp))
		packet->tstamp = next;
	return TC_ACT_UNSPEC;
}
