"""The policies by number, as compiled code compares them."""

from __future__ import annotations

RANDOM, FIRST_FIT, LIST_SCHEDULING, LWF = range(4)
"""Placement policies, which choose the GPUs of a job (`policies.placing`)."""

LIMITED, ADA_SRSF, ADA_SRSF_K, BY_RANK = range(4)
"""Communication policies, which admit all-reduces (`policies.communication.admission`); BY_RANK grants links instead
and takes them back (`policies.communication.srtf_yield`)."""

SERVICE, REMAINING_TIME, WEIGHTED_COMPUTE = range(3)
"""Ranks, by which jobs get GPUs and links (`policies.communication.ranking`): SRSF's, the shortest remaining time
first, and that of srtf-yield on GPUs."""
