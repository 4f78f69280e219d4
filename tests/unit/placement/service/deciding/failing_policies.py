"""Schedulers that fail, by ``import:tests.unit.placement.service.deciding.failing_policies:FACTORY``."""

import os
import subprocess
import threading
from dataclasses import dataclass
from typing import Any

HERE = f"import:{__name__}:"


@dataclass(frozen=True)
class Answering:
    """Answers whatever a function of the cluster and the jobs gives."""

    answer: Any
    name: str = "answering"
    lease_ns: int | None = None

    def candidates(self, cluster, now_ns, jobs, most=1):
        return (self.answer(cluster, jobs),)

    def next_ns(self, now_ns, jobs):
        return None


def hanging():
    return Answering(lambda cluster, jobs: threading.Event().wait())


OPENED = threading.Event()


def waiting():
    """Answers once `OPENED` is set, in whichever process it is."""

    def answer(cluster, jobs):
        OPENED.wait()
        return {}

    return Answering(answer)


def leaving():
    """Starts a daemon, tells its pid, and hangs."""

    def answer(cluster, jobs):
        daemon = subprocess.Popen(["sleep", "86400"], start_new_session=True)
        with open(os.environ["LEFT"], "w") as file:
            print(daemon.pid, file=file)
        threading.Event().wait()

    return Answering(answer)


def raising():
    return Answering(lambda cluster, jobs: {}["no such job"])


def exiting():
    return Answering(lambda cluster, jobs: os._exit(3))


def printing():
    """Prints to what would be the pipe of its answers, and gives a GPU twice."""

    def answer(cluster, jobs):
        print("not an answer", flush=True)
        return {job.name: (0, 0) for job in jobs}

    return Answering(answer)


def idle():
    return Answering(lambda cluster, jobs: {})


def _one_job(chosen):
    def answer(cluster, jobs):
        return {chosen(jobs, key=lambda job: job.iterations_left).name: (0,)} if jobs else {}

    return Answering(answer)


def longest_first():
    """Gives the first slot to the job with the most work left; where the file of $TURNED exists, with the least."""
    return _one_job(lambda jobs, key: (min if os.path.exists(os.environ["TURNED"]) else max)(jobs, key=key))


def shortest_first():
    """The other way round."""
    return _one_job(lambda jobs, key: (max if os.path.exists(os.environ["TURNED"]) else min)(jobs, key=key))
