"""How long a checkpoint keeps a training from going on: written at once, and while the training goes on.

GPT-2 of the library ``transformers``, by configuration, is trained with AdamW in this process, and saves a checkpoint
whenever the last one is written. A row a way has medians over checkpoints, but for ``pause_s``, a mean::

    pause_s  that the training waits for a checkpoint       step_s  a step, without the pause, meanwhile
    write_s  from the end of the step until it is durable   bytes   of the checkpoint

The row ``share`` has the pause of the second way over that of the first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from bench.cost.benchmark import Row
from bench.workloads.model_work import LANGUAGE
from bench.workloads.models.language import LanguageModel
from collectives.elastic.batches import SAME_FOR_ANY_BATCH
from collectives.elastic.journal import read_journal
from collectives.elastic.training import ElasticTraining
from mltcp.core.errors import UsageError

_AT_ONCE_S = 1e-9
_SEQUENCE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    add = parser.add_argument
    add("--scale", type=float, default=0.25, metavar="X", help="of GPT-2's width and depth (default 0.25)")
    add("--steps", type=int, default=24, metavar="N", help="of each training (default 24)")
    add("--batch", type=int, default=2, metavar="N", help=f"sequences of {_SEQUENCE} tokens (default 2)")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Train in both ways; a row each, and one with the share."""
    for name in ("scale", "steps", "batch"):
        if not getattr(options, name) > 0:
            raise UsageError(f"--{name}: expected more than 0, got {getattr(options, name)}")
    pauses = []
    for case in ("synchronous", "asynchronous"):
        with tempfile.TemporaryDirectory(prefix="mltcp-checkpoint-") as directory:
            row = _trained(options, Path(directory), case)
        pauses.append(float(row["pause_s"]))
        yield row
    yield {"case": "share", "pause_share": pauses[1] / pauses[0]}


def _trained(options: argparse.Namespace, directory: Path, case: str) -> Row:
    torch.manual_seed(1)
    model = LanguageModel("gpt2", replace(LANGUAGE["gpt2"].scaled(options.scale), sequence=_SEQUENCE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    samples = options.steps * options.batch
    words, targets = model.samples(samples, torch.Generator().manual_seed(1))
    steps: list[float] = []
    with ElasticTraining(
        directory,
        model=model,
        optimizer=optimizer,
        samples=samples,
        batch=options.batch,
        epochs=1,
        scaling=SAME_FOR_ANY_BATCH,
        checkpoint_every_s=_AT_ONCE_S,
        async_checkpoints=case == "asynchronous",
    ) as training:
        for batch in training:
            began_s, held_s = time.monotonic(), training.checkpoint_pause_s
            loss = model.loss(model(words[batch.indices]), targets[batch.indices])
            batch.mean(loss * len(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps.append(time.monotonic() - began_s - (training.checkpoint_pause_s - held_s))
            paused_s = training.checkpoint_pause_s  # without that of the end, which is written at once
    written = [event for event in read_journal(directory) if event.get("why") == "due"]
    return {
        "case": case,
        "parameters": sum(each.numel() for each in model.parameters()),
        "bytes": written[-1]["bytes"],
        "checkpoints": len(written),
        "pause_s": paused_s / len(written),
        "write_s": statistics.median(event["write_s"] for event in written),
        "step_s": statistics.median(steps),
    }
