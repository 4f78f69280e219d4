// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* One direction of a bottleneck link: at_entry marks what finds the queue too long, at_exit counts what was carried.
 *
 * at_entry runs at the clsact egress of the sending end, before the shaper's queue. It models that queue as a virtual
 * one that drains at exactly the link's rate: q = max(0, q - elapsed * rate) + length. Whatever is ECN-capable and
 * finds q above the threshold is marked (or, up to the end of a ramp, with a probability that rises there), so that
 * marks need nothing of the kernel but this classifier. Where acknowledgements overtake data, it puts them into their
 * class of the shaper. Where the link has a queue for each traffic class, so has the model, and the highest one that is
 * not empty drains.
 *
 * at_exit runs at the clsact ingress of the receiving end, behind the shaper. What it counts has been carried: dropped
 * packets are not in it, and no bin holds more than the link can carry.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define JOBS 24           /* topology.MAX_JOBS */
#define BINS 65536        /* a power of two */
#define BIN_NS 5000000ULL /* bottleneck.BIN_NS */
#define NETWORK 0x0a4d    /* 10.77, topology.NETWORK */
#define NANO 1000000000ULL
#define MAX_CLASSES 8     /* link.MAX_CLASSES */
#define CLASS_SHIFT 5     /* of the class selector in the type of service, RFC 2474 */
#define ECN_MASK 3
#define NOT_ECT 0
#define CE 3

struct config {
	__u64 rate_bytes_per_s;
	__u64 room_nanobytes;      /* what the real queue and its burst hold: more is dropped there, and not counted here */
	__u64 threshold_nanobytes; /* 0: mark nothing */
	__u64 ramp_bytes;          /* above it, within which marks are drawn; 0: there all are marked */
	__u64 probability_q32;     /* at the end of the ramp */
	__u64 drain_ns;            /* how long a full queue takes to drain */
	__u64 epoch_ns;            /* start of the first bin, CLOCK_MONOTONIC; 0: count nothing */
	__u64 ack_class;           /* the shaper's class for segments without data; 0: they wait as data do */
	__u64 classes;             /* queues, of which the highest that is not empty is sent first */
	__u64 first_class;         /* the shaper's class of traffic class 0, before those of the others; 0: it has one queue */
};

/* In 1e-9 bytes, so that elapsed nanoseconds times bytes per second is exact and no rounding adds up over packets. */
struct virtual_queue {
	struct bpf_spin_lock lock;
	__u64 backlog_nanobytes[MAX_CLASSES];
	__u64 updated_ns;
};

struct counters {
	__u64 packets;
	__u64 bytes;
	__u64 unbinned_bytes; /* of no job (ARP), or after the last bin */
	__u64 marks;
};

struct job_bins {
	__u32 bytes[BINS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct virtual_queue);
} queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, JOBS);
	__type(key, __u32);
	__type(value, struct job_bins);
} bins SEC(".maps");

static const __u32 only;

static struct iphdr *ipv4_header(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *frame = data;
	struct iphdr *header = data + sizeof(*frame);

	if ((void *)(header + 1) > end || frame->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	return header;
}

/* Whether this is a TCP segment without data, which in an open connection only acknowledges. */
static int without_data(struct __sk_buff *skb, struct iphdr *header)
{
	void *end = (void *)(long)skb->data_end;
	struct tcphdr *segment = (void *)(header + 1);

	/* With IP options the segment is elsewhere: nobody here sends any. */
	if (header->ihl != 5 || header->protocol != IPPROTO_TCP || (void *)(segment + 1) > end)
		return 0;
	return bpf_ntohs(header->tot_len) == sizeof(*header) + segment->doff * 4;
}

/* The traffic class of a packet; the highest queue is for all classes above. Without an IPv4 header: 0. */
static __u32 class_of(const struct config *link, const struct iphdr *header)
{
	__u32 class = header ? header->tos >> CLASS_SHIFT : 0;

	if (class >= link->classes)
		class = link->classes - 1;
	return class & (MAX_CLASSES - 1);
}

/* The queue of the packet's class after it, in 1e-9 bytes. What is sent meanwhile is of the highest classes. */
static __u64 queue_packet(const struct config *link, __u32 length, __u32 class)
{
	struct virtual_queue *state = bpf_map_lookup_elem(&queue, &only);
	__u64 added = length * NANO, now = bpf_ktime_get_ns();
	__u64 backlog, elapsed, drained, part;

	if (!state)
		return 0;
	/* The shaper's own lock is taken after this program, so that several CPUs may be here at once; draining and
	 * adding are one step that no single atomic operation makes. */
	bpf_spin_lock(&state->lock);
	/* Having waited for the lock, this CPU may hold a time before the last one's. */
	elapsed = now > state->updated_ns ? now - state->updated_ns : 0;
	/* After a pause longer than that all queues are empty, and the product could overflow. */
	drained = elapsed < link->drain_ns ? elapsed * link->rate_bytes_per_s : ~0ULL;
	for (int each = MAX_CLASSES - 1; each >= 0; each--) {
		part = state->backlog_nanobytes[each] < drained ? state->backlog_nanobytes[each] : drained;
		state->backlog_nanobytes[each] -= part;
		drained -= part;
	}
	backlog = state->backlog_nanobytes[class];
	if (backlog + added <= link->room_nanobytes)
		backlog += added;
	state->backlog_nanobytes[class] = backlog;
	if (elapsed)
		state->updated_ns = now;
	bpf_spin_unlock(&state->lock);
	return backlog;
}

/* Whether a packet is marked that finds so much queue above the threshold. */
static int draws_mark(const struct config *link, __u64 excess_nanobytes)
{
	__u64 excess = excess_nanobytes / NANO;

	if (excess >= link->ramp_bytes)
		return 1;
	return bpf_get_prandom_u32() < excess * link->probability_q32 / link->ramp_bytes;
}

SEC("tc")
int at_entry(struct __sk_buff *skb)
{
	const struct config *link = bpf_map_lookup_elem(&config, &only);
	struct counters *sum = bpf_map_lookup_elem(&counters, &only);
	struct iphdr *header = ipv4_header(skb);
	__u8 ecn = header ? header->tos & ECN_MASK : NOT_ECT;
	__u64 queued;

	if (!link || !sum)
		return TC_ACT_OK;
	if (link->ack_class && header && without_data(skb, header))
		skb->priority = link->ack_class;
	if (link->first_class)
		skb->priority = link->first_class + class_of(link, header);
	if (!link->threshold_nanobytes)
		return TC_ACT_OK;
	queued = queue_packet(link, skb->len, class_of(link, header));
	if (queued <= link->threshold_nanobytes || ecn == NOT_ECT || ecn == CE)
		return TC_ACT_OK;
	if (!draws_mark(link, queued - link->threshold_nanobytes))
		return TC_ACT_OK;
	if (bpf_skb_ecn_set_ce(skb) && link->epoch_ns)
		__sync_fetch_and_add(&sum->marks, 1);
	return TC_ACT_OK;
}

/* Where the bytes of this packet are counted; NULL for what is of no job or too late. */
static __u32 *bin_of(struct __sk_buff *skb, __u64 elapsed_ns)
{
	struct iphdr *header = ipv4_header(skb);
	__u64 bin = elapsed_ns / BIN_NS;
	struct job_bins *job;
	__u32 source, target, number;

	if (!header || bin >= BINS)
		return 0;
	source = bpf_ntohl(header->saddr);
	target = bpf_ntohl(header->daddr);
	if (source >> 16 != NETWORK || target >> 16 != NETWORK)
		return 0;
	number = source >> 8 & 0xff;
	/* A server's own address is of no job: what it sends is of the receiver's. */
	if (number >= JOBS)
		number = target >> 8 & 0xff;
	job = bpf_map_lookup_elem(&bins, &number);
	return job ? &job->bytes[bin & (BINS - 1)] : 0;
}

SEC("tc")
int at_exit(struct __sk_buff *skb)
{
	const struct config *link = bpf_map_lookup_elem(&config, &only);
	struct counters *sum = bpf_map_lookup_elem(&counters, &only);
	__u64 now = bpf_ktime_get_ns(), epoch;
	__u32 *bin;

	if (!link || !sum)
		return TC_ACT_OK;
	epoch = link->epoch_ns;
	if (!epoch || now < epoch)
		return TC_ACT_OK;
	__sync_fetch_and_add(&sum->packets, 1);
	__sync_fetch_and_add(&sum->bytes, skb->len);
	bin = bin_of(skb, now - epoch);
	if (bin)
		__sync_fetch_and_add(bin, skb->len);
	else
		__sync_fetch_and_add(&sum->unbinned_bytes, skb->len);
	return TC_ACT_OK;
}

char _license[] SEC("license") = "Dual BSD/GPL";
