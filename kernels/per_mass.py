"""Raw priorities -> integer masses and their block sums: the first of two levels of proportional sampling.

mass = round((priority + 1e-6)^alpha * 2^20), at least 1, at most 2^28; 0 where the priority is negative. Masses are
a pure function of priorities and alpha, made anew at each step: that costs less than finding out what changed (alpha
moves now and then, M + B slots at every step), and nothing can drift. Integer sums come out the same in any order.
"""

from __future__ import annotations

import numpy as np

from kernels.isv import SIZE, SLOTS, cuda_constants
from kernels.spec import REAL, Arg, Kernel

EPSILON = 1e-6  # keeps a transition of zero loss drawable
SCALE = 2.0**20
MAX_MASS = 2**28  # exact in float32; 2^20 masses, and their squares / 2^16, sum to less than 2^63
BLOCK = 256
CUDA = {"PER_BLOCK": BLOCK, "PER_MAX_MASS": MAX_MASS, "PER_SCALE": f"{SCALE}f", "PER_EPSILON": f"{EPSILON}f"}


def per_mass(isv: np.ndarray, priority: np.ndarray, mass: np.ndarray, block: np.ndarray) -> None:
    """block[g] = sum of the masses, sum of (mass / 256)^2 rounded per mass, count of nonzero ones in 256 slots."""
    real = priority.dtype
    p = np.log(np.maximum(priority, 0) + np.asarray(EPSILON, real))
    p *= isv[SLOTS["per_alpha"]]
    np.exp(p, out=p)
    p *= np.asarray(SCALE, real)
    np.rint(p, out=p)
    np.minimum(p, np.asarray(MAX_MASS, real), out=p)
    np.maximum(p, np.asarray(1, real), out=p)
    drawable = priority >= 0
    np.multiply(p, drawable, out=mass, casting="unsafe")

    root = ((mass + np.int32(128)) >> np.int32(8)).astype(np.int64)
    root *= root
    starts = np.arange(0, len(mass), BLOCK)
    for column, values in enumerate((mass, root, drawable.astype(np.int32))):
        np.add.reduceat(values, starts, dtype=np.int64, out=block[:, column])


def n_blocks(capacity: int) -> int:
    return -(-capacity // BLOCK)


KERNEL = Kernel(
    "per_mass",
    (
        Arg("isv", REAL, "in", str(SIZE), "reads per_alpha"),
        Arg("priority", REAL, "in", "C", "raw priority; negative: never drawn"),
        Arg("mass", "int32", "out", "C", "fixed-point mass"),
        Arg("block", "int64", "out", "G,3", "sum, sum of squares / 2^16, count of each 256 slots"),
    ),
    per_mass,
    launcher=lambda sizes, scalars: ((min(sizes["G"], 65535),), (BLOCK,), 0),
    tolerance=(1.0, 1e-5, "log and exp round differently: a mass may differ by its last bits"),
    constants=cuda_constants() | CUDA,
)
