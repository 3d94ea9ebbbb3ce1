"""The stem's rows over the root of their mean square: xs = rstd x~, rstd = 1 / sqrt(x~^T gram x~ / width + eps).

`gram` (stem_weights) makes this the norm of the residual stream We~ x~ without computing it; width is its D.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Grid, Kernel

WIDE = 64  # the width that the tensor cores take; others run the plain loop
MOST = 264  # blocks, two on each processor of an H200: each prepares gram for itself


def reference(x: Any, gram: Any, width: int, eps: float, xs: Any) -> None:
    rows = x[..., x.shape[2] - xs.shape[2] :]
    np.matmul(rows, gram, out=xs)
    xs *= rows
    square = xs.sum(axis=2)
    np.maximum(square, 0, out=square)  # rounding may leave less
    square /= width
    square += eps
    np.sqrt(square, out=square)
    np.divide(1, square, out=square)
    np.multiply(rows, square[..., None], out=xs)


def _launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    rows, whole = sizes["R"] * sizes["K"], sizes["Y"] % 4 == 0
    entry, each = ("stem_scale", 8 * 16) if sizes["X"] == WIDE and whole else ("stem_scale_any", 8)
    return [(entry, (min(-(-rows // each), MOST),), (256,), 0)]


KERNEL = Kernel(
    "stem_scale",
    args=(
        Arg("x", REAL, "in", "R,K,Y", "x~ in its last X columns"),
        Arg("gram", REAL, "in", "X,X", "symmetric"),
        Arg("width", "int32", "scalar"),
        Arg("eps", REAL, "scalar"),
        Arg("xs", REAL, "out", "R,K,X"),
    ),
    reference=reference,
    launcher=_launcher,
    tolerance=(1e-5, 1e-5, "a sum of X * X float32 products"),
)
