"""Weights of the stem: embedding, first norm and first in_proj of an encoder as one product over the raw features.

With x~ = [x | 1 | 0 ...], X columns, and We~ = [We | b | 0], [D, X], the residual stream begins as We~ x~. So
in_proj(norm(We~ x~)) = folded (rstd x~), folded = in_proj diag(norm) We~; the mean square that rstd is made of is
x~^T gram x~ / D, gram = We~^T We~; and what the first mixer's output y and the stream become, W_out y + We~ x~, is
wide [y | x~]. Once a step these few numbers, instead of two products and a norm for every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Grid, Kernel

ROWS, COLUMNS, DEPTH = 20, 32, 32  # a block's tile, and the terms that a warp adds at a time
COPIED = 4  # rows that a block copies


def stem_columns(features: int) -> int:
    """X: the features and a 1, rounded up to a multiple of 8."""
    return (features + 8) // 8 * 8


def with_bias(embed: Any, bias: Any, out: Any) -> None:
    """out [D, X] = We~ = [embed | bias | 0]."""
    features = embed.shape[1]
    out[:, :features] = embed
    out[:, features] = bias
    out[:, features + 1 :] = 0


def reference(
    in_proj: Any, norm: Any, embed: Any, bias: Any, out_proj: Any, folded: Any, scaled: Any, wide: Any, gram: Any
) -> None:
    inner = out_proj.shape[1]
    stem = wide[:, inner:]
    wide[:, :inner] = out_proj
    with_bias(embed, bias, stem)
    np.multiply(stem, norm[:, None], out=scaled)
    np.matmul(in_proj, scaled, out=folded)
    np.matmul(stem.T, stem, out=gram)


def _launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> tuple[Grid, Grid, int]:
    """116 tiles of `folded` at the seed size, 8 of `gram` and 64 blocks that copy: all of them at once on an H200."""
    tiles = (-(-sizes["E"] // ROWS) + -(-sizes["X"] // ROWS)) * -(-sizes["X"] // COLUMNS)
    floats = 8 * (ROWS * (DEPTH + 4) + DEPTH * COLUMNS)
    return (tiles + -(-sizes["D"] // COPIED),), (256,), 4 * floats


KERNEL = Kernel(
    "stem_weights",
    args=(
        Arg("in_proj", REAL, "in", "E,D", "of the first layer"),
        Arg("norm", REAL, "in", "D", "weight of the first layer's norm"),
        Arg("embed", REAL, "in", "D,F"),
        Arg("bias", REAL, "in", "D"),
        Arg("out_proj", REAL, "in", "D,DI", "of the first layer"),
        Arg("folded", REAL, "out", "E,X", "X > F, a multiple of 8"),
        Arg("scaled", REAL, "out", "D,X", "diag(norm) We~"),
        Arg("wide", REAL, "out", "D,Y", "[out_proj | We~]"),
        Arg("gram", REAL, "out", "X,X"),
    ),
    reference=reference,
    launcher=_launcher,
    tolerance=(1e-5, 1e-5, "sums of D float32 products"),
    constants={"ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": DEPTH, "COPIED": COPIED},
)
