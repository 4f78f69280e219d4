"""Trainings with parameter servers as real processes on the loopback interface."""

import itertools
import os
import select
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory, progress_of
from collectives.elastic.checkpoints.stored_values import read_values
from collectives.parameter_server import server
from collectives.parameter_server.connection import ServerLostError
from collectives.parameter_server.messages import GradientOutcome
from collectives.parameter_server.served_module import GradientError
from collectives.parameter_server.server import serve
from collectives.parameter_server.worker import join
from mltcp.core.address import free_port
from mltcp.core.errors import MltcpError, UsageError
from tests.unit.collectives.ranks import started

# The first optimizer of a process imports it: the fork server does, not every rank.
IMPORTED_LATE = ("torch._dynamo",)

WORKER_STEPS = 30


@pytest.fixture(autouse=True)
def _one_thread():
    """As in the ranks: sums over more threads differ in the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Parts:
    """A module with dropout-free layers, buffers and an unused parameter; an optimizer, a schedule, and data."""

    def __init__(self, seed=1):
        torch.manual_seed(seed)
        self.module = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1)
        )
        self.module.register_parameter("unused", nn.Parameter(torch.ones(3)))
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.01, weight_decay=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 10, 0.5)

    def loader(self, seed=2):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(40, 6, generator=generator)
        data = TensorDataset(inputs, inputs.mean(dim=1, keepdim=True))
        return DataLoader(data, batch_size=8, shuffle=True, generator=generator)

    def loss(self, batch):
        return nn.functional.mse_loss(self.module(batch[0]), batch[1])

    def values(self):
        # As arrays: a tensor would be fetched from the process that sends it, which may have ended.
        return {name: value.clone().numpy() for name, value in self.module.state_dict().items()}


def addresses(servers=1):
    return ",".join(f"127.0.0.1:{free_port()}" for _ in range(servers))


def roles(rank, ranks, servers, serving, working):
    """The first ranks are servers, the others workers."""
    count = len(servers.split(","))
    return serving(servers, rank) if rank < count else working(servers, rank - count)


def run(serving, working, servers=1, workers=1):
    """The results of the servers, and those of the workers."""
    listed = addresses(servers)
    with started(roles, servers + workers, None, None, 60.0, listed, serving, working) as running:
        found = running.results()
    return found[:servers], found[servers:]


def equal(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("servers", [1, 3])
def test_one_worker_trains_as_the_same_loop_without_servers_bit_by_bit(servers, tmp_path):
    def serving(listed, number):
        parts = Parts(seed=1)
        serve(
            listed,
            parts.module,
            parts.optimizer,
            number=number,
            schedule=parts.schedule,
            updates=WORKER_STEPS,
            checkpoints=tmp_path,
        )

    def working(listed, _):
        parts, losses = Parts(seed=9), []
        with join(listed, parts.module) as worker:
            for batch in worker.batches(parts.loader()):
                loss = parts.loss(batch)
                losses.append(loss.item())
                loss.backward()
                told = worker.step(loss.item(), samples=len(batch[0]))
                assert told.staleness == (0,) * servers
        return losses, parts.values()

    _, [(losses, values)] = run(serving, working, servers)
    parts, expected = Parts(seed=1), []
    for batch in itertools.islice(
        itertools.chain.from_iterable(itertools.repeat(parts.loader())), WORKER_STEPS
    ):
        loss = parts.loss(batch)
        expected.append(loss.item())
        loss.backward()
        parts.optimizer.step()
        parts.schedule.step()
        parts.optimizer.zero_grad()
    assert losses == expected
    assert equal(values, parts.values())
    # All servers' checkpoints together are the module.
    kept = [CheckpointDirectory(tmp_path / f"server-{number}").newest() for number in range(servers)]
    states = [read_values(path / "state.pt")["model"] for path, _ in kept]
    whole = {name: value.numpy() for state in states for name, value in state.items()}
    assert equal(whole, parts.values())
    assert {header.samples_done for _, header in kept} == {WORKER_STEPS * 8}


def test_updates_of_two_workers_are_applied_in_the_order_in_which_they_are_acknowledged(tmp_path):
    def serving(listed, _):
        parts, log = Parts(), []
        serve(listed, parts.module, parts.optimizer, updates=40, on_update=log.append)
        return log, parts.values()

    def working(listed, number):
        parts, sent = Parts(seed=9), {}
        with join(listed, parts.module) as worker:
            (tmp_path / str(number)).touch()
            while len(list(tmp_path.iterdir())) < 2:
                time.sleep(0.001)
            for batch in itertools.islice(worker.batches(parts.loader(number)), 20):
                loss = parts.loss(batch)
                loss.backward()
                gradients = [
                    None if x.grad is None else x.grad.clone().numpy() for x in parts.module.parameters()
                ]
                told = worker.step(loss.item())
                assert told.outcomes == (GradientOutcome.APPLIED,)
                sent[told.versions[0]] = (worker.number, told.staleness[0], gradients)
        return sent

    [(log, values)], sent = run(serving, working, workers=2)
    every = {version: update for each in sent for version, update in each.items()}
    assert sorted(every) == [update.version for update in log] == list(range(1, 41))
    assert [len(each) for each in sent] == [20, 20]
    parts = Parts()
    for update in log:
        worker, staleness, gradients = every[update.version]
        assert (update.worker, update.staleness) == (worker, staleness)
        for parameter, gradient in zip(parts.module.parameters(), gradients, strict=True):
            parameter.grad = None if gradient is None else torch.from_numpy(gradient)
        parts.optimizer.step()
    trained = {name: each.detach().numpy() for name, each in parts.module.named_parameters()}
    assert equal({name: values[name] for name in trained}, trained)


@pytest.mark.parametrize("bound", [0, 1])
def test_no_gradient_is_staler_than_was_asked_for(bound):
    def serving(listed, _):
        parts, log = Parts(), []
        serve(listed, parts.module, parts.optimizer, updates=45, most_staleness=bound, on_update=log.append)
        return [(update.worker, update.staleness) for update in log]

    def working(listed, number):
        parts = Parts()
        with join(listed, parts.module) as worker:
            for batch in itertools.islice(worker.batches(parts.loader()), 15):
                parts.loss(batch).backward()
                time.sleep(0.005 * number)
                worker.step()
        return worker.number

    [log], workers = run(serving, working, workers=3)
    assert Counter(worker for worker, _ in log) == dict.fromkeys(workers, 15)
    assert max(staleness for _, staleness in log) <= bound


def test_bad_gradients_and_changed_modules_are_named_and_the_training_goes_on():
    def serving(listed, _):
        parts = Parts()
        return serve(listed, parts.module, parts.optimizer, updates=6).version

    def working(listed, _):
        parts = Parts()
        with pytest.raises(
            UsageError, match=r"server 0 at .*: servers: expected 1, as this server was told, got 2"
        ):
            join(f"{listed},127.0.0.1:1", parts.module, wait_s=1)
        other = nn.Sequential(nn.Linear(6, 16))
        with pytest.raises(
            UsageError, match=r"server 0 at .*: model.unused: expected float32\[3\], got none"
        ):
            join(listed, other)
        batches = parts.loader()
        with join(listed, parts.module) as worker:
            with pytest.raises(UsageError, match="loader: expected a batch or more, got none"):
                next(worker.batches([]))
            for step, batch in enumerate(worker.batches(batches)):
                parts.loss(batch).backward()
                if step == 2:
                    before = parts.values()
                    parts.module[3].weight.grad[1, 2] = float("nan")
                    with pytest.raises(
                        GradientError, match=r"gradient of 3.weight: expected finite numbers, got nan"
                    ):
                        worker.step()
                    assert equal(before, parts.values())
                    parts.module.zero_grad()
                    parts.loss(batch).backward()
                if step == 3:
                    last, parts.module[5] = parts.module[5], nn.Linear(8, 2)
                    with pytest.raises(
                        UsageError, match=r"model.5.weight: expected float32\[1, 8\], got float32\[2, 8\]"
                    ):
                        worker.step()
                    parts.module[5] = last
                    parts.module[0].weight.requires_grad = False
                    with pytest.raises(
                        UsageError, match=r"model.0.weight: expected float32\[16, 6\], got none"
                    ):
                        worker.step()
                    parts.module[0].weight.requires_grad = True
                worker.step()
            with pytest.raises(UsageError, match="samples: expected 1 or more, got 0"):
                worker.step(samples=0)
        return worker.steps

    assert run(serving, working) == ([6], [6])


def test_a_server_that_is_behind_when_another_has_all_updates_keeps_its_own_and_ends_with_an_error(
    tmp_path, monkeypatch
):
    def serving(listed, number):
        monkeypatch.setattr(server, "_LAST_WORKERS_S", 0.1)
        parts = Parts()

        def begin():
            updates = (3, 5)[number]
            return serve(
                listed, parts.module, parts.optimizer, number=number, updates=updates, checkpoints=tmp_path
            )

        if number == 0:
            return begin().version
        with pytest.raises(
            MltcpError, match=r"^server 1: expected 5 updates, got 3: another server has all of its own"
        ):
            begin()
        return progress_of(tmp_path / "server-1").samples_done

    def working(listed, _):
        parts = Parts()
        with join(listed, parts.module) as worker:
            for batch in worker.batches(parts.loader()):
                parts.loss(batch).backward()
                worker.step(samples=2)
        return worker.steps

    assert run(serving, working, servers=2) == ([3, 6], [3])


def test_a_server_that_is_gone_or_comes_back_without_its_checkpoints_is_named():
    def serving(listed, _):
        parts = Parts()
        serve(listed, parts.module, parts.optimizer)

    def working(listed, _):
        parts = Parts()
        with pytest.raises(ServerLostError, match=r"server 0 is gone: 127.0.0.1:1: nobody listens there"):
            join("127.0.0.1:1", parts.module, wait_s=0.2)
        with join(listed, parts.module, wait_s=30) as worker:
            for batch in parts.loader():
                parts.loss(batch).backward()
                worker.step()
            parts.loss(batch).backward()
            with suppress(OSError):
                os.kill(int(os.environ["SERVER"]), signal.SIGKILL)
            with pytest.raises(
                MltcpError, match="expected the 5 updates that it had or more, got 0: it was started"
            ):
                worker.step()

    listed = addresses()
    with started(roles, 1, None, None, 60.0, listed, serving, working) as first:
        environment = {"SERVER": str(first.processes[0].pid)}

        def second(rank, ranks):
            if rank == 0:
                return working(listed, 0)
            # The same address again, once the first server is dead: its port is taken until then.
            with suppress(ProcessLookupError):
                select.select([os.pidfd_open(int(environment["SERVER"]))], [], [])
            return serving(listed, 0)

        with started(second, 2, None, environment) as running:
            running._connections[0].poll(60)
            kind, value = running._connections[0].recv()
            assert kind == "result", value
