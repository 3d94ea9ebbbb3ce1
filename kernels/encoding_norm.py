"""The end of the encoder: last row of the residual stream plus the last layer's output, normalised.

The last layer computes one row a window (see `mamba2_last`), so `delta` has no row axis.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.rms import rms_forward
from kernels.spec import REAL, Arg, Kernel, warp_a_row


def reference(base: Any, delta: Any, weight: Any, eps: float, res: Any, enc: Any, rstd: Any) -> None:
    np.add(base[:, -1], delta, out=res)
    rms_forward(res, weight, eps, enc, rstd)


KERNEL = Kernel(
    "encoding_norm",
    args=(
        Arg("base", REAL, "in", "R,J,D", "residual stream below the last layer; its last row counts"),
        Arg("delta", REAL, "in", "R,D", "the last layer's output"),
        Arg("weight", REAL, "in", "D"),
        Arg("eps", REAL, "scalar"),
        Arg("res", REAL, "out", "R,D"),
        Arg("enc", REAL, "out", "R,D"),
        Arg("rstd", REAL, "out", "R"),
    ),
    reference=reference,
    launcher=warp_a_row("R"),
    tolerance=(1e-6, 1e-5, "one mean of D squares in float32"),
)
