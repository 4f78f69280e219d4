"""The pass through a multilayer perceptron with tanh, compiled.

numpy's own products wake a thread a core for matrices as small as these, and waste most of its time: beside other
programs ten times of it. Most of what these networks read is 0, which costs nothing here.
"""

from __future__ import annotations

import math

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays

Layers = tuple[tuple[np.ndarray, np.ndarray], ...]
"""(W, b) of each layer of a network: x becomes tanh(x W + b), in the last layer without tanh."""


def preferences(layers: Layers, features: np.ndarray) -> np.ndarray:
    """The logits of all steps in float32; the last axis of `features` is one observation."""
    rows = np.ascontiguousarray(features, np.float32).reshape(-1, features.shape[-1])
    for number, (weights, bias) in enumerate(layers):
        given = rows
        rows = np.empty((len(given), len(bias)), np.float32)
        is_last = number == len(layers) - 1
        pass_rows(
            given,
            np.ascontiguousarray(weights, np.float32),
            np.ascontiguousarray(bias, np.float32),
            rows,
            is_last,
        )
    return rows.reshape(*features.shape[:-1], -1)


def best_steps(layers: Layers, features: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The step that a network prefers among those that the mask allows, of each observation."""
    return np.argmax(np.where(mask, preferences(layers, features), -np.inf), axis=-1)


@compiled_with_arrays
def pass_rows(
    given: np.ndarray, weights: np.ndarray, bias: np.ndarray, found: np.ndarray, is_last: bool
) -> None:
    """Set each row of `found` to the outputs of a layer."""
    for row in range(len(given)):
        pass_layer(given[row], weights, bias, found[row])
        if not is_last:
            squash(found[row])


@compiled
def pass_layer(given: np.ndarray, weights: np.ndarray, bias: np.ndarray, found: np.ndarray) -> None:
    """Set `found` to given W + b; most inputs of the first layer are 0, and cost nothing."""
    for column in range(len(found)):
        found[column] = bias[column]
    for position in range(len(given)):
        value = given[position]
        if value != 0.0:
            for column in range(len(found)):
                found[column] += value * weights[position, column]


@compiled
def squash(values: np.ndarray) -> None:
    """The hyperbolic tangent of each value, in place."""
    for position in range(len(values)):
        values[position] = math.tanh(values[position])
