"""Checkpoints of a server's part of the weights: written by the server, or by a worker that has lost it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.workloads.parameter_server.job import AsyncJob, TrainWork
from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory, RunLock
from collectives.elastic.checkpoints.header import CheckpointError, Header, Segment, difference, stored_file

_STATE = "state.pt"
_LOCK = "lock"


class ServerCheckpoints:
    """The checkpoints of one server of a training, which hold the number of updates and the batch's samples.

    Args:
        job: the training, with checkpoints.
        server: its number.
        elements: the parameters of its part.
    """

    def __init__(self, job: AsyncJob, server: int, elements: int) -> None:
        if job.checkpoints is None or not isinstance(job.work, TrainWork):
            raise CheckpointError(f"job {job.name}: expected a training with checkpoints")
        self._directory = CheckpointDirectory(job.checkpoints.of_server(server).absolute())
        self._directory.prepare()
        self._batch, self._work = job.work.batch, job.work
        share = job.shares[server]
        self._workers = job.workers
        self._model = {f"{job.work.model}[{server}/{job.servers}, {share:g}]": f"float32[{elements}]"}
        self._lock = RunLock(self._directory.path / _LOCK)

    @property
    def path(self) -> Path:
        """The directory."""
        return self._directory.path

    def lock(self, wait_s: float = 0.0) -> None:
        """Keep other runs from using the directory, until this process ends or `release`.

        Raises:
            MltcpError: another run uses it.
        """
        self._lock.acquire(wait_s)
        self._directory.remove_unfinished()

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def newest(self) -> tuple[int, Mapping[str, Any]] | None:
        """The number of updates of the newest checkpoint, and its state; None: there is none.

        Raises:
            CheckpointError: it is damaged, or of another model, batch or division among servers.
        """
        found = self._directory.newest()
        if found is None:
            return None
        path, header = found
        different = difference(self._model, header.model)
        if different is None and header.epoch_samples != self._batch:
            different = f"batch: expected {self._batch}, got {header.epoch_samples}"
        if different is not None:
            raise CheckpointError(f"{path}: {different}")
        return header.samples_done // self._batch, torch.load(path / _STATE, weights_only=True)

    def save(self, version: int, state: Mapping[str, Any]) -> Path | None:
        """Write a checkpoint, durably; None if there is one of this version or a newer one.

        Raises:
            CheckpointError: it could not be written.
        """
        samples = version * self._batch
        newest = self._directory.newest()
        if newest is not None and newest[1].samples_done >= samples:
            return None
        unfinished = self._directory.unfinished(samples)
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            with open(unfinished / _STATE, "xb") as file:
                torch.save(dict(state), file)
                file.flush()
                os.fsync(file.fileno())
            return self._directory.commit(unfinished, self._header(samples, unfinished))
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise CheckpointError(f"{unfinished}: {error.strerror}") from None

    def rescue(self, version: int, weights: Tensor, wait_s: float) -> Path | None:
        """Write the weights that a worker has received last from a server that is gone; without its momentum.

        The lock is free once the server's process has ended. Returns None if there is a newer checkpoint.

        Raises:
            MltcpError: the lock is not free within `wait_s`, or the checkpoint could not be written.
        """
        self.lock(wait_s)
        try:
            return self.save(version, {"weights": weights.clone(), "momentum": None})
        finally:
            self.release()

    def _header(self, samples: int, unfinished: Path) -> Header:
        return Header(
            samples_done=samples,
            total_samples=samples,
            epoch_samples=self._batch,
            seed=self._work.seed,
            state="whole",
            model=self._model,
            segments=(Segment(0, samples, self._workers),),
            files={_STATE: stored_file(unfinished / _STATE)},
        )
