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
_MASK = np.uint64(0xFFFFFFFF)


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
    words = np.broadcast_arrays(*(np.asarray(c, np.uint32) for c in (c0, c1, c2, c3)))
    x0, x1, x2, x3 = (w.astype(np.uint64) for w in words)
    key0, key1 = np.asarray(k0, np.uint64), np.asarray(k1, np.uint64)
    for _ in range(10):
        p0, p1 = M0 * x0, M1 * x2
        x0, x1, x2, x3 = (p1 >> np.uint64(32)) ^ x1 ^ key0, p1 & _MASK, (p0 >> np.uint64(32)) ^ x3 ^ key1, p0 & _MASK
        key0, key1 = (key0 + np.uint64(W0)) & _MASK, (key1 + np.uint64(W1)) & _MASK
    return tuple(x.astype(np.uint32) for x in (x0, x1, x2, x3))


def uniform(words: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """[0, 1) with 24 bits: exact in float32, so every backend and dtype gets the same number."""
    return (words >> np.uint32(8)).astype(dtype) * np.asarray(2.0**-24, dtype)


def counter(step: np.ndarray, row: Any, purpose: Purpose, seed: int) -> tuple[np.ndarray, ...]:
    """Four words for (seed, step int64 [1], row, purpose)."""
    s = np.asarray(step).astype(np.uint64).reshape(-1)[0]
    low, high = np.uint32(s & _MASK), np.uint32(s >> np.uint64(32))
    return philox4x32(low, high, row, np.uint32(int(purpose)), np.uint32(seed))
