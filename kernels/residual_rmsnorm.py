"""Adds a layer's output to the residual stream and normalises for the next layer (RMSNorm as in `bias_rmsnorm`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.rms import rms_forward
from kernels.spec import REAL, Arg, Kernel, warp_a_row


def reference(base: Any, delta: Any, weight: Any, eps: float, res: Any, n: Any, rstd: Any) -> None:
    np.add(base, delta, out=res)
    rms_forward(res, weight, eps, n, rstd)


KERNEL = Kernel(
    "residual_rmsnorm",
    args=(
        Arg("base", REAL, "in", "R,K,D", "residual stream below the layer"),
        Arg("delta", REAL, "in", "R,K,D", "the layer's output"),
        Arg("weight", REAL, "in", "D"),
        Arg("eps", REAL, "scalar"),
        Arg("res", REAL, "out", "R,K,D", "residual stream above the layer"),
        Arg("n", REAL, "out", "R,K,D"),
        Arg("rstd", REAL, "out", "R,K"),
    ),
    reference=reference,
    launcher=warp_a_row("R", "K"),
    tolerance=(1e-6, 1e-5, "one mean of D squares in float32"),
)
