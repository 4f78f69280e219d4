// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* What the switch does with a packet of the sender, at the clsact ingress of the sender's port.
 *
 * Tails: it drops the last segments of iterations, once each; what is sent again passes. TCP does not see it, as it
 * would see a drop in its own namespace. A flow begins with its SYN, from which bytes are counted, and sends the same
 * number of bytes in every iteration.
 *
 * Orphans: a veth keeps the packet's reference to its socket, and a bridge does too, so that a queue behind them limits
 * the sender (TCP small queues) as that of its own NIC would. Where the bottleneck is to be a switch's, a copy without
 * that reference takes the packet's place.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FLOWS 1024

struct config {
	__u32 iteration_bytes; /* of one flow; 0: drop nothing */
	__u32 tail_bytes;      /* a packet with one of the last so many bytes of an iteration is dropped */
	__u32 every;           /* in the last of every so many iterations */
	__u32 orphans_to;      /* the interface of the bottleneck, to which copies go; 0: packets pass as they are */
};

struct flow {
	__u32 first_byte; /* the sequence number of the first byte */
	__u32 sent_bytes; /* up to the last byte that was seen so far */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOWS);
	__type(key, __u32); /* both ports */
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} dropped SEC(".maps");

static const __u32 only;

/* Whether a packet whose last byte is before `end` has a part of the tail of an iteration that is to lose it. A packet
 * does not begin in one iteration and end in another: there is a pause between them. */
static int touches_tail(const struct config *wanted, __u32 end)
{
	__u32 iteration = (end - 1) / wanted->iteration_bytes;
	__u32 next = (iteration + 1) * wanted->iteration_bytes;

	if ((iteration + 1) % wanted->every)
		return 0;
	return end + wanted->tail_bytes > next;
}

static int is_dropped(struct __sk_buff *skb, const struct config *wanted)
{
	void *data = (void *)(long)skb->data, *stop = (void *)(long)skb->data_end;
	struct iphdr *header = data + sizeof(struct ethhdr);
	struct tcphdr *segment = (void *)(header + 1);
	__u32 ports, end, length;
	struct flow *flow;
	__u64 *count;

	if ((void *)(segment + 1) > stop || skb->protocol != bpf_htons(ETH_P_IP))
		return 0;
	if (header->ihl != 5 || header->protocol != IPPROTO_TCP)
		return 0;
	ports = (__u32)segment->source << 16 | segment->dest;
	if (segment->syn) {
		struct flow fresh = {.first_byte = bpf_ntohl(segment->seq) + 1};

		bpf_map_update_elem(&flows, &ports, &fresh, BPF_ANY);
		return 0;
	}
	flow = bpf_map_lookup_elem(&flows, &ports);
	/* The IP length of a packet beyond 64 KB is 0: the device's length is right for all. */
	length = skb->len - sizeof(struct ethhdr) - sizeof(*header) - segment->doff * 4;
	if (!flow || !wanted->iteration_bytes || !wanted->every || !length)
		return 0;
	end = bpf_ntohl(segment->seq) - flow->first_byte + length;
	if ((__s32)(end - flow->sent_bytes) <= 0)
		return 0;
	flow->sent_bytes = end;
	if (!touches_tail(wanted, end))
		return 0;
	count = bpf_map_lookup_elem(&dropped, &only);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 1;
}

SEC("tc")
int at_port(struct __sk_buff *skb)
{
	const struct config *wanted = bpf_map_lookup_elem(&config, &only);

	if (!wanted)
		return TC_ACT_OK;
	if (is_dropped(skb, wanted))
		return TC_ACT_SHOT;
	if (!wanted->orphans_to)
		return TC_ACT_OK;
	bpf_clone_redirect(skb, wanted->orphans_to, 0);
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
