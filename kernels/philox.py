"""Philox4x32-10: a counter-based random number generator, the same on every backend (Salmon et al. 2011, section 3.3).

Random numbers are a pure function of (seed, step, row, purpose): reproducible across backends and batch splits, and a
resumed run draws what the undisturbed one would have drawn.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = 0x9E3779B9, 0xBB67AE85
KEY1 = 0x666F7868  # "foxh": the second key word; the first is the seed
_MASK, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIERS = np.array([M1, M0])
_BUMPS = np.arange(10, dtype=np.uint64)[:, None] * np.array([W0, W1], np.uint64)  # of the keys, by round


class Purpose(IntEnum):
    """The last counter word: draws for different ends never share a number."""

    ACTION = 0
    RESET = 1
    REPLAY = 2
    ROLLOUT = 3
    INIT = 4
    SYNTHETIC = 5
    BASELINE = 6
    BOOTSTRAP = 7


def philox4x32(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any = KEY1) -> tuple[np.ndarray, ...]:
    """Ten rounds over broadcast uint32 counters (c0..c3) and keys (k0, k1). Returns four uint32 arrays."""
    counters = [np.asarray(c, np.uint32) for c in (c0, c1, c2, c3)]
    keys = np.broadcast_arrays(np.asarray(k0, np.uint64), np.asarray(k1, np.uint64))
    shape = np.broadcast_shapes(*(c.shape for c in counters), keys[0].shape)
    # Words 2 and 0 are multiplied, words 1 and 3 are mixed in: two arrays [2, ...] halve the number of NumPy calls.
    left, right = np.empty((2, *shape), np.uint64), np.empty((2, *shape), np.uint64)
    left[0], left[1], right[0], right[1] = counters[2], counters[0], counters[1], counters[3]
    by = _MULTIPLIERS.reshape(2, *(1,) * len(shape))
    key = np.stack(keys).reshape(2, *(1,) * (len(shape) - keys[0].ndim), *keys[0].shape)
    for round_key in (key + _BUMPS.reshape(10, *by.shape)) & _MASK:
        product = left * by
        # x0' = high(M1 x2) ^ x1 ^ k0, x2' = high(M0 x0) ^ x3 ^ k1; x1' = low(M1 x2), x3' = low(M0 x0)
        left = ((product >> _32) ^ right ^ round_key)[::-1]
        right = product & _MASK
    x0, x2 = left[1], left[0]
    return tuple(x.astype(np.uint32) for x in (x0, right[0], x2, right[1]))


def uniform(words: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """[0, 1) with 24 bits: exact in float32, so every backend and dtype gets the same number."""
    return (words >> np.uint32(8)).astype(dtype) * np.asarray(2.0**-24, dtype)


def counters(steps: np.ndarray, row: Any, purpose: Purpose, seed: int) -> tuple[np.ndarray, ...]:
    """As `counter`, of many steps int64 at once; `steps` and `row` are broadcast."""
    s = steps.astype(np.uint64)
    return philox4x32(s & _MASK, s >> _32, row, np.uint32(int(purpose)), np.uint32(seed))


def counter(step: np.ndarray, row: Any, purpose: Purpose, seed: int) -> tuple[np.ndarray, ...]:
    """Four words for (seed, step int64 [1], row, purpose)."""
    s = np.asarray(step).astype(np.uint64).reshape(-1)[0]
    low, high = np.uint32(s & _MASK), np.uint32(s >> np.uint64(32))
    return philox4x32(low, high, row, np.uint32(int(purpose)), np.uint32(seed))
