"""An engine whose jobs go on without the service, as a cluster's do: they end when a test says so."""

import json
import threading
from queue import Empty, Queue

from placement.engines.engine import EngineError, JobFinished, JobHandle, JobStopped


class SurvivingEngine:
    """Runs nothing; `jobs` has what was started, by id, and `stopped` and `forgotten` what was asked for."""

    jobs_survive = True

    def __init__(self):
        self.jobs, self.stopped, self.forgotten = {}, [], []
        self._events, self._lock = Queue(), threading.Lock()

    def start(self, job, placement):
        with self._lock:
            assert job.id not in self.jobs, f"{job.id} is started twice"
            self.jobs[job.id] = job
        return JobHandle(job.id, json.dumps({"launch": job.launch}))

    def poll(self, timeout_s=0.0):
        try:
            return [self._events.get(timeout=timeout_s)]
        except Empty:
            return []

    def stop(self, job_id, grace_s=0.0):
        with self._lock:
            if self.jobs.pop(job_id, None) is None:
                raise EngineError(f"job {job_id} is not running")
        self.stopped.append(job_id)
        self._events.put(JobStopped(job_id))

    def finish(self, job_id):
        with self._lock:
            del self.jobs[job_id]
        self._events.put(JobFinished(job_id))

    def recover(self, known):
        with self._lock:
            assert {each.job_id for each in known} <= set(self.jobs)

    def forget(self, handle):
        self.forgotten.append(handle.job_id)

    def close(self):
        pass
