"""Steps of any world sizes cover each epoch once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collectives.elastic.batches import (
    SAME_FOR_ANY_BATCH,
    Batch,
    BatchScaling,
    EpochOrder,
    StepRange,
    linear_in_batch,
    root_of_batch,
    step_range,
    step_seed,
)
from mltcp.core.errors import UsageError


@given(
    samples=st.integers(1, 60),
    batch=st.integers(1, 7),
    epochs=st.integers(1, 3),
    worlds=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    seed=st.integers(0, 2**31 - 1),
)
def test_every_sample_belongs_to_one_rank_once_an_epoch(samples, batch, epochs, worlds, seed):
    order = EpochOrder(samples, seed)
    seen = torch.zeros(epochs, samples, dtype=torch.int64)
    done = step = 0
    while done < samples * epochs:
        ranks = worlds[step % len(worlds)]
        bounds = step_range(done, samples, ranks * batch)
        parts = [order.indices(bounds, rank, ranks) for rank in range(ranks)]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert max(map(len, parts)) <= batch
        for part in parts:
            seen[bounds.epoch, part] += 1
        done, step = done + bounds.end - bounds.begin, step + 1
    assert (seen == 1).all()


def test_the_last_step_of_an_epoch_is_short_and_none_crosses_epochs():
    assert step_range(0, 10, 8) == StepRange(0, 0, 8)
    assert step_range(8, 10, 8) == StepRange(0, 8, 10)
    assert step_range(10, 10, 8) == StepRange(1, 0, 8)
    assert [list(StepRange(0, 8, 10).part(rank, 4)) for rank in range(4)] == [[8], [9], [], []]
    assert [list(StepRange(0, 0, 7).part(rank, 3)) for rank in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]


def test_the_order_is_a_function_of_seed_and_epoch():
    def whole(seed, epoch):
        return EpochOrder(50, seed).indices(StepRange(epoch, 0, 50), 0, 1).tolist()

    assert whole(3, 1) == whole(3, 1)
    assert whole(3, 1) != whole(3, 2)
    assert whole(3, 1) != whole(4, 1)


def test_step_seeds_differ_by_rank_position_and_seed():
    seeds = {
        step_seed(seed, done, rank) for seed in range(5) for done in range(0, 500, 10) for rank in range(8)
    }
    assert len(seeds) == 5 * 50 * 8
    assert all(0 <= each < 2**63 for each in seeds)


def test_the_mean_of_ranks_is_the_mean_over_samples():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    parts = [values[:2], values[2:4], values[4:], values[5:]]
    batches = [Batch(torch.arange(len(part)), 0, 5, 0, 4, False) for part in parts]
    means = [batch.mean(part.sum()) for batch, part in zip(batches, parts, strict=True)]
    assert sum(means) / 4 == pytest.approx(3.0)


def test_learning_rate_factors():
    assert linear_in_batch(64).factor(256) == 4
    assert root_of_batch(64).factor(256) == 2
    assert SAME_FOR_ANY_BATCH.factor(256) == 1


@pytest.mark.parametrize(
    ("reference", "exponent", "text"),
    [
        (0, 1.0, "reference: expected 1 or more samples, got 0"),
        (64, 1.5, "exponent: expected 0 to 1, got 1.5"),
        (64, float("nan"), "exponent: expected 0 to 1, got nan"),
    ],
)
def test_bad_scaling_is_refused(reference, exponent, text):
    with pytest.raises(UsageError) as error:
        BatchScaling(reference, exponent)
    assert str(error.value) == text
