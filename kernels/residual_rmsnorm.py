"""Adds a layer's output to the residual stream and normalises for the next layer (RMSNorm as in `rmsnorm`).

Of the stream the last J rows are kept: a backward pass needs all (J = K), else what is above a last layer needs one.
"""

from __future__ import annotations

from typing import Any

from kernels.rms import rms_forward
from kernels.spec import REAL, Arg, Kernel, warp_a_row


def reference(base: Any, delta: Any, weight: Any, eps: float, res: Any, n: Any, rstd: Any) -> None:
    u = base + delta
    rms_forward(u, weight, eps, n, rstd)
    res[...] = u[:, u.shape[1] - res.shape[1] :]


KERNEL = Kernel(
    "residual_rmsnorm",
    args=(
        Arg("base", REAL, "in", "R,K,D", "residual stream below the layer"),
        Arg("delta", REAL, "in", "R,K,D", "the layer's output"),
        Arg("weight", REAL, "in", "D"),
        Arg("eps", REAL, "scalar"),
        Arg("res", REAL, "out", "R,J,D", "last J rows of the residual stream above the layer"),
        Arg("n", REAL, "out", "R,K,D"),
        Arg("rstd", REAL, "out", "R,K"),
    ),
    reference=reference,
    launcher=warp_a_row("R", "K"),
    tolerance=(1e-6, 1e-5, "one mean of D squares in float32"),
)
