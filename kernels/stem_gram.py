"""Sums over the rows of row_dot xs xs^T, in P parts: what the stem's norm adds to the gradient of its weights.

row_dot is a row's gradient times value summed over what rstd scales (mamba2_mixer_bwd), so that the loss's gradient by
gram is -1 / (2 D) of the sum over all rows; column_sum adds the parts up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Grid, Kernel

WIDE = 64  # the width that fits the threads; others run the plain loop
ROWS = 56  # rows that a block has in shared memory at a time, twice
MOST = 132  # parts that fill an H200


def parts(windows: int) -> int:
    """P, for a caller who sums the parts up afterwards."""
    return min(windows, MOST)


def reference(xs: Any, row_dot: Any, partial: Any) -> None:
    """Part p has windows p R / P to (p + 1) R / P."""
    windows, _, x = xs.shape
    for p, out in enumerate(partial):
        share = slice(p * windows // len(partial), (p + 1) * windows // len(partial))
        rows = xs[share].reshape(-1, x)
        np.matmul((rows * row_dot[share].reshape(-1, 1)).T, rows, out=out.reshape(x, x))


def _launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    """Shared memory for two lots of rows and their weights: 28 KiB, which leave room for a product beside it."""
    if sizes["X"] != WIDE:
        return [("stem_gram_any", (sizes["P"],), (256,), 0)]
    return [("stem_gram", (sizes["P"],), (256,), 4 * 2 * ROWS * (WIDE + 1))]


KERNEL = Kernel(
    "stem_gram",
    args=(
        Arg("xs", REAL, "in", "R,K,X"),
        Arg("row_dot", REAL, "in", "R,K"),
        Arg("partial", REAL, "out", "P,Q", "Q = X * X"),
    ),
    reference=reference,
    launcher=_launcher,
    tolerance=(1e-5, 1e-4, "sums of float32 terms that cancel"),
    constants={"ROWS": ROWS},
)
