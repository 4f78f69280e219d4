"""The generator of `random.Random`, MT19937, for compiled code: the numbers are those that Python draws."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.simulator.published.state import PublishedState

WORDS = 624
_SHIFT = 397


@compiled
def random(state: PublishedState) -> float:
    """Return the next number in [0, 1), as `random.Random.random` does."""
    high = _word(state) >> np.uint32(5)
    low = _word(state) >> np.uint32(6)
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0)


@compiled
def skip(state: PublishedState, numbers: int) -> None:
    """Advance the generator as `count` calls of `random` would."""
    clock = state.clock[0]
    word = clock.word + 2 * numbers
    while word > WORDS:
        _renew(state.generator)
        word -= WORDS
    clock.word = word


@compiled
def _word(state: PublishedState) -> np.uint32:
    clock = state.clock[0]
    if clock.word == WORDS:
        _renew(state.generator)
        clock.word = 0
    word: np.uint32 = state.generator[clock.word]
    clock.word += 1
    word ^= word >> np.uint32(11)
    word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
    word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
    return word ^ (word >> np.uint32(18))


@compiled
def _renew(words: np.ndarray) -> None:
    """Generate the next 624 words."""
    for i in range(WORDS - _SHIFT):
        words[i] = words[i + _SHIFT] ^ _twist(words[i], words[i + 1])
    for i in range(WORDS - _SHIFT, WORDS - 1):
        words[i] = words[i + _SHIFT - WORDS] ^ _twist(words[i], words[i + 1])
    words[WORDS - 1] = words[_SHIFT - 1] ^ _twist(words[WORDS - 1], words[0])


@compiled
def _twist(word: np.uint32, following: np.uint32) -> np.uint32:
    mixed = (word & np.uint32(0x80000000)) | (following & np.uint32(0x7FFFFFFF))
    return (mixed >> np.uint32(1)) ^ ((mixed & np.uint32(1)) * np.uint32(0x9908B0DF))
