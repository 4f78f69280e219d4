/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * F(bytes_ratio) of MLTCP, arXiv 2402.09589, in fixed point: the twin of mltcp/control/aggressiveness.py, with which the
 * tests compare it. Change both together.
 */
#pragma once

#define Q16_ONE 65536ULL

/* The codes of mltcp.control.aggressiveness.Shape. */
enum shape { SHAPE_ONE, SHAPE_LINEAR, SHAPE_QUADRATIC, SHAPE_RECIPROCAL, SHAPE_CONCAVE, SHAPE_FALLING_LINEAR,
	     SHAPE_FALLING_QUADRATIC, SHAPE_REMAINING };

/* The window of an iteration's first bytes; docs/ebpf.md has the measurements behind the default. */
enum start { START_KERNEL, START_AVOID, START_KEEP, START_PROBE, START_LOOK };

/* Traffic classes are 0 to 7, the class selectors of DSCP (RFC 2474) and the priorities of IEEE 802.1Q; 7 goes first. */
#define CLASS_BOUNDS 7

struct law {
	__u32 shape;
	__u32 slope_q16;
	__u32 intercept_q16;
	__u32 start;
	__u32 decrease_q16; /* d of mltcp_decreased(), 0 to 1; 0: the base's decrease */
	__u32 increase_q16; /* the largest F on the increase; 0: no limit */
	__u32 reference_us; /* F is scaled by sqrt(reference / time to send an iteration); 0: not scaled */
	__u32 highest_class; /* that the administrator allows, 1 to 7, a class selector of DSCP; 0: packets keep their own */
	__u32 class_bounds_kib[CLASS_BOUNDS]; /* of 1,024 bytes, rising, 0 after the last: see mltcp_traffic_class() */
	__u16 fair; /* 1: the flows of a job grow together like one; see mltcp_shared() */
	__u16 whole; /* 1: bytes_ratio is that of the whole iteration, not of its present burst */
};

/* bytes_ratio = min(1, acked / total) in Q16; 0 while the total is unknown. */
static __always_inline __u64 mltcp_bytes_ratio(__u64 acked, __u64 total)
{
	if (!total)
		return 0;
	if (acked >= total)
		return Q16_ONE;
	return (acked << 16) / total;
}

/*
 * F(bytes_ratio) in Q16, with x = bytes_ratio in Q16. MLTCP, arXiv 2402.09589: F = slope * bytes_ratio + intercept; equation
 * 1.2 of the thesis multiplies the increase step by it. The other shapes are those of mltcp/control/aggressiveness.py.
 */
static __always_inline __u64 mltcp_factor(const struct law *law, __u64 x, __u64 scale)
{
	__u64 s = law->slope_q16, i = law->intercept_q16, square = (x * x) >> 16, rest = Q16_ONE - x;

	switch (law->shape) {
	case SHAPE_LINEAR:
		return ((s * x) >> 16) + i;
	case SHAPE_QUADRATIC:
		return ((s * square) >> 16) + i;
	case SHAPE_RECIPROCAL: {
		__u64 below = (s + i) - ((s * x) >> 16);

		return below ? (i * (s + i)) / below : Q16_ONE;
	}
	case SHAPE_CONCAVE:
		return ((s * (2 * x - square)) >> 16) + i;
	case SHAPE_FALLING_LINEAR:
		return (s + i) - ((s * x) >> 16);
	case SHAPE_FALLING_QUADRATIC:
		return (s + i) - ((s * square) >> 16);
	case SHAPE_REMAINING: {
		__u64 f = rest ? ((i * scale) << 16) / (rest * rest) : s + i;

		return f < s + i ? f : s + i;
	}
	default:
		return Q16_ONE;
	}
}

/*
 * The factor, in Q16, on the increase of each of n flows that grow together like one. Where flows are marked or lose as
 * often as they send, the rate of each is as the root of its increase, so that n of them have the rate of one at 1 / n^2:
 * the coupled increase of RFC 6356 (section 3, equation 1) for equal windows and round trips. The twin of shared_factor() in
 * mltcp/control/aggressiveness.py.
 */
static __always_inline __u32 mltcp_shared(__u32 factor, __u32 flows)
{
	__u64 shared = flows > 1 ? factor / ((__u64)flows * flows) : factor;

	return shared ? shared : 1;
}

/*
 * The traffic class of a burst that begins with so much of its iteration left to send, in units of 1,024 bytes: the
 * highest one, less one for each bound that is reached. The twin of traffic_class() in mltcp/control/traffic_classes.py.
 */
static __always_inline __u32 mltcp_traffic_class(const struct law *law, __u64 left_kib)
{
	__u32 class = law->highest_class;

#pragma unroll
	for (int k = 0; k < CLASS_BOUNDS; k++) {
		if (class && law->class_bounds_kib[k] && left_kib >= law->class_bounds_kib[k])
			class--;
	}
	return class;
}
