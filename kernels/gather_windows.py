"""The encoder's input, gathered from the market by row number and normalised: replay stores rows, not observations.

x[r, k, first : first + F] = clip((features[rows[r] - K + 1 + k] - mean) / std, -10, 10), ts[r] = ts_gap[rows[r]].
The columns after these are 1, 0, 0, ...: the input of a bias, then padding. Those before keep their values.
Every row has K - 1 rows of its own session before it: environment and replay hold no others, so no check here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Kernel

CLIP = 10.0


def _reference(rows: Any, features: Any, mean: Any, std: Any, ts_gap: Any, first: int, x: Any, ts: Any) -> None:
    window = np.arange(1 - x.shape[1], 1, dtype=np.int32)
    last = first + features.shape[1]
    inside, after = x[..., first:last], x[..., last:]
    inside[...] = features[rows[:, None] + window]
    inside -= mean
    inside /= std
    np.maximum(inside, -CLIP, out=inside)
    np.minimum(inside, CLIP, out=inside)
    after[..., :1] = 1
    after[..., 1:] = 0
    ts[...] = ts_gap[rows]


KERNEL = Kernel(
    "gather_windows",
    args=(
        Arg("rows", "int32", "in", "R", "last row of each window"),
        Arg("features", "float32", "in", "N,F"),
        Arg("mean", "float32", "in", "F", "fitted on the train slice"),
        Arg("std", "float32", "in", "F", "above 0"),
        Arg("ts_gap", "float32", "in", "N", "log1p(gap to the row before / median gap)"),
        Arg("first", "int32", "scalar", doc="column of the first feature"),
        Arg("x", REAL, "inout", "R,K,Y", "Y >= first + F"),
        Arg("ts", REAL, "out", "R"),
    ),
    reference=_reference,
    launcher=lambda sizes, scalars: ((sizes["R"],), (128,), 0),
    tolerance=(1e-6, 1e-6, "one subtraction and one division"),
    constants={"CLIP": CLIP},
)
