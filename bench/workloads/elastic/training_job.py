"""A small training on the CPU, for torchrun: ``python -m bench.workloads.elastic.training_job DIRECTORY``.

A perceptron learns a fixed function of seeded random inputs under DistributedDataParallel. Its computing takes as long
as asked, by a timer, so that many ranks fit on few cores. It stops at a step boundary on SIGTERM and goes on with any
number of ranks.
"""

from __future__ import annotations

import time

_STARTED_NS = time.monotonic_ns()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from contextlib import suppress  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, Self  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from bench.workloads.job import sleep_until  # noqa: E402
from bench.workloads.kinds import perceptron  # noqa: E402
from collectives.elastic.batches import Batch, linear_in_batch  # noqa: E402
from collectives.elastic.journal import Journal  # noqa: E402
from collectives.elastic.training import ElasticTraining, Stopped  # noqa: E402
from mltcp.core.exit_status import exit_status  # noqa: E402

LOSSES = "losses.jsonl"
FAULTS = "faults.json"
PROGRESS = "progress"
_INPUTS = 16
_DROPOUT = 0.1


@dataclass(frozen=True)
class JobOptions:
    """The training.

    Attributes:
        directory: of its checkpoints, losses and journal.
        samples: in an epoch.
        batch: samples of a rank in a step.
        epochs: to train.
        parameters: of the model, about.
        compute_s: computing of a full step before gradients are reduced; a short step takes its share.
        seed: of data, model and order.
        backend: of torch.distributed.
        checkpoint_every_s: between checkpoints.
        verify: count samples, and record the loss of every step; costs two more collectives a batch.
        micro_batches: in each step, for any number of ranks; 0: a step has as many as there are ranks.
    """

    directory: Path
    samples: int = 480
    batch: int = 4
    epochs: int = 10
    parameters: int = 10_000
    compute_s: float = 0.02
    seed: int = 1
    backend: str = "gloo"
    checkpoint_every_s: float = 300.0
    verify: bool = False
    micro_batches: int = 0

    def arguments(self) -> list[str]:
        """The arguments of this module's command that stand for these options."""
        values = {
            **{"samples": self.samples, "batch": self.batch, "epochs": self.epochs},
            **{"parameters": self.parameters, "compute-s": self.compute_s, "seed": self.seed},
            **{"backend": self.backend, "checkpoint-every-s": self.checkpoint_every_s},
            "micro-batches": self.micro_batches,
        }
        flags = ["--verify"] if self.verify else []
        return [os.fspath(self.directory), *(f"--{name}={value}" for name, value in values.items()), *flags]


class SampleCounts:
    """How often each sample was trained on in each epoch, as the surviving parameters have it.

    It is saved and restored with the model, and counts what the ranks really loaded. So it finds a sample that was
    lost or seen twice independently of how the library keeps its position.
    """

    def __init__(self, samples: int, epochs: int) -> None:
        self._counts = torch.zeros(epochs, samples, dtype=torch.int32)

    def add(self, batch: Batch) -> None:
        """Count the samples of a step on all ranks; every rank must call it."""
        step = torch.zeros(self._counts.shape[1], dtype=torch.int32)
        step.index_add_(0, batch.indices, torch.ones(len(batch), dtype=torch.int32))
        if dist.is_initialized() and batch.ranks > 1:
            dist.all_reduce(step)
        self._counts[batch.epoch] += step

    def faults(self, samples_done: int) -> list[str]:
        """The faults in the counts of a job that has done so many samples; empty if there are none."""
        samples = self._counts.shape[1]
        whole, part = divmod(samples_done, samples)
        found = []
        for epoch, counts in enumerate(self._counts):
            expected = samples if epoch < whole else part if epoch == whole else 0
            twice, seen = int((counts > 1).sum()), int((counts > 0).sum())
            if twice:
                found.append(f"epoch {epoch}: {twice} samples were seen more than once")
            if seen != expected:
                found.append(f"epoch {epoch}: expected {expected} samples, got {seen}")
        return found

    def state_dict(self) -> Mapping[str, Any]:
        """The counts."""
        return {"counts": self._counts}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the counts. Raises ValueError if they are of other numbers of samples or epochs."""
        counts = state_dict["counts"]
        if counts.shape != self._counts.shape:
            raise ValueError(f"counts: expected {list(self._counts.shape)}, got {list(counts.shape)}")
        self._counts.copy_(counts)


class TrainingJob:
    """One rank of the training, in a process group."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        torch.manual_seed(options.seed)
        module = nn.Sequential(nn.Dropout(_DROPOUT), *perceptron(options.parameters))
        self._inputs = torch.randn(options.samples, _INPUTS)
        self._targets = self._inputs.mean(dim=1, keepdim=True).mul(4).tanh()
        self._model = module if options.micro_batches else DistributedDataParallel(module, init_sync=False)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.05, momentum=0.9)
        self._schedule = torch.optim.lr_scheduler.ExponentialLR(self._optimizer, 0.95)
        self._counts = SampleCounts(options.samples, options.epochs)
        self._losses: list[str] = []

    def run(self) -> None:
        """Train until all epochs are done, or until the job is asked to stop, which ends the process."""
        options = self._options
        with (
            ElasticTraining(
                options.directory,
                model=self._model,
                optimizer=self._optimizer,
                schedule=self._schedule,
                samples=options.samples,
                batch=options.batch,
                epochs=options.epochs,
                scaling=linear_in_batch(options.batch * max(1, options.micro_batches)),
                micro_batches=options.micro_batches or None,
                others={"counts": self._counts} if options.verify else None,
                seed=options.seed,
                checkpoint_every_s=options.checkpoint_every_s,
            ) as training,
            _Progress(options.directory) as progress,
        ):
            for batch in training:
                progress.note(batch.samples_done)
                self._step(batch)
        if options.verify and dist.get_rank() == 0:
            faults = self._counts.faults(training.samples_done)
            (options.directory / FAULTS).write_text(json.dumps(faults))

    def _step(self, batch: Batch) -> None:
        begin_s = time.monotonic()
        parts = self._options.micro_batches or batch.ranks
        compute_s = self._options.compute_s * -(-batch.step_samples // parts) / self._options.batch
        outputs = self._model(self._inputs[batch.indices])
        loss = nn.functional.mse_loss(outputs, self._targets[batch.indices], reduction="sum")
        sleep_until(begin_s + compute_s)
        batch.mean(loss).backward()
        if batch.ends_step:
            self._optimizer.step()
            self._optimizer.zero_grad()
        if batch.ends_epoch:
            self._schedule.step()
        if self._options.verify:
            self._counts.add(batch)
            self._record(batch, loss.detach())

    def _record(self, batch: Batch, loss: torch.Tensor) -> None:
        losses = [torch.empty_like(loss) for _ in range(batch.ranks)]
        dist.all_gather(losses, loss)
        self._losses += [float(each).hex() for each in losses]  # in the order of parts
        if not batch.ends_step:
            return
        step, self._losses = " ".join(self._losses), []
        if dist.get_rank() == 0:
            line = {"samples_done": batch.samples_done, "ranks": batch.ranks, "loss": step}
            with open(self._options.directory / LOSSES, "a") as file:
                file.write(json.dumps(line) + "\n")


class _Progress:
    """The file with the samples done, which rank 0 overwrites in every step; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PROGRESS if dist.get_rank() == 0 else None
        self._file = -1

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            os.close(self._file)

    def note(self, samples_done: int) -> None:
        """Write the number, by one system call."""
        if self._path is not None:
            os.pwrite(self._file, samples_done.to_bytes(8, "little"), 0)


def read_progress(directory: Path) -> int:
    """The samples that a training has done; 0 before its first step. After a crash it may have to do some again."""
    try:
        return int.from_bytes((directory / PROGRESS).read_bytes(), "little")
    except FileNotFoundError:
        return 0


def read_losses(directory: Path) -> list[tuple[int, int, str]]:
    """Samples done before, ranks and the parts' losses of each step that led to the last; one done again counts once.

    A step whose checkpoint was lost is replaced by the one that a later run did from the same position.
    """
    kept: list[tuple[int, int, str]] = []
    for line in (directory / LOSSES).read_text().splitlines():
        found = json.loads(line)
        while kept and kept[-1][0] >= found["samples_done"]:
            kept.pop()
        kept.append((found["samples_done"], found["ranks"], found["loss"]))
    return kept


def main() -> None:
    """Run one rank."""
    imported_ns = time.monotonic_ns()
    options = _options()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    if dist.get_rank() == 0:
        options.directory.mkdir(parents=True, exist_ok=True)
        journal = Journal(options.directory)
        journal.note("process", _STARTED_NS)
        journal.note("imported", imported_ns)
        journal.note("rendezvous")
    status = exit_status("training_job", lambda: _trained(options))
    # The checkpoint is durable; tearing down the interpreter would be a large part of what a restart takes, and a
    # thread of Gloo that takes the interpreter's lock meanwhile aborts the process.
    os._exit(status)


def _trained(options: JobOptions) -> int:
    with suppress(Stopped):
        TrainingJob(options).run()
    return 0


def _options() -> JobOptions:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    for name in ("samples", "batch", "epochs", "parameters", "seed", "micro_batches"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(JobOptions, name))
    for name in ("compute_s", "checkpoint_every_s"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(JobOptions, name))
    parser.add_argument("--backend", default=JobOptions.backend)
    parser.add_argument("--verify", action="store_true")
    return JobOptions(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
