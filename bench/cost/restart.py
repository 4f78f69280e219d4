"""The cost of stopping a training and starting it again with another number of ranks, and whether a sample is lost.

A small training runs on a local engine on four hosts of four slots. Each restart takes it to other slots. Some runs are
stopped at a step boundary (SIGTERM); every second one is killed instead (SIGKILL of a rank, or of a host's torchrun),
which costs the steps since the last checkpoint. After every run, the counts of samples in the newest checkpoint are
checked: each sample of each epoch must have been seen once. A row has medians over restarts, in seconds::

    signal_s      request to the signal in rank 0           spawn_s       start to the first line of rank 0's program
    step_s        signal to the end of the last step        import_s      imports
    write_s       writing the checkpoint                    rendezvous_s  joining the process group
    gone_s        checkpoint to the last process's end      build_s       model and optimizer (imports by torch itself)
                                                            load_s        run lock, checking and loading the checkpoint
                                                            first_step_s  the first step

``restart_s`` is the whole, from the request or the kill to the end of the first step of the next run. Rows ``start on N
ranks`` have what a start costs by its number of ranks: ``start_s`` from the start to the first step, and ``end_s`` from
the last step to the last process's end. ``mltcp-bench compare --restart-cost FILE`` reads them from the file of ``-o``.

With ``--micro-batches M`` a step has M micro-batches on any number of ranks, and a last row says in how many steps the
losses of all micro-batches are those of an uninterrupted run on one rank, bit by bit.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.cost.benchmark import Row
from bench.warm.client import forked_trainings
from bench.workloads.elastic.engine_job import EngineEvents, EngineTraining, Event
from bench.workloads.elastic.training_job import JobOptions, read_losses
from collectives.elastic.checkpoints.checkpoint_directory import progress_of
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.progress import progress_bar
from placement.engines.engine import HostShare, JobFailed, JobFinished, JobStopped
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine

_HOSTS, _SLOTS = 4, 4
_SAMPLES, _BATCH, _EPOCHS = 480, 4, 2000
_GRACE_S = 120.0
_MOST_STEPS = 40
_LONG_S = 1e6

Parts = dict[str, float]
"""Seconds of the parts of a restart, by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    add = parser.add_argument
    add("--restarts", type=int, default=50, metavar="N", help="(default 50)")
    add(
        "--ranks",
        default="1,2,3,4",
        metavar="LIST",
        help="numbers of ranks to change between (default 1,2,3,4)",
    )
    add("--parameters", type=int, default=10_000, metavar="N", help="of the model (default 10000)")
    add(
        "--compute-s",
        type=float,
        default=0.02,
        metavar="S",
        help="computing of a step, by a timer (default 0.02)",
    )
    add(
        "--checkpoint-every-s", type=float, default=0.2, metavar="S", help="between checkpoints (default 0.2)"
    )
    add("--backend", default="gloo", metavar="NAME", help="of torch.distributed (default gloo)")
    add(
        "--micro-batches",
        type=int,
        default=0,
        metavar="M",
        help="in each step on any number of ranks, which divides it (default 0: one a rank)",
    )
    add("--no-kills", action="store_true", help="stop every run at a step boundary")
    add("--lab", action="store_true", help="hosts are network namespaces (needs root)")
    add(
        "--forked",
        action="store_true",
        help="processes are forked with torch imported, as whole jobs in the lab are",
    )
    add("--seed", type=int, default=0, metavar="N", help="of places and kills (default 0)")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Run the restarts; a row for each way to end a run, and one about the samples."""
    counts = _rank_counts(options)
    with tempfile.TemporaryDirectory(prefix="mltcp-restart-") as directory, ExitStack() as stack:
        if options.forked:
            stack.enter_context(forked_trainings())
        engine = stack.enter_context(_engine(options.lab, Path(directory) / "logs"))
        training = EngineTraining(
            EngineEvents(engine), "restart", _job_options(options, Path(directory) / "job")
        )
        restarts = _Restarts(training, tuple(engine.hosts), counts, options)
        restarts.run()
        yield from restarts.rows()
        if options.micro_batches:
            yield _compared(training.options, engine, Path(directory) / "uninterrupted")


class _Restarts:
    """One training that is ended and started again."""

    def __init__(
        self,
        training: EngineTraining,
        hosts: Sequence[str],
        counts: Sequence[int],
        options: argparse.Namespace,
    ) -> None:
        self._training, self._hosts, self._counts = training, hosts, counts
        self._restarts, self._kills = options.restarts, not options.no_kills
        self._micro_batches = options.micro_batches
        self._random = random.Random(options.seed)
        self._parts: dict[str, list[Parts]] = {}
        self._by_ranks: dict[int, list[Parts]] = {}
        self._faults: list[str] = []
        self._redone = self._changes = 0

    def run(self) -> None:
        """Do all restarts, and end the last run."""
        ranks = self._random.choice(self._counts)
        self._note_start(ranks, self._begin(ranks))
        with progress_bar(self._restarts) as bar:
            for number in range(self._restarts):
                ranks = self._restart(number, ranks)
                bar.advance(f"{ranks} ranks, {len(self._faults)} faults")
        self._end("stop")
        self._faults += self._training.faults()

    def _restart(self, number: int, ranks: int) -> int:
        """End the run, and start the next one with another number of ranks, which is returned."""
        way = "stop"
        if self._kills and number % 2:
            way = ("kill of a rank", "kill of an agent")[number // 2 % 2]
        asked_ns, parts = self._end(way)
        if way == "stop":
            self._by_ranks[ranks].append({"end_s": parts["write_s"] + parts["gone_s"]})
        self._faults += self._training.faults()
        wanted = [count for count in self._counts if count != ranks] or list(self._counts)
        after = self._random.choice(wanted)
        self._changes += after != ranks
        begun = self._begin(after, asked_ns)
        self._note_start(after, begun)
        self._parts.setdefault(way, []).append(parts | begun)
        return after

    def _note_start(self, ranks: int, parts: Parts) -> None:
        names = ("spawn_s", "import_s", "rendezvous_s", "build_s", "load_s")
        self._by_ranks.setdefault(ranks, []).append({"start_s": sum(parts[name] for name in names)})

    def rows(self) -> Iterator[Row]:
        """The figures."""
        for way, parts in self._parts.items():
            longest = max(each["restart_s"] for each in parts)
            yield {"case": way, "restarts": len(parts), **_medians(parts), "longest_restart_s": longest}
        for ranks, parts in sorted(self._by_ranks.items()):
            starts = sum("start_s" in each for each in parts)
            yield {"case": f"start on {ranks} ranks", "ranks": ranks, "starts": starts, **_medians(parts)}
        header = progress_of(self._training.options.directory)
        assert header is not None
        steps = read_losses(self._training.options.directory)
        yield {
            "case": "samples",
            "restarts": self._restarts,
            "changes_of_ranks": self._changes,
            "samples_done": header.samples_done,
            "epochs": header.samples_done / _SAMPLES,
            "steps": len(steps),
            "samples_done_again": self._redone,
            "faults": len(self._faults),
            "first_fault": self._faults[0] if self._faults else "none",
        }

    def _begin(self, ranks: int, asked_ns: int | None = None) -> Parts:
        started_ns = time.monotonic_ns()
        self._training.start(_places(ranks, self._hosts, self._random))
        self._training.await_steps(self._random.randint(0, _MOST_STEPS))
        at = {event["event"]: event["monotonic_ns"] for event in self._training.events()}
        first_step_ns = _first(self._training.events(), "first_step")
        marks = ("process", "imported", "rendezvous", "resumed")
        times = [started_ns, *(at[mark] for mark in marks), first_step_ns]
        names = ("spawn_s", "import_s", "rendezvous_s", "build_s", "first_step_s")
        parts = {name: (end - begin) / 1e9 for name, begin, end in zip(names, times, times[1:], strict=False)}
        resumed = next(event for event in self._training.events() if event["event"] == "resumed")
        parts["load_s"] = resumed["lock_s"] + resumed["load_s"]
        parts["build_s"] -= parts["load_s"]
        if asked_ns is not None:
            parts["restart_s"] = (first_step_ns - asked_ns) / 1e9
        return parts

    def _end(self, way: str) -> tuple[int, Parts]:
        """End the run; returns when that was asked for, and what its parts took."""
        number = self._random.randrange(1 << 20)
        asked_ns = time.monotonic_ns()
        if way == "stop":
            event = self._training.stop(_GRACE_S)
            if event != JobStopped(event.job_id, orderly=True):
                raise MltcpError(f"cost restart: expected an orderly stop, got {event}")
            return asked_ns, self._stop_parts(asked_ns)
        event = self._training.kill_rank(number) if "rank" in way else self._training.kill_agent(number)
        if not isinstance(event, JobFailed):
            raise MltcpError(f"cost restart: expected the end of a killed job, got {event}")
        parts = {"gone_s": (time.monotonic_ns() - asked_ns) / 1e9}
        self._redone += self._lost()
        return asked_ns, parts

    def _stop_parts(self, asked_ns: int) -> Parts:
        gone_ns = time.monotonic_ns()
        written = [event for event in self._training.events() if event["event"] == "checkpoint"][-1]
        # Where another rank was told first, rank 0 may have stopped before its own signal came.
        signals = [event["monotonic_ns"] for event in self._training.events() if event["event"] == "signal"]
        signal_ns = min([*signals, written["monotonic_ns"]])
        write_s = written["write_s"]
        return {
            "signal_s": (signal_ns - asked_ns) / 1e9,
            "step_s": (written["monotonic_ns"] - signal_ns) / 1e9 - write_s,
            "write_s": write_s,
            "gone_s": (gone_ns - written["monotonic_ns"]) / 1e9,
        }

    def _lost(self) -> int:
        """Samples of steps that were done, but are in no checkpoint: they will be done again."""
        header = progress_of(self._training.options.directory)
        kept = 0 if header is None else header.samples_done
        last = read_losses(self._training.options.directory)[-1]
        step_samples = (self._micro_batches or last[1]) * _BATCH
        return max(0, min(last[0] + step_samples, (last[0] // _SAMPLES + 1) * _SAMPLES) - kept)


def _compared(options: JobOptions, engine: LocalEngine, directory: Path) -> Row:
    """The losses of a training, beside those of the same one without a restart, on one rank."""
    header = progress_of(options.directory)
    assert header is not None
    epochs = -(-header.samples_done // _SAMPLES)
    alone = replace(options, directory=directory, epochs=epochs, compute_s=0.0, checkpoint_every_s=_LONG_S)
    uninterrupted = EngineTraining(EngineEvents(engine), "uninterrupted", alone)
    uninterrupted.start([HostShare(next(iter(engine.hosts)), (0,))])
    event = uninterrupted.end()
    if not isinstance(event, JobFinished):
        raise MltcpError(f"cost restart: expected the end of an uninterrupted run, got {event}")
    expected = {done: loss for done, _, loss in read_losses(directory)}
    steps = [(done, loss) for done, _, loss in read_losses(options.directory) if done < header.samples_done]
    equal = sum(expected[done] == loss for done, loss in steps)
    return {
        "case": "losses",
        "micro_batches": options.micro_batches,
        "steps": len(steps),
        "equal_steps": equal,
    }


def _medians(parts: Sequence[Parts]) -> Parts:
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: statistics.median(each[name] for each in parts if name in each) for name in names}


def _places(ranks: int, hosts: Sequence[str], random_numbers: random.Random) -> list[HostShare]:
    """So many slots, drawn among those of all hosts."""
    drawn = random_numbers.sample([(host, slot) for host in hosts for slot in range(_SLOTS)], ranks)
    used = dict.fromkeys(host for host, _ in drawn)
    return [HostShare(host, tuple(sorted(slot for each, slot in drawn if each == host))) for host in used]


def _first(events: Sequence[Event], name: str) -> int:
    found: int = next(event["monotonic_ns"] for event in events if event["event"] == name)
    return found


def _rank_counts(options: argparse.Namespace) -> list[int]:
    most = _HOSTS * _SLOTS
    try:
        counts = [int(each) for each in options.ranks.split(",")]
    except ValueError:
        counts = []
    if not counts or not all(1 <= count <= most for count in counts):
        raise UsageError(
            f"--ranks: expected numbers from 1 to {most}, separated by commas, got {options.ranks}"
        )
    if options.micro_batches < 0 or any(options.micro_batches % count for count in counts):
        raise UsageError(
            f"--micro-batches: expected a multiple of each of --ranks {options.ranks}, got {options.micro_batches}"
        )
    if options.restarts < 1:
        raise UsageError(f"--restarts: expected 1 or more, got {options.restarts}")
    return counts


def _job_options(options: argparse.Namespace, directory: Path) -> JobOptions:
    return JobOptions(
        directory,
        samples=_SAMPLES,
        batch=_BATCH,
        epochs=_EPOCHS,
        parameters=options.parameters,
        compute_s=options.compute_s,
        backend=options.backend,
        checkpoint_every_s=options.checkpoint_every_s,
        verify=True,
        micro_batches=options.micro_batches,
    )


@contextmanager
def _engine(in_lab: bool, logs: Path) -> Iterator[LocalEngine]:
    """An engine on four hosts of four slots: namespaces of a lab, or this machine under four names."""
    if not in_lab:
        hosts = [Host(f"h{number}", "127.0.0.1", "lo", slots=_SLOTS) for number in range(_HOSTS)]
        with LocalEngine(hosts, logs) as engine:
            yield engine
        return
    from bench.lab.lab import Lab
    from bench.lab.servers import LabNetwork, engine_hosts
    from bench.lab.two_tier import TwoTier, two_tier

    with Lab(two_tier(TwoTier(racks=1, servers=_HOSTS, slots=_SLOTS))) as lab:
        with LocalEngine(engine_hosts(lab), logs, network=LabNetwork(lab)) as engine:
            yield engine
