"""An engine whose jobs go on without the service, as a cluster's do: they end when a test says so."""

import json
import sqlite3
import threading
from queue import Empty, Queue

from placement.engines.engine import EngineError, EngineUnreachableError, JobFinished, JobHandle, JobStopped


class SurvivingEngine:
    """Runs nothing; `jobs` has what was started, by id, and `stopped` and `forgotten` what was asked for.

    While it does not answer, nothing can be started, and what it is asked to stop is lost.
    """

    jobs_survive = True

    def __init__(self):
        self.jobs, self.stopped, self.forgotten = {}, [], []
        self.answers = True
        self._events, self._lock = Queue(), threading.Lock()

    def start(self, job, placement):
        if not self.answers:
            raise EngineUnreachableError("no answer")
        with self._lock:
            known = self.jobs.setdefault(job.id, job)
        assert known.launch == job.launch, f"{job.id} is started twice"
        return JobHandle(job.id, json.dumps({"launch": job.launch}))

    def poll(self, timeout_s=0.0):
        try:
            return [self._events.get(timeout=timeout_s)]
        except Empty:
            return []

    def stop(self, job_id, grace_s=0.0):
        if not self.answers:
            return
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


def engine_of(directory, job_id):
    """The reference of a job's engine in the store of the service in a directory; empty: it has none."""
    with sqlite3.connect(directory / "state.db") as database:
        found = database.execute("SELECT engine FROM jobs WHERE id=?", (job_id,)).fetchone()
    return found[0] if found else ""
