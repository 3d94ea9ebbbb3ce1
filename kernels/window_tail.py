"""The last four rows of each window, which C's convolution reads, and the last one of them, which the gate reads.

tail[r, j] = n[r, K - 4 + j]; so `tail` as [4R, D] feeds the GEMM of C, and `last` = tail[:, 3] the GEMM of z. Windows
come first, so that a run of windows is a run of memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Kernel, grid_stride


def reference(n: Any, tail: Any, last: Any) -> None:
    np.copyto(tail, n[:, -4:])
    np.copyto(last, n[:, -1])


KERNEL = Kernel(
    "window_tail",
    args=(
        Arg("n", REAL, "in", "R,K,D"),
        Arg("tail", REAL, "out", "R,4,D", "oldest row first"),
        Arg("last", REAL, "out", "R,D"),
    ),
    reference=reference,
    launcher=grid_stride("R", "D"),
    tolerance=(0.0, 0.0, "a copy"),
)
