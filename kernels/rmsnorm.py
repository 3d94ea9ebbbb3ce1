"""Normalises each row of the embedding: n = u / sqrt(mean(u^2) + eps) * weight.

RMSNorm, Zhang and Sennrich 2019, eq. 4; eps inside the root as in Mamba-2. Stands between the embedding GEMM, whose
output is the start of the residual stream, and the first layer's in_proj GEMM.
"""

from __future__ import annotations

from kernels.rms import rms_forward
from kernels.spec import REAL, Arg, Kernel, warp_a_row

KERNEL = Kernel(
    "rmsnorm",
    args=(
        Arg("u", REAL, "in", "R,K,D"),
        Arg("weight", REAL, "in", "D"),
        Arg("eps", REAL, "scalar"),
        Arg("n", REAL, "out", "R,K,D", "normalised rows"),
        Arg("rstd", REAL, "out", "R,K", "1 / root mean square, kept for the backward pass"),
    ),
    reference=rms_forward,
    launcher=warp_a_row("R", "K"),
    tolerance=(1e-6, 1e-5, "one mean of D squares in float32"),
)
