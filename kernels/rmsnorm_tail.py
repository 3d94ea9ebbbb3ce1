"""`rmsnorm` of a last layer's input, and `window_tail` of its result, while the rows are at hand."""

from __future__ import annotations

from typing import Any

from kernels import rmsnorm, window_tail
from kernels.rms import rms_forward
from kernels.spec import Kernel


def reference(u: Any, weight: Any, eps: float, n: Any, rstd: Any, tail: Any, last: Any) -> None:
    rms_forward(u, weight, eps, n, rstd)
    window_tail.reference(n, tail, last)


KERNEL = Kernel(
    "rmsnorm_tail",
    args=(*rmsnorm.KERNEL.args, *window_tail.KERNEL.args[1:]),
    reference=reference,
    launcher=rmsnorm.KERNEL.launcher,
    tolerance=rmsnorm.KERNEL.tolerance,
)
