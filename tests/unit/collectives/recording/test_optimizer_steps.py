"""Which steps of real torch optimizers and scalers are reported, and as whose."""

import inspect

import pytest
import torch
from torch.optim import LBFGS, SGD

from collectives.recording import optimizer_steps

pytestmark = pytest.mark.slow


@pytest.fixture
def seen():
    reported = []
    optimizer_steps.install(reported.append)
    yield reported
    optimizer_steps.uninstall()


def parameter():
    made = torch.nn.Parameter(torch.ones(2))
    made.grad = torch.ones(2)
    return made


def sgd():
    return SGD([parameter()], 0.1)


def scaler(kind=torch.amp.GradScaler, **options):
    return kind("cpu", init_scale=4.0, **options)


def train(grad_scaler, optimizer, finite):
    for each in finite:
        weight = optimizer.param_groups[0]["params"][0]
        weight.grad = None
        grad_scaler.scale((weight * (1.0 if each else float("inf"))).sum()).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()


class Sharded(SGD):
    """Steps by stepping others, as ZeroRedundancyOptimizer does."""

    def __init__(self):
        super().__init__([parameter()], 0.1)
        self.inner = [sgd(), sgd()]

    def step(self, closure=None):
        for each in self.inner:
            each.step()


class Failing(SGD):
    failing = True

    def step(self, closure=None):
        if self.failing:
            raise ValueError("no")
        return super().step()


class Wrapper:
    """An optimizer for the scaler, but none of torch's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self, *args, **kwargs):
        return self.optimizer.step(*args, **kwargs)


def test_each_optimizer_has_its_number(seen):
    first, second = sgd(), sgd()
    for each in (first, second, first):
        each.step()
    assert seen == [0, 1, 0]


def test_a_nested_step_is_part_of_the_outer_one(seen):
    sharded = Sharded()
    sharded.step()
    sharded.step()
    assert seen == [0, 0]


def test_a_step_that_calls_its_base_class_is_one_step(seen):
    sgd()

    class Derived(SGD):
        def step(self, closure=None):
            return super().step(closure)

    Derived([parameter()], 0.1).step()
    assert seen == [0]


def test_a_step_that_raises_is_none_and_leaves_the_next_one_outermost(seen):
    optimizer = Failing([parameter()], 0.1)
    with pytest.raises(ValueError, match="no"):
        optimizer.step()
    assert seen == []
    optimizer.failing = False
    optimizer.step()
    assert seen == [0]


def test_steps_in_backward_hooks_are_steps_of_their_own(seen):
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizers = {weight: SGD([weight], 0.1) for weight in weights}
    for weight in weights:
        weight.register_post_accumulate_grad_hook(lambda weight: optimizers[weight].step())
    for _ in range(2):
        sum(weight.sum() for weight in weights).backward()
    assert sorted(seen[:3]) == [0, 1, 2]
    assert seen[3:] == seen[:3]


def test_a_closure_called_many_times_is_one_step(seen):
    optimizer = LBFGS([parameter()])
    weight = optimizer.param_groups[0]["params"][0]
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = ((weight - 3) ** 4).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(32.0)
    assert len(calls) > 1
    assert seen == [0]


def test_equality_and_hash_of_an_optimizer_do_not_matter(seen):
    class Unhashable(SGD):
        def __eq__(self, other):
            return True

    first, second = Unhashable([parameter()], 0.1), Unhashable([parameter()], 0.1)
    for each in (first, second, first):
        each.step()
    assert seen == [0, 1, 0]


def test_an_optimizer_made_anew_keeps_the_number_of_the_one_that_is_gone(seen):
    kept = sgd()
    kept.step()
    for _ in range(3):
        optimizer = sgd()
        optimizer.step()
        del optimizer
    assert seen == [0, 1, 1, 1]


@pytest.mark.parametrize(
    "finite",
    [[True] * 4, [False] * 4, [False, False, False, True, True, False, True]],
    ids=["no step skipped", "all skipped", "the first three and one later"],
)
@pytest.mark.parametrize(
    "optimizer", [sgd, Sharded, lambda: Wrapper(sgd())], ids=["plain", "sharded", "wrapped"]
)
def test_a_scaler_reports_each_step_once_whether_it_skips_it_or_not(seen, optimizer, finite):
    train(scaler(), optimizer(), finite)
    assert seen == [0] * len(finite)


def test_a_scaler_that_is_subclassed_or_turned_off_reports_once(seen):
    class Derived(torch.amp.GradScaler):
        def step(self, optimizer, *args, **kwargs):
            return super().step(optimizer, *args, **kwargs)

    optimizer = sgd()
    train(scaler(Derived), optimizer, [False, True])
    scaler(enabled=False).step(optimizer)
    assert seen == [0, 0, 0]


@pytest.mark.parametrize("finite", [True, False])
def test_a_scaler_inside_of_a_step_is_part_of_it(seen, finite):
    class Scaled(SGD):
        def step(self, closure=None):
            train(scaler(), self.inner, [finite])

    optimizer = Scaled([parameter()], 0.1)
    optimizer.inner = sgd()
    optimizer.step()
    assert seen == [0]


def test_a_scaler_step_that_raises_is_none(seen):
    optimizer, grad_scaler = sgd(), scaler()
    weight = optimizer.param_groups[0]["params"][0]
    grad_scaler.scale(weight.sum()).backward()
    grad_scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        grad_scaler.step(optimizer)
    assert seen == [0]
    optimizer.step()
    assert seen == [0, 0]


def test_what_a_scaler_returns_and_how_it_is_called_stay_as_they_were(seen):
    class Answering(SGD):
        def step(self, closure=None):
            return 42.0

    assert list(inspect.signature(torch.amp.GradScaler.step).parameters) == [
        "self",
        "optimizer",
        "args",
        "kwargs",
    ]
    assert scaler(enabled=False).step(optimizer=Answering([parameter()], 0.1)) == 42.0
    assert seen == [0]


def test_uninstall_leaves_torch_as_it_was():
    before = torch.amp.GradScaler.step
    reported = []
    for _ in range(2):
        optimizer_steps.install(reported.append)
    optimizer_steps.uninstall()
    optimizer_steps.uninstall()
    assert torch.amp.GradScaler.step is before
    sgd().step()
    assert reported == []


def test_uninstall_leaves_alone_what_others_have_wrapped_around(monkeypatch):
    # Restored by monkeypatch after the test.
    monkeypatch.setattr(torch.amp.GradScaler, "step", torch.amp.GradScaler.step)
    reported = []
    optimizer_steps.install(reported.append)
    ours = torch.amp.GradScaler.step

    def others(*args, **kwargs):
        return ours(*args, **kwargs)

    torch.amp.GradScaler.step = others
    optimizer_steps.uninstall()
    assert torch.amp.GradScaler.step is others
    train(scaler(), sgd(), [True, False])
    assert reported == []
