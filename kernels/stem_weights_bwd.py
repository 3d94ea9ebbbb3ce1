"""Backward of `stem_weights`: from the gradients of what it made to those of the weights that it made them of.

The gradient of diag(norm) We~ is in_proj^T dfolded. That of gram is -S / (2 D) (stem_gram), and gram = We~^T We~ is
symmetric, so We~ gets -We~ S / D through it; the rest comes back from `wide`. The gradient of in_proj itself is
dfolded (diag(norm) We~)^T, one product, which is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Grid, Kernel
from kernels.stem_weights import with_bias


def reference(
    in_proj: Any,
    norm: Any,
    embed: Any,
    bias: Any,
    dfolded: Any,
    dwide: Any,
    gram_sum: Any,
    dembed: Any,
    dbias: Any,
    dnorm: Any,
    dout_proj: Any,
) -> None:
    (d, features), x, inner = embed.shape, dfolded.shape[1], dout_proj.shape[1]
    stem = np.empty((d, x), embed.dtype)
    with_bias(embed, bias, stem)
    dstem = in_proj.T @ dfolded  # of diag(norm) We~ still
    np.einsum("dx,dx->d", dstem, stem, out=dnorm)
    dstem *= norm[:, None]
    dstem += dwide[:, inner:]
    stem /= d
    dstem -= stem @ gram_sum.reshape(x, x)
    dembed[...] = dstem[:, :features]
    dbias[...] = dstem[:, features]
    dout_proj[...] = dwide[:, :inner]


def _launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> tuple[Grid, Grid, int]:
    """A block for four rows, and one that copies four of dout_proj: 128 at the seed size. Each of the former reads all
    of dfolded out of L2, which more and smaller blocks would only do more often."""
    return (2 * -(-sizes["D"] // 4),), (512,), 0


KERNEL = Kernel(
    "stem_weights_bwd",
    args=(
        Arg("in_proj", REAL, "in", "E,D"),
        Arg("norm", REAL, "in", "D"),
        Arg("embed", REAL, "in", "D,F"),
        Arg("bias", REAL, "in", "D"),
        Arg("dfolded", REAL, "in", "E,X", "X > F, a multiple of 8"),
        Arg("dwide", REAL, "in", "D,Y"),
        Arg("gram_sum", REAL, "in", "Q", "S = sum over the rows of row_dot xs xs^T, [X, X]"),
        Arg("dembed", REAL, "out", "D,F"),
        Arg("dbias", REAL, "out", "D"),
        Arg("dnorm", REAL, "out", "D"),
        Arg("dout_proj", REAL, "out", "D,DI"),
    ),
    reference=reference,
    launcher=_launcher,
    tolerance=(1e-5, 1e-4, "sums of E float32 terms that cancel"),
)
