"""The encoder's input, gathered from the market by row number and normalised: replay stores rows, not observations.

x[r, k] = clip((features[rows[r] - K + 1 + k] - mean) / std, -10, 10), ts[r] = ts_gap[rows[r]].
Every row has K - 1 rows of its own session before it: environment and replay hold no others, so no check here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Kernel

CLIP = 10.0


def _reference(rows: Any, features: Any, mean: Any, std: Any, ts_gap: Any, x: Any, ts: Any) -> None:
    window = np.arange(1 - x.shape[1], 1, dtype=np.int32)
    x[...] = features[rows[:, None] + window]
    x -= mean
    x /= std
    np.maximum(x, -CLIP, out=x)
    np.minimum(x, CLIP, out=x)
    ts[...] = ts_gap[rows]


KERNEL = Kernel(
    "gather_windows",
    args=(
        Arg("rows", "int32", "in", "R", "last row of each window"),
        Arg("features", "float32", "in", "N,F"),
        Arg("mean", "float32", "in", "F", "fitted on the train slice"),
        Arg("std", "float32", "in", "F", "above 0"),
        Arg("ts_gap", "float32", "in", "N", "log1p(gap to the row before / median gap)"),
        Arg("x", REAL, "out", "R,K,F"),
        Arg("ts", REAL, "out", "R"),
    ),
    reference=_reference,
    launcher=lambda sizes, scalars: ((sizes["R"],), (128,), 0),
    tolerance=(1e-6, 1e-6, "one subtraction and one division"),
    constants={"CLIP": CLIP},
)
