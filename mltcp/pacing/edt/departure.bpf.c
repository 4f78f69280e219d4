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

struct departures {
	__u64 next_ns; /* CLOCK_MONOTONIC: when the next packet may leave */
	__u64 sent_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64); /* bytes a second */
} rates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct departures);
} jobs SEC(".maps");

SEC("tc")
int departure(struct __sk_buff *packet)
{
	__u32 mark = packet->mark, number = mark & ~config.mask;
	__u64 now = bpf_ktime_get_ns(), takes_ns, next, earliest;
	struct departures *job;
	__u64 *rate;

	if ((mark & config.mask) != config.mark)
		return TC_ACT_UNSPEC;
	rate = bpf_map_lookup_elem(&rates, &number);
	job = bpf_map_lookup_elem(&jobs, &number);
	if (!rate || !job || !*rate)
		return TC_ACT_UNSPEC;

	takes_ns = packet->wire_len * NSEC_PER_SEC / *rate;
	__sync_fetch_and_add(&job->sent_bytes, packet->wire_len);
	next = __sync_fetch_and_add(&job->next_ns, takes_ns);
	earliest = now - config.credit_ns;
	if (next < earliest) {
		/* The job was silent. Of processors that find this at once one counts: no more than a packet each. */
		next = earliest;
		job->next_ns = next + takes_ns;
	}
	/* TCP may have set a later one, by its own pacing. */
	if (next > now && next > packet->tstamp)
		packet->tstamp = next;
	return TC_ACT_UNSPEC;
}
