"""JSQ-Chunk compiled: fixed chunks of nodes, each with a first come first served queue."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled_with_arrays
from placement.simulator.rates.response.state import Jobs, Tables


@compiled_with_arrays
def run_chunks(tables: Tables, jobs: Jobs, nodes: int, chunk: int) -> tuple[bool, int, int, float]:
    """Send every job to the chunk with the fewest jobs, the first of equals. Returns what `loop.run` does."""
    chunks, total = nodes // chunk, len(jobs.arrival)
    free = np.zeros(chunks)  # when the last job of a chunk ends
    waiting = np.zeros(chunks, np.int64)
    oldest = np.zeros(chunks, np.int64)  # the first job of a chunk that has not ended
    following = np.full(total, -1, np.int64)  # the next job of the same chunk
    newest = np.full(chunks, -1, np.int64)
    most, present, area = 0, 0, 0.0
    for number in range(total):
        now = jobs.arrival[number]
        best = 0
        for place in range(chunks):
            while waiting[place] > 0 and jobs.end[oldest[place]] <= now:
                oldest[place] = following[oldest[place]]
                waiting[place] -= 1
                present -= 1
            if waiting[place] < waiting[best]:
                best = place
        begin = max(now, free[best])
        time = jobs.size[number] / tables.speed[jobs.model[number], chunk]
        jobs.part[number] = begin + jobs.share * time
        jobs.end[number] = free[best] = begin + time
        if waiting[best] == 0:
            oldest[best] = number
        else:
            following[newest[best]] = number
        newest[best] = number
        waiting[best] += 1
        present += 1
        most = max(most, present)
        area += jobs.end[number] - now
    return True, most, present, area
