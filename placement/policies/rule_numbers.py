"""The policies by number, as compiled code compares them."""

from __future__ import annotations

RANDOM, FIRST_FIT, LIST_SCHEDULING, LWF = range(4)
"""How the GPUs of a job are chosen (`policies.placing`)."""

LIMITED, ADA_SRSF, ADA_SRSF_K, BY_RANK = range(4)
"""Whether an all-reduce may start (`policies.communication.admission`); BY_RANK does not admit: it grants links and
takes them back (`policies.communication.srtf_yield`)."""

SERVICE, REMAINING_TIME, WEIGHTED_COMPUTE = range(3)
"""The order in which jobs get GPUs and links (`policies.communication.ranking`): SRSF's, the shortest remaining time
first, and the order of srtf-yield on GPUs."""
