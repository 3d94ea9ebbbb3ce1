"""`rmsnorm` of a last layer's input, and `window_tail` of its result, while the rows are at hand."""

from __future__ import annotations

from typing import Any

from kernels import window_tail
from kernels.rms import rms_forward
from kernels.spec import REAL, Arg, Kernel, warp_a_row


def reference(u: Any, weight: Any, eps: float, n: Any, rstd: Any, tail: Any, last: Any) -> None:
    rms_forward(u, weight, eps, n, rstd)
    window_tail.reference(n, tail, last)


KERNEL = Kernel(
    "rmsnorm_tail",
    args=(
        Arg("u", REAL, "in", "R,K,D"),
        Arg("weight", REAL, "in", "D"),
        Arg("eps", REAL, "scalar"),
        Arg("n", REAL, "out", "R,K,D", "normalised rows"),
        Arg("rstd", REAL, "out", "R,K", "1 / root mean square, kept for the backward pass"),
        Arg("tail", REAL, "out", "R,4,D", "the last four normalised rows"),
        Arg("last", REAL, "out", "R,D", "the last one"),
    ),
    reference=reference,
    launcher=warp_a_row("R", "K"),
    tolerance=(1e-6, 1e-5, "one mean of D squares in float32"),
)
