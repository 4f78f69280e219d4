/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The iteration tracker: the twin of mltcp/control/iteration.py, which explains it, and with which the tests compare it.
 * Change both together.
 */
#pragma once

/* As in mltcp/control/iteration.py, which has the reasons. */
#define PAUSE_FLOOR_NS 5000000ULL
#define RUNGS 14
#define ALIKE_SHIFT 4
#define LEARN_SHIFT 6
#define LEARN_ALIKE 2
#define MISSES_TO_FORGET 4
#define LARGEST_REGROUPING 16
#define SMALL_SHIFT 4
#define MEAN_WINDOWS (1ULL << 14)
#define SHORTEST_STRETCH_NS (4 * PAUSE_FLOOR_NS)
#define SILENCES_IN_STRETCH 4

#define GIVEN_TOTAL 1U
#define GIVEN_GAP 2U
#define GIVEN_BOUNDARIES 4U

#define BURSTS 128
#define BURST_FLOOR_NS 1000000ULL
#define BURST_SHIFT 2
#define BURST_KNOWN 3
#define SHORT_BURST_SHIFT 8

#define FIRST_BOUNDARY 64
#define BOUNDARIES 64

/* Counts the bytes between pauses of at least a certain length. */
struct rung {
	__u64 mark;
	__u64 previous_bytes;
	__u64 alike;
};

/* A silence after so many bytes of an iteration, and in how many iterations in a row there was one. */
struct silence {
	__u64 bytes : 56;
	__u64 seen : 8;
};

struct tracker {
	__u64 last_ns; /* 0 before the first activity */
	__u64 start_ns;
	__u64 bytes;
	__u64 iteration;
	__u64 total_bytes;
	__u64 gap_ns;
	__u64 longest_pause_ns;
	__u64 seen_bytes;
	__u32 misses;
	__u32 given;
	__u32 gap_settled; /* given, or learned: until then gap_ns is a guess */
	__u32 boundary; /* the last one that the program has reported; 0: none */
	/* Small traffic: since stretch_ns there has been nothing else; a window of PAUSE_FLOOR_NS has few bytes or not. */
	__u64 stretch_ns;
	__u64 stretch_mark;
	__u64 silence_ns; /* the longest in the stretch */
	__u64 window_ns;
	__u64 window_bytes;
	__u64 window_floor;
	__u64 mean_from_ns;
	__u64 mean_bytes;
	struct rung rungs[RUNGS];
	/* Silences within an iteration, of the last one and of this one; `found` is the half of this one. */
	__u64 burst_from;
	__u64 longest_ns; /* the longest silence in this iteration, and in the last one */
	__u64 last_longest_ns;
	__u64 silent_ns; /* between the bursts of this iteration, and of the last one */
	__u64 last_silent_ns;
	__u32 found;
	__u32 next; /* of those of the last iteration, the first that is not behind */
	__u32 end; /* and that at which the present burst ends */
	__u32 silences[2];
	__u32 unused;
	struct silence silent[2 * BURSTS];
};

/* One finished iteration, as written to the ring buffer. */
struct record {
	__u32 job;
	__u32 flows;
	__u64 iteration;
	__u64 start_ns;
	__u64 end_ns;
	__u64 bytes;
	__u64 total_bytes;
	__u64 gap_ns;
};

/* |first - second| <= max(first, second) / 2^shift */
static __always_inline bool mltcp_are_alike(__u64 first, __u64 second, __u32 shift)
{
	__u64 larger = first > second ? first : second, smaller = first > second ? second : first;

	return larger - smaller <= larger >> shift;
}

/* Whether total_bytes is known and the gap is more than a guess; F is 1 until then. */
static __always_inline bool mltcp_is_recognised(const struct tracker *t)
{
	return t->total_bytes && (t->gap_settled || t->given & GIVEN_GAP);
}

/* Return to learning everything that was not given; the rungs keep their counts. */
static __always_inline void mltcp_forget(struct tracker *t)
{
	t->misses = 0;
	if (!(t->given & GIVEN_TOTAL))
		t->total_bytes = 0;
	if (!(t->given & GIVEN_GAP)) {
		t->gap_settled = 0;
		t->longest_pause_ns = 0;
		t->gap_ns = 0;
	}
}

/* Let the gap follow slow changes of the compute time, by 1/8 of the difference; a single long pause is ignored. */
static __always_inline void mltcp_follow(struct tracker *t, __u64 pause)
{
	if (pause < t->longest_pause_ns)
		t->longest_pause_ns -= (t->longest_pause_ns - pause) >> 3;
	else if (pause <= 2 * t->longest_pause_ns)
		t->longest_pause_ns += (pause - t->longest_pause_ns) >> 3;
	t->gap_ns = t->longest_pause_ns >> 1;
}

/* Compare the iteration that this pause ends with total_bytes; forget after MISSES_TO_FORGET misses in a row. */
static __always_inline void mltcp_check(struct tracker *t, __u64 pause)
{
	if (!mltcp_are_alike(t->bytes, t->total_bytes, ALIKE_SHIFT)) {
		if (++t->misses >= MISSES_TO_FORGET)
			mltcp_forget(t);
		return;
	}
	t->misses = 0;
	if (!(t->given & GIVEN_TOTAL))
		t->total_bytes = t->bytes;
	if (!(t->given & GIVEN_GAP))
		mltcp_follow(t, pause);
}

/* Close the count of a rung at a pause of its length, after `seen` bytes in all. */
static __always_inline void mltcp_count_rung(struct rung *rung, __u64 seen)
{
	__u64 enclosed = seen - rung->mark;

	if (seen <= rung->mark)
		return;
	rung->alike = mltcp_are_alike(enclosed, rung->previous_bytes, LEARN_SHIFT) ? rung->alike + 1 : 1;
	rung->previous_bytes = enclosed;
	rung->mark = seen;
}

/* Whether the counts of a rung show iterations that are not known yet. */
static __always_inline bool mltcp_teaches(const struct tracker *t, __u64 alike, __u64 bytes, __u64 pause)
{
	if (t->given & GIVEN_TOTAL)
		return !(t->gap_settled || t->given & GIVEN_GAP) && mltcp_are_alike(bytes, t->total_bytes, ALIKE_SHIFT);
	if (alike < LEARN_ALIKE)
		return false;
	if (!t->total_bytes)
		return true;
	return !(t->given & GIVEN_GAP) && pause > 2 * t->longest_pause_ns &&
	       !mltcp_are_alike(bytes, t->total_bytes, ALIKE_SHIFT) && bytes <= LARGEST_REGROUPING * t->total_bytes;
}

/* Whether a silence at the begin of small traffic was taken for the whole pause. */
static __always_inline bool mltcp_teaches_longer(const struct tracker *t, __u64 alike, __u64 bytes, __u64 pause)
{
	return t->gap_settled && !(t->given & GIVEN_GAP) && pause > 2 * t->longest_pause_ns &&
	       (t->given & GIVEN_TOTAL || alike >= LEARN_ALIKE) && mltcp_are_alike(bytes, t->total_bytes, ALIKE_SHIFT);
}

/* Count a pause on the rungs, and learn total_bytes and the gap from the highest one that counts it. */
static __always_inline void mltcp_learn(struct tracker *t, __u64 pause, bool holds_small)
{
	__u64 alike = 0, bytes = 0;

	/* Visit every rung that counts a pause of this length; the last one visited is the highest. */
#pragma unroll
	for (int k = 0; k < RUNGS; k++) {
		if (k && (t->given & GIVEN_GAP || pause < PAUSE_FLOOR_NS << k))
			break;
		mltcp_count_rung(&t->rungs[k], t->seen_bytes);
		alike = t->rungs[k].alike;
		bytes = t->rungs[k].previous_bytes;
	}
	if (mltcp_teaches(t, alike, bytes, pause) || (holds_small && mltcp_teaches_longer(t, alike, bytes, pause))) {
		if (!(t->given & GIVEN_TOTAL))
			t->total_bytes = bytes;
		if (!(t->given & GIVEN_GAP)) {
			t->longest_pause_ns = pause;
			t->gap_ns = pause >> 1;
		}
		t->gap_settled = 1;
		t->misses = 0;
	} else if (!t->gap_settled && !(t->given & GIVEN_GAP)) {
		__u64 faded = t->longest_pause_ns - (t->longest_pause_ns >> 2);

		t->longest_pause_ns = pause > faded ? pause : faded;
		t->gap_ns = t->longest_pause_ns >> 1;
	}
}

/* Of a half of `silent`, by its number. */
static __always_inline struct silence *mltcp_silence(struct tracker *t, __u32 half, __u32 number)
{
	return &t->silent[(half & 1) * BURSTS + (number & (BURSTS - 1))];
}

/* In how many iterations in a row there was a silence here, by one of the last iteration. */
static __always_inline __u32 mltcp_seen_here(struct tracker *t, __u32 number, __u64 within)
{
	__u32 half = ~t->found & 1;
	struct silence *silence = mltcp_silence(t, half, number);
	__u64 apart;

	if (number >= t->silences[half])
		return 0;
	apart = silence->bytes > t->bytes ? silence->bytes - t->bytes : t->bytes - silence->bytes;
	return apart <= within ? silence->seen : 0;
}

/* Take note of a silence within the iteration, and begin a burst if one began here before. */
static __always_inline void mltcp_after_silence(struct tracker *t, __u64 silence_ns)
{
	__u64 shortest = t->total_bytes >> SHORT_BURST_SHIFT, last;
	__u32 half = t->found & 1, found = t->silences[half], seen, before;

	if (found >= BURSTS || (t->total_bytes && t->bytes + shortest >= t->total_bytes))
		return; /* the latter is the next iteration's, as the program will report */
	seen = mltcp_seen_here(t, t->next, shortest);
	before = t->next ? mltcp_seen_here(t, t->next - 1, shortest) : 0;
	if (before > seen)
		seen = before;
	if (seen <= BURST_KNOWN)
		seen++;
	last = found ? mltcp_silence(t, half, found - 1)->bytes : 0;
	if (t->bytes > last + shortest) {
		mltcp_silence(t, half, found)->bytes = t->bytes;
		mltcp_silence(t, half, found)->seen = seen;
		t->silences[half] = found + 1;
	}
	if (seen > BURST_KNOWN) {
		t->burst_from = t->bytes;
		t->silent_ns += silence_ns;
	}
}

/* Let a burst end where one ended in the last iteration, also where there is no silence this time. */
static __always_inline void mltcp_follow_bursts(struct tracker *t)
{
	__u32 half = ~t->found & 1, silences = t->silences[half];
	struct silence *end;

	if (t->next < silences && t->bytes >= mltcp_silence(t, half, t->next)->bytes)
		t->next++;
	if (t->end >= silences)
		return;
	end = mltcp_silence(t, half, t->end);
	if (end->seen < BURST_KNOWN || end->bytes <= t->burst_from + (t->total_bytes >> SHORT_BURST_SHIFT)) {
		t->end++;
	} else if (t->bytes >= end->bytes) {
		t->burst_from = end->bytes;
		t->end++;
	}
}

/* The bytes of the present burst: acknowledged, and in all; 0: unknown. */
static __always_inline __u64 mltcp_burst_acked(const struct tracker *t)
{
	return t->bytes - t->burst_from;
}

static __always_inline __u64 mltcp_burst_bytes(struct tracker *t)
{
	__u32 half = ~t->found & 1;
	struct silence *known = mltcp_silence(t, half, t->end);
	__u64 end = t->end < t->silences[half] && known->seen >= BURST_KNOWN ? known->bytes : t->total_bytes;

	if (!t->total_bytes)
		return 0;
	return end > t->burst_from ? end - t->burst_from : 1;
}

/* End the current iteration and describe it in `record`; false if nothing was sent in it. */
static __always_inline bool mltcp_close_iteration(struct tracker *t, __u64 now, struct record *record)
{
	bool finished = t->bytes != 0;

	if (finished) {
		record->iteration = t->iteration;
		record->start_ns = t->start_ns;
		record->end_ns = t->last_ns;
		record->bytes = t->bytes;
		record->total_bytes = t->total_bytes;
		record->gap_ns = t->gap_ns;
		t->iteration++;
		t->found = ~t->found & 1;
		t->silences[t->found & 1] = 0;
		t->last_longest_ns = t->longest_ns;
		t->last_silent_ns = t->silent_ns;
	}
	t->start_ns = now;
	t->bytes = t->burst_from = t->longest_ns = t->silent_ns = 0;
	t->next = t->end = 0;
	return finished;
}

/* Handle a pause that ends at `now`; returns whether it ends an iteration. */
static __always_inline bool mltcp_after_pause(struct tracker *t, __u64 pause, __u64 now, bool holds_small,
					      struct record *record)
{
	if (t->given & GIVEN_BOUNDARIES)
		return false;
	if (t->given & GIVEN_GAP ? pause <= t->gap_ns : pause < PAUSE_FLOOR_NS)
		return false;
	if (mltcp_is_recognised(t) && t->bytes && pause > t->gap_ns)
		mltcp_check(t, pause);
	mltcp_learn(t, pause, holds_small);
	return pause > t->gap_ns && mltcp_close_iteration(t, now, record);
}

/* Begin to count the bytes of the next PAUSE_FLOOR_NS, and set how many are few: a part of the mean. */
static __always_inline void mltcp_begin_window(struct tracker *t, __u64 now)
{
	__u64 windows = (now - t->mean_from_ns) / PAUSE_FLOOR_NS + 1;

	t->mean_bytes += t->window_bytes;
	t->window_ns = now;
	t->window_bytes = 0;
	t->window_floor = t->mean_bytes / windows >> SMALL_SHIFT;
	if (windows >= MEAN_WINDOWS) {
		t->mean_bytes >>= 1;
		t->mean_from_ns += (now - t->mean_from_ns) >> 1;
	}
}

/* Whether the stretch of small traffic up to this window was a pause. */
static __always_inline bool mltcp_is_stretch(const struct tracker *t)
{
	return t->window_ns >= t->stretch_ns + SHORTEST_STRETCH_NS &&
	       t->window_ns - t->stretch_ns >= SILENCES_IN_STRETCH * t->silence_ns;
}

/* Whether a silence separates small traffic from small traffic, and so teaches nothing. */
static __always_inline bool mltcp_is_within_small(const struct tracker *t, __u64 silence, __u64 now)
{
	return t->stretch_ns < t->last_ns && 2 * silence <= now - t->stretch_ns;
}

/*
 * Count `acked` bytes at `now`. `idle` is how long the flow was silent that begins to send now, otherwise 0. `busy`: since
 * the last call there was data in flight all the time, so that a silence is of the network (a retransmission time-out, a
 * long round trip) and no pause of the job. Returns whether this finished an iteration, which `record` then describes.
 */
static __always_inline bool mltcp_observe(struct tracker *t, __u64 now, __u64 acked, __u64 idle, bool busy,
					  struct record *record)
{
	__u64 silence = 0, pause = 0, until = now, last, small = 0, within, longest;
	bool active, stretch, finished = false;

	if (!t->last_ns) {
		t->start_ns = t->last_ns = t->mean_from_ns = t->stretch_ns = t->window_ns = now;
	} else if (now > t->last_ns) {
		if (busy)
			t->stretch_ns += now - t->last_ns; /* nor is it a part of a stretch of small traffic */
		else
			silence = now - t->last_ns;
		if (silence > t->silence_ns)
			t->silence_ns = silence;
		if (silence > t->longest_ns)
			t->longest_ns = silence;
		if (now - t->window_ns >= PAUSE_FLOOR_NS)
			mltcp_begin_window(t, now);
	}
	t->window_bytes += acked;
	active = t->window_bytes > t->window_floor || (idle > t->gap_ns && mltcp_is_recognised(t));
	stretch = active && mltcp_is_stretch(t);
	last = t->last_ns;
	if (stretch) {
		small = t->seen_bytes - t->stretch_mark;
		until = t->window_ns;
		pause = until - t->stretch_ns;
		t->last_ns = t->stretch_ns;
	} else if (silence && !mltcp_is_within_small(t, silence, now)) {
		pause = silence;
	}
	if (pause) {
		/* What was small is of the next iteration. */
		within = small < t->bytes ? small : t->bytes;
		t->bytes -= within;
		t->seen_bytes -= small;
		finished = mltcp_after_pause(t, pause, until, stretch, record);
		t->bytes += within;
		t->seen_bytes += small;
	}
	t->last_ns = now > last ? now : last;
	longest = t->longest_ns > t->last_longest_ns ? t->longest_ns : t->last_longest_ns;
	if (silence >= BURST_FLOOR_NS && silence >= longest >> BURST_SHIFT && t->bytes)
		mltcp_after_silence(t, silence);
	t->bytes += acked;
	t->seen_bytes += acked;
	mltcp_follow_bursts(t);
	if (active) {
		t->stretch_ns = t->last_ns;
		t->stretch_mark = t->seen_bytes;
		t->silence_ns = 0;
	}
	if (mltcp_is_recognised(t) && t->bytes > 2 * t->total_bytes) {
		t->given &= ~GIVEN_BOUNDARIES;
		mltcp_forget(t);
	}
	return finished;
}

/* Learn total_bytes from the iteration that a boundary ends. */
static __always_inline void mltcp_learn_between(struct tracker *t)
{
	__u64 previous = t->rungs[0].previous_bytes;

	t->rungs[0].previous_bytes = t->bytes;
	t->gap_settled = 1;
	if (!(t->given & GIVEN_TOTAL) && (!t->total_bytes || mltcp_are_alike(t->bytes, t->total_bytes, ALIKE_SHIFT) ||
					  mltcp_are_alike(t->bytes, previous, ALIKE_SHIFT)))
		t->total_bytes = t->bytes;
}

/*
 * The program reports that an iteration begins by a `number` that is one larger than before, from FIRST_BOUNDARY on and
 * around; below, it reports nothing. Each of its processes may report the same one. Returns whether this finished an
 * iteration, which `record` then describes.
 */
static __always_inline bool mltcp_boundary(struct tracker *t, __u32 number, __u64 now, struct record *record)
{
	if (number < FIRST_BOUNDARY || number == t->boundary)
		return false;
	if (t->given & GIVEN_BOUNDARIES && ((number - t->boundary) & (BOUNDARIES - 1)) > BOUNDARIES / 2)
		return false; /* that of a process which is behind */
	t->boundary = number;
	if (!(t->given & GIVEN_BOUNDARIES)) {
		t->given |= GIVEN_BOUNDARIES;
		mltcp_forget(t);
		t->rungs[0].previous_bytes = 0;
	} else if (t->bytes) {
		mltcp_learn_between(t);
	}
	return mltcp_close_iteration(t, now, record);
}
