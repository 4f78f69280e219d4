"""Training of a policy: imitation of what simulations say of each step, then proximal policy optimisation.

A folder keeps the training as it goes on (`training_folder`), so that one that was interrupted goes on there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mltcp.core.errors import MltcpError, UsageError
from placement.learning.episodes import Episodes, EpisodeSettings
from placement.learning.evaluation import check_fits, play
from placement.learning.lessons import Lessons, Tell, preferred, watch
from placement.learning.training_folder import TrainingFolder, TrainingSettings
from placement.policies.schedulers.contention.learned.checkpoint import (
    FORMAT,
    STEPS,
    Checkpoint,
    CheckpointHeader,
    Layers,
    digest_of_table,
    mean_layers,
)
from placement.policies.schedulers.contention.learned.learned import network_of
from placement.policies.schedulers.contention.learned.step_rows import NUMBERS, WIDTH

_PACKAGES = ("numpy", "torch")
_MODEL = "model.pt"
_RUNNING = NUMBERS.index("all_running")
_NEVER = -1e9


class StepPolicy(torch.nn.Module):
    """The network of `learned.score_rows` with, for the training, the value of a state.

    Args:
        hidden: the width of the layers.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, hidden), torch.nn.Linear(hidden, hidden)
        self.third, self.fourth = torch.nn.Linear(2 * hidden, hidden), torch.nn.Linear(hidden, 1)
        self.value = torch.nn.Sequential(
            torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1)
        )

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logarithms of the probabilities of the steps, and the value of a job that is present.

        Args:
            rows: (choices, steps, numbers); zero where there is no step.

        Returns:
            (choices, steps), about `_NEVER` where there is no step; and (choices,), negative, in hours.
        """
        allowed = rows[..., :3].sum(-1) > 0
        # As `Episodes.masks`: the cluster is never left idle while a job could run.
        idle = (rows[:, 0, _RUNNING] == 0) & allowed[:, 1]
        # Most rows are not there, and are not computed; nor is the half of the third layer that all rows share.
        hidden = torch.relu(self.second(torch.relu(self.first(rows[allowed]))))
        spread = torch.zeros(*allowed.shape, hidden.shape[-1])
        spread[allowed] = hidden
        pooled = spread.max(dim=1).values
        own, of_all = self.third.weight.tensor_split(2, dim=1)
        shared = pooled @ of_all.T + self.third.bias
        both = torch.relu(hidden @ own.T + shared[allowed.nonzero()[:, 0]])
        logits = torch.full(allowed.shape, _NEVER)
        logits[allowed] = self.fourth(both).squeeze(-1)
        logits = torch.cat([torch.where(idle, _NEVER, logits[:, 0])[:, None], logits[:, 1:]], 1)
        value = -torch.nn.functional.softplus(self.value(pooled.detach()).squeeze(-1) + 1.0)
        return torch.log_softmax(logits, -1), value

    def layers(self) -> Layers:
        """What a checkpoint keeps."""
        return tuple(
            (part.weight.detach().numpy().T.copy(), part.bias.detach().numpy().copy())
            for part in self._linear
        )

    def set_layers(self, layers: Layers) -> None:
        """Take over what a checkpoint has kept.

        Raises:
            UsageError: its layers have another width.
        """
        for part, (weights, bias) in zip(self._linear, layers, strict=True):
            if part.weight.T.shape != weights.shape:
                raise UsageError(
                    f"--from: expected layers of {tuple(part.weight.T.shape)}, got {weights.shape}"
                )
            with torch.no_grad():
                part.weight.copy_(torch.as_tensor(weights).T)
                part.bias.copy_(torch.as_tensor(bias))

    def mix(self, layers: Layers) -> None:
        """Take the mean of these layers and its own (Wortsman et al., CVPR 2022): less is forgotten."""
        self.set_layers(mean_layers([layers, self.layers()]))

    @property
    def _linear(self) -> tuple[torch.nn.Linear, ...]:
        return self.first, self.second, self.third, self.fourth


def train(
    worlds: Sequence[EpisodeSettings],
    settings: TrainingSettings,
    folder: Path,
    tell: Tell = lambda what, done, most, score: None,
    tensorboard: Path | None = None,
    guide: Checkpoint | None = None,
    start: Checkpoint | None = None,
) -> Checkpoint:
    """Train a policy, or go on with a training that was interrupted.

    Args:
        worlds: the runs to learn from: clusters, tables, combinations of ratios and traces, in equal shares.
        settings: of the training.
        folder: for ``policy.npz``, ``model.pt``, and what is needed to go on.
        tell: is told how far it is.
        tensorboard: a folder for its log; None for none.
        guide: a policy that decides in the simulations that are imitated (expert iteration: Anthony, Tian and Barber,
            NIPS 2017); None for the rule.
        start: a policy to go on from: it plays in the first part, too, is changed by small steps, and what comes of the
            imitation is the mean of both; None for a new network.

    Raises:
        UsageError: the folder has a training with other settings, a log is asked for without the package, the guide or
            the start may stop jobs and the policy not, or the other way round, or the start has another width.
        MltcpError: the training diverges; what was kept before stays.
    """
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    for each in (guide, start):
        if each is not None:
            check_fits(each, worlds[0])
    digests = {name: each and each.digest for name, each in (("guide", guide), ("from", start))}
    described = _description(worlds, settings) | digests
    kept = TrainingFolder(folder, described)
    log = _log(tensorboard)
    policy = StepPolicy(settings.hidden)
    if start is not None:
        policy.set_layers(start.layers)

    def save() -> None:
        kept.write(_MODEL, lambda path: torch.save(policy.state_dict(), path))
        kept.write("policy.npz", checkpoint_of(policy, worlds, described).save)

    if kept.parts or kept.steps:
        policy.load_state_dict(torch.load(folder / _MODEL, weights_only=True))
    if settings.imitated:
        imitate(policy, worlds, settings, kept, save, tell, guide, start)
    imitation_s, told = kept.seconds, {}
    if kept.steps < settings.steps:
        told = improve(policy, worlds, settings, kept, save, tell, log)
    told |= {"imitation_s": round(imitation_s), "all_s": round(kept.seconds)}
    checkpoint = checkpoint_of(policy, worlds, described | told)
    kept.write("policy.npz", checkpoint.save)
    kept.remove_lessons()
    return checkpoint


def checkpoint_of(policy: StepPolicy, worlds: Sequence[EpisodeSettings], told: dict[str, Any]) -> Checkpoint:
    """The network of a policy, and its description.

    Raises:
        UsageError: a number of it is not finite.
    """
    tables = tuple(dict.fromkeys(digest_of_table(each.rounds.model.table) for each in worlds))
    header = CheckpointHeader(FORMAT, STEPS, WIDTH, 1, worlds[0].stops, tables, told)
    return Checkpoint(header, policy.layers())


def _log(folder: Path | None) -> Callable[[str, float, int], None]:
    if folder is None:
        return lambda name, value, step: None
    if find_spec("tensorboard") is None:
        raise UsageError("--tensorboard: expected the package tensorboard, which is not installed")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))
    return lambda name, value, step: writer.add_scalar(name, value, step)


def _description(worlds: Sequence[EpisodeSettings], settings: TrainingSettings) -> dict[str, Any]:
    """All that decides what is learned, for people and to compare."""
    one = worlds[0]
    return {
        **asdict(settings),
        "loads": one.loads,
        "at_once": one.at_once,
        "mixes": one.mixes,
        "jobs": one.jobs,
        "stops": one.stops,
        "restart_ns": one.rounds.restart_ns,
        "worlds": [
            {
                "nodes": each.rounds.nodes,
                "gpus": each.rounds.gpus,
                "table": digest_of_table(each.rounds.model.table),
                "combination": each.rounds.model.combination,
                "trace": None if each.trace is None else each.trace.name,
            }
            for each in worlds
        ],
        "first_trace": settings.first_seed,
        "versions": {name: version(name) for name in _PACKAGES},
    }


# -- imitation ---------------------------------------------------------------------------------------------------------
# In parts: after the first one, the policy itself plays. A policy that has seen only its teacher's states errs in those
# that its own errors lead to. So the simulations say what each step costs there, too, and the policy learns from all
# parts together (DAgger: Ross, Gordon, Bagnell, AISTATS 2011).


_RATE, _RATE_FROM = 2e-3, 5e-4


def imitate(
    policy: StepPolicy,
    worlds: Sequence[EpisodeSettings],
    settings: TrainingSettings,
    kept: TrainingFolder,
    save: Callable[[], None],
    tell: Tell,
    guide: Checkpoint | None = None,
    start: Checkpoint | None = None,
) -> None:
    """Teach a policy which steps cost little.

    Args:
        policy: to teach.
        worlds: the runs; all of the teacher's traces have seeds below those that are learned from later.
        settings: how many runs, and the batch.
        kept: the parts that are done, to which those that follow are added.
        save: the policy, to go on from.
        tell: is told how far it is.
        guide: of the simulations; None for the rule.
        start: what the policy was before; None for a new network.
    """
    if kept.parts >= settings.parts:
        return
    lessons = [kept.read_lessons(part) for part in range(kept.parts)]
    first_seed = settings.first_seed - settings.imitated
    for part, runs in enumerate(np.array_split(np.arange(settings.imitated), settings.parts)):
        if part < kept.parts:
            continue
        player = start if part == 0 else checkpoint_of(policy, worlds, {})
        found = [
            watch(each, first_seed + int(some[0]), len(some), player, tell, guide)
            for each, some in zip(worlds, np.array_split(runs, len(worlds)), strict=True)
            if len(some)
        ]
        lessons.append(Lessons(*(np.concatenate(parts) for parts in zip(*found, strict=True))))
        kept.write_lessons(part, lessons[-1])
        passes = settings.passes if part == settings.parts - 1 else max(1, settings.passes // 3)
        rate, chance = _RATE if start is None else _RATE_FROM, np.random.default_rng([settings.seed, part])
        _learn(policy, lessons, settings.batch, passes, rate, chance, tell)
        if start is not None and part == settings.parts - 1:
            policy.mix(start.layers)
        save()
        kept.note(parts=part + 1)


def _learn(
    policy: StepPolicy,
    lessons: Sequence[Lessons],
    size: int,
    passes: int,
    highest: float,
    chance: np.random.Generator,
    tell: Tell,
) -> None:
    """Cross-entropy to the targets; the rate falls to 0 along a cosine."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=highest)
    for done in range(passes):
        batches = _batches(lessons, size, chance)
        for number, (each, rows) in enumerate(batches):
            share = (done + number / len(batches)) / passes
            optimizer.param_groups[0]["lr"] = highest * (1 + math.cos(math.pi * share)) / 2
            seen, targets = (torch.as_tensor(values[rows].astype(np.float32)) for values in each)
            loss = -(targets * policy(seen)[0]).sum(-1).mean()
            _update(policy, optimizer, loss)
        tell("imitation", done + 1, passes, None)


def _update(policy: StepPolicy, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    if not torch.isfinite(loss):
        raise MltcpError("training: the loss is not finite; the policy of the last part or update is kept")
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()


def _batches(
    lessons: Sequence[Lessons], size: int, chance: np.random.Generator
) -> list[tuple[Lessons, np.ndarray]]:
    """All choices once, a batch from one part each: the parts together would need twice the memory."""
    found = []
    for each in lessons:
        order = chance.permutation(len(each.rows))
        found += [(each, rows) for rows in np.array_split(order, max(1, len(order) // size))]
    return [found[number] for number in chance.permutation(len(found))]


# -- proximal policy optimisation (Schulman et al., 2017) --------------------------------------------------------------
# The reward of a step is minus the hours that all present jobs spend in the system during it, discounted a round at a
# time. Its size grows with the jobs that are present, so values and advantages are those of one of them. The first
# updates teach the value alone; then the policy follows, held back by its divergence from the imitator, so that it
# cannot forget what simulations have taught it.


class Rollout(NamedTuple):
    """Steps of many runs: `rows`, the chosen ones, the advantages of one job, and the value's targets."""

    rows: torch.Tensor
    chosen: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


class ContentionRuns:
    """Runs side by side; one that has ended begins again with the trace of the next seed that no run has had.

    Attributes:
        next_seed: of the next run.

    Args:
        settings: of the runs.
        count: how many at once.
        first_seed: of the first run.
    """

    def __init__(self, settings: EpisodeSettings, count: int, first_seed: int) -> None:
        self._episodes, self.next_seed = Episodes(settings, count), first_seed
        for number in range(count):
            self._begin(number)

    def collect(self, policy: StepPolicy, settings: TrainingSettings, chance: np.random.Generator) -> Rollout:
        """Play so many steps in each run."""
        episodes, horizon = self._episodes, settings.horizon
        network = network_of(policy.layers(), episodes.settings.rounds.nodes, episodes.settings.stops)
        shape = (horizon, episodes.count)
        rows = np.zeros((horizon + 1, *episodes.rows.shape), np.float32)
        chosen, rewards = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        discounts, present = np.zeros(shape, np.float32), np.zeros((horizon + 1, episodes.count), np.float32)
        for step in range(horizon):
            rows[step], present[step] = episodes.rows, self._present()
            chosen[step] = preferred(episodes, network, chance)
            episodes.step(chosen[step])
            rewards[step] = episodes.rewards
            discounts[step] = settings.discount**episodes.rounds
            for number in range(episodes.count):
                if episodes.is_done(number):
                    discounts[step, number] = 0.0
                    self._begin(number)
        rows[horizon], present[horizon] = episodes.rows, self._present()
        with torch.no_grad():
            _, each = policy(torch.as_tensor(rows.reshape(-1, *rows.shape[2:])))
        values = each.numpy().reshape(horizon + 1, -1) * present
        advantages = np.zeros(shape, np.float32)
        last = np.zeros(episodes.count, np.float32)
        for step in range(horizon - 1, -1, -1):
            error = rewards[step] + discounts[step] * values[step + 1] - values[step]
            last = error + discounts[step] * settings.trace_decay * last
            advantages[step] = last
        returns = (advantages + values[:-1]) / present[:-1]
        flat = (chosen, advantages / present[:-1], returns)
        seen = torch.as_tensor(rows[:-1].reshape(-1, *rows.shape[2:]))
        return Rollout(seen, *(torch.as_tensor(part.reshape(-1)) for part in flat))

    def _present(self) -> np.ndarray:
        """One more than the jobs that are present in each run: rows tell of long queues as of others."""
        cores = self._episodes.worlds.core[:, 0]
        return np.asarray(cores["waiting"] + cores["running"] + 1)

    def _begin(self, number: int) -> None:
        self._episodes.reset(number, self.next_seed)
        self.next_seed += 1


def improve(
    policy: StepPolicy,
    worlds: Sequence[EpisodeSettings],
    settings: TrainingSettings,
    kept: TrainingFolder,
    save: Callable[[], None],
    tell: Tell,
    log: Callable[[str, float, int], None],
) -> dict[str, Any]:
    """Go on by proximal policy optimisation; the policy is left as it was best on traces that it does not learn from.

    Returns:
        The mean completion times relative to the imitator's on these traces, and after how many steps, for people.
    """
    imitator, best = copy.deepcopy(policy), copy.deepcopy(policy.state_dict())
    own = [max(1, settings.runs // len(worlds))] * len(worlds)
    begin = settings.first_seed + kept.traces
    groups = [ContentionRuns(*each) for each in zip(worlds, own, _seeds(begin, len(worlds)), strict=True)]
    reference = _validated(imitator, worlds, settings)
    optimizer, chance = (
        torch.optim.Adam(policy.parameters()),
        np.random.default_rng([settings.seed, kept.steps, 7]),
    )
    least, best_steps, updates, steps = 1.0, 0, 0, kept.steps
    while steps < settings.steps:
        parts = [each.collect(policy, settings, chance) for each in groups]
        whole = Rollout(*(torch.cat(each) for each in zip(*parts, strict=True)))
        rate = settings.rate * (1 - steps / settings.steps)
        steps, updates = steps + len(whole.chosen), updates + 1
        _fit(policy, imitator, optimizer, whole, settings, rate, updates <= settings.warm_up, chance)
        if updates % settings.every == 0 or steps >= settings.steps:
            ratio = float(np.mean(_validated(policy, worlds, settings) / reference))
            log("validation/ratio to the imitator", ratio, steps)
            tell("learning", min(steps, settings.steps), settings.steps, ratio)
            if ratio < least:
                least, best_steps, best = ratio, steps, copy.deepcopy(policy.state_dict())
                save()
            kept.note(steps=steps, traces=max(each.next_seed for each in groups) - settings.first_seed)
    policy.load_state_dict(best)
    save()
    kept.note(steps=max(steps, settings.steps))
    return {"ratio_to_imitator": round(least, 4), "best_after_steps": best_steps}


_SEEDS_OF_A_WORLD, _VALIDATION = 20_000, 900_000


def _seeds(begin: int, worlds: int) -> list[int]:
    return [begin + _SEEDS_OF_A_WORLD * number for number in range(worlds)]


def _validated(
    policy: StepPolicy, worlds: Sequence[EpisodeSettings], settings: TrainingSettings
) -> np.ndarray:
    """The mean completion times of traces that are kept for this, world by world."""
    first = settings.first_seed + _VALIDATION
    checkpoint = checkpoint_of(policy, worlds, {})
    return np.concatenate(
        [play(checkpoint, each, range(first, first + settings.validated)) for each in worlds]
    )


def _fit(
    policy: StepPolicy,
    imitator: StepPolicy,
    optimizer: torch.optim.Optimizer,
    whole: Rollout,
    settings: TrainingSettings,
    rate: float,
    warms_up: bool,
    chance: np.random.Generator,
) -> None:
    """One update: a few passes over a rollout."""
    optimizer.param_groups[0]["lr"] = max(rate, 1e-3) if warms_up else rate
    advantages = (whole.advantages - whole.advantages.mean()) / (whole.advantages.std() + 1e-8)
    with torch.no_grad():
        before = policy(whole.rows)[0].gather(1, whole.chosen[:, None]).squeeze(1)
        wanted = imitator(whole.rows)[0]
    size = len(whole.chosen)
    for _ in range(settings.epochs):
        for rows in np.array_split(chance.permutation(size), max(1, size // settings.batch)):
            logs, values = policy(whole.rows[rows])
            loss = (values - whole.returns[rows]).square().mean()
            if not warms_up:
                ratio = (logs.gather(1, whole.chosen[rows][:, None]).squeeze(1) - before[rows]).exp()
                clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
                gained = torch.minimum(ratio * advantages[rows], clipped * advantages[rows]).mean()
                strayed = (logs.exp() * (logs - wanted[rows])).sum(-1).mean()
                loss = 0.5 * loss - gained + settings.leash * strayed
            _update(policy, optimizer, loss)
