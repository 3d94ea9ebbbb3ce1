"""The stem's rows over the root of their mean square, times in_proj: xs = rstd x~, proj = xs folded^T, in one launch.

`stem_scale` and the product after it, for the sizes that `fits` tells. xs is as exact as float32; where `tf32` is set,
the factors of proj may be rounded to TF32, as those of `Device.gemm` are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels import stem_scale
from kernels.spec import REAL, Arg, Grid, Kernel

WIDE = 64  # most columns of x~ that the tensor cores take
THREADS, ROWS = 256, 64  # of a block; rows that it takes at a time
PROCESSORS = 132  # of an H200: a block each, which keeps its share of folded
COLUMNS = 16  # of proj, computed at a time by a warp
EACH = COLUMNS * WIDE * 4  # bytes of shared memory for as many rows of folded
FIXED = 36 * 32 * 16 + 2 * ROWS * WIDE * 4 + EACH // 4  # for gram, scaled rows of two steps, four more rows of folded


def reference(x: Any, gram: Any, folded: Any, width: int, eps: float, tf32: int, xs: Any, proj: Any) -> None:
    stem_scale.reference(x, gram, width, eps, xs)
    np.matmul(xs.reshape(-1, xs.shape[2]), folded.T, out=proj.reshape(-1, proj.shape[2]))


def fits(x: int, y: int, e: int) -> bool:
    """Whether it serves X, Y, E: a warp keeps whole rows in registers, and reads and writes 16 bytes at a time."""
    return x <= WIDE and x % 4 == y % 4 == e % 4 == 0


def _plan(sizes: Mapping[str, int], scalars: Mapping[str, Any], kib: int) -> list[tuple[str, Grid, Grid, int]]:
    """Blocks that get `kib` KiB of shared memory share folded's rows out so that it is enough."""
    e = sizes["E"]
    assert fits(sizes["X"], sizes["Y"], e), "take stem_scale and a product"
    columns = -(-(e // 4 + e // 4 % 2) // 4)  # in units of COLUMNS; odd rows may begin four earlier
    shares = -(-columns // (((kib << 10) - FIXED) // EACH))
    blocks = min(-(-sizes["R"] * sizes["K"] // ROWS), max(PROCESSORS // shares, 1))
    entry = "stem_project" if scalars["tf32"] else "stem_project_exact"
    return [(entry, (blocks, shares), (THREADS,), FIXED + -(-columns // shares) * EACH)]


def launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    return _plan(sizes, scalars, 227)


def general(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    """More and smaller shares, for cards whose blocks get less."""
    return _plan(sizes, scalars, 99)


KERNEL = Kernel(
    "stem_project",
    args=(
        Arg("x", REAL, "in", "R,K,Y", "x~ in its last X columns"),
        Arg("gram", REAL, "in", "X,X", "symmetric"),
        Arg("folded", REAL, "in", "E,X"),
        Arg("width", "int32", "scalar"),
        Arg("eps", REAL, "scalar"),
        Arg("tf32", "int32", "scalar", doc="1: the factors of proj may be rounded to TF32"),
        Arg("xs", REAL, "out", "R,K,X"),
        Arg("proj", REAL, "out", "R,K,E"),
    ),
    reference=reference,
    launcher=launcher,
    tolerance=(1e-5, 1e-5, "a sum of X * X float32 products, then one of X"),
    constants={"THREADS": THREADS, "ROWS": ROWS},
    general=general,
)
