"""The last four rows of each window, row-major by position: what C's convolution and the gate of the last row read.

tail[j, r] = n[r, K - 4 + j]; so `tail` as [4R, D] feeds the GEMM of C, and tail[3] the GEMM of z.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Kernel, grid_stride


def reference(n: Any, tail: Any) -> None:
    np.copyto(tail, n[:, -4:].transpose(1, 0, 2))


KERNEL = Kernel(
    "window_tail",
    args=(Arg("n", REAL, "in", "R,K,D"), Arg("tail", REAL, "out", "4,R,D")),
    reference=reference,
    launcher=grid_stride("R", "D"),
    tolerance=(0.0, 0.0, "a copy"),
)
