"""Adds the embedding's bias and normalises each row: the start of the residual stream.

n = u / sqrt(mean(u^2) + eps) * weight (RMSNorm, Zhang and Sennrich 2019, eq. 4; eps inside the root as in Mamba-2).
Stands between the embedding GEMM and the first layer's in_proj GEMM.
"""

from __future__ import annotations

from typing import Any

from kernels.rms import rms_forward
from kernels.spec import REAL, Arg, Kernel, warp_a_row


def reference(u: Any, bias: Any, weight: Any, eps: float, n: Any, rstd: Any) -> None:
    u += bias
    rms_forward(u, weight, eps, n, rstd)


KERNEL = Kernel(
    "bias_rmsnorm",
    args=(
        Arg("u", REAL, "inout", "R,K,D", "GEMM output; becomes the residual stream"),
        Arg("bias", REAL, "in", "D"),
        Arg("weight", REAL, "in", "D"),
        Arg("eps", REAL, "scalar"),
        Arg("n", REAL, "out", "R,K,D", "normalised rows"),
        Arg("rstd", REAL, "out", "R,K", "1 / root mean square, kept for the backward pass"),
    ),
    reference=reference,
    launcher=warp_a_row("R", "K"),
    tolerance=(1e-6, 1e-5, "one mean of D squares in float32"),
)
