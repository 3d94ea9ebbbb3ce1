"""Stratified proportional sampling from integer masses, with importance weights (Schaul et al. 2016, section 3.3-3.4).

The m-th of M draws falls into the m-th of M equal parts of the total mass. A drawn point belongs to the first slot
whose running sum exceeds it. Sums are integers, so a search over blocks, then inside one, finds the very same slot.
"""

from __future__ import annotations

import numpy as np

from kernels.isv import SIZE, SLOTS, cuda_constants
from kernels.per_mass import CUDA
from kernels.philox import Purpose, counter
from kernels.spec import REAL, Arg, Kernel

BETA_STEPS = 100_000  # beta reaches 1 here, however long the run is


def per_sample(
    isv: np.ndarray,
    step: np.ndarray,
    mass: np.ndarray,
    block: np.ndarray,
    seed: int,
    beta0: float,
    slots: np.ndarray,
    is_weight: np.ndarray,
) -> None:
    """w = (N P)^-beta / max w over the batch; beta goes from beta0 to 1. Reports per_beta and priority_ess."""
    m, real = len(slots), is_weight.dtype
    running = np.cumsum(mass, dtype=np.int64)
    total, squares, n = (int(x) for x in block.sum(axis=0))
    edges = np.arange(m + 1, dtype=np.int64) * total // m
    span = np.maximum(np.diff(edges), 1).astype(np.uint64)
    words = counter(step, np.arange(m, dtype=np.uint32), Purpose.REPLAY, seed)
    draw = (words[0].astype(np.uint64) << np.uint64(32)) | words[1]
    point = edges[:-1] + (draw % span).astype(np.int64)  # the bias of the remainder is below span / 2^64
    slots[:] = np.minimum(np.searchsorted(running, point, side="right"), len(mass) - 1)

    beta = beta0 + (1 - beta0) * min(int(step[0]) / BETA_STEPS, 1.0)
    share = np.maximum(mass[slots], 1).astype(real) * np.asarray(max(n, 1) / max(total, 1), real)  # N P
    weight = share ** np.asarray(-beta, real)
    is_weight[:] = weight / weight.max()
    isv[SLOTS["per_beta"]] = beta
    isv[SLOTS["priority_ess"]] = float(total) ** 2 / max(float(squares) * 65536.0 * n, 1.0)


KERNEL = Kernel(
    "per_sample",
    (
        Arg("isv", REAL, "inout", str(SIZE), "writes per_beta, priority_ess = (sum p)^2 / sum p^2 / N"),
        Arg("step", "int64", "in", "1", "clock of the run: word of the random counter, and the anneal of beta"),
        Arg("mass", "int32", "in", "C", "fixed-point mass"),
        Arg("block", "int64", "in", "G,3", "block sums from per_mass"),
        Arg("seed", "uint32", "scalar", doc="seed of the run"),
        Arg("beta0", REAL, "scalar", doc="initial importance exponent"),
        Arg("slots", "int32", "out", "M", "replay slot of each draw"),
        Arg("is_weight", REAL, "out", "M", "importance weight, largest 1"),
    ),
    per_sample,
    launcher=lambda sizes, scalars: ((min(-(-sizes["M"] // 8), 1024),), (256,), 0),  # a warp a draw
    tolerance=(1e-6, 1e-5, "float32 power; slots are exact"),
    constants=cuda_constants() | CUDA | {"PURPOSE_REPLAY": int(Purpose.REPLAY), "BETA_STEPS": BETA_STEPS},
)
