"""Serves the finished rollout in a fixed pseudo-random order, M rows a step, each row once an epoch of T*B/M steps.

The order is a bijection of 0..T*B-1 computed on the fly: a Feistel network over the next even power of two, walked
along its cycles until it lands inside (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 3). Its
round keys are Philox words of (seed, epoch), so no permutation is stored, and a resumed run goes on in the same order.

A rollout is served for as many steps as the next one takes to fill. With M < B that is less than an epoch: the rest
is never learnt from. When the next rollout is longer, a second epoch in another order begins.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from kernels.philox import Purpose, counter
from kernels.spec import Arg, Kernel, one_block

ROUNDS = 6
MIX0, MIX1 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)  # MurmurHash3's 32-bit finaliser


@lru_cache(maxsize=4)
def _round_keys(epoch: int, seed: int) -> tuple[np.uint32, ...]:
    """Eight Philox words, of which ROUNDS are used: a pure function, kept because it is wanted T times running."""
    words = counter(np.array([epoch], np.int64), np.arange(2, dtype=np.uint32), Purpose.ROLLOUT, seed)
    return tuple(w[i] for i in range(2) for w in words)[:ROUNDS]


def _feistel(x: np.ndarray, half: int, keys: tuple[np.uint32, ...]) -> np.ndarray:
    """A bijection of 0..4**half-1, x uint32: balanced Feistel with a MurmurHash3 finaliser as the round function."""
    h, low = np.uint32(half), np.uint32((1 << half) - 1)
    left, right = x >> h, x & low
    for key in keys:
        f = right ^ key
        f ^= f >> np.uint32(16)
        f *= MIX0
        f ^= f >> np.uint32(13)
        f *= MIX1
        f ^= f >> np.uint32(16)
        left, right = right, left ^ (f & low)
    return (left << h) | right


def permute(x: np.ndarray, n: int, epoch: int, seed: int) -> np.ndarray:
    """The image of x (uint32, below n) under permutation number `epoch` of 0..n-1; n up to 2**31."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = _round_keys(epoch, seed)
    y = _feistel(x, half, keys)
    while (outside := y >= n).any():
        y = np.where(outside, _feistel(y, half, keys), y)
    return y


def rollout_serve(
    active: np.ndarray,
    length: np.ndarray,
    epoch: np.ndarray,
    position: np.ndarray,
    valid: np.ndarray,
    seed: int,
    index: np.ndarray,
) -> None:
    """index[m] = flat index (buffer * TM + t) * B + b into the [2, TM, B] arrays; `position` counts batches."""
    _, longest, backtests = valid.shape
    buffer = 1 - int(active[0])
    n, m = int(length[buffer]) * backtests, len(index)
    if (position[0] + 1) * m > n:
        epoch[0] += 1
        position[0] = 0
    start = int(position[0]) * m
    order = permute(np.arange(start, start + m, dtype=np.uint32), n, int(epoch[0]), seed)
    index[:] = order + np.uint32(buffer * longest * backtests)
    position[0] += 1


KERNEL = Kernel(
    "rollout_serve",
    (
        Arg("active", "int64", "in", "1", "buffer being filled; the other one is served"),
        Arg("length", "int32", "in", "2", "T of each buffer"),
        Arg("epoch", "int64", "inout", "1", "number of the permutation"),
        Arg("position", "int64", "inout", "1", "batches served of it"),
        Arg("valid", "int8", "in", "2,TM,B", "only its shape is read"),
        Arg("seed", "uint32", "scalar", doc="seed of the run"),
        Arg("index", "int32", "out", "M", "flat index into the [2, TM, B] arrays"),
    ),
    rollout_serve,
    launcher=one_block,
    tolerance=(0.0, 0.0, "integers"),
    constants={"PURPOSE_ROLLOUT": int(Purpose.ROLLOUT), "FEISTEL_ROUNDS": ROUNDS},
)
