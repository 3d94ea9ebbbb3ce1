"""Backward of `window_tail`: adds the tail's gradient to the last four rows of each window."""

from __future__ import annotations

from typing import Any

from kernels.spec import REAL, Arg, Kernel, grid_stride


def reference(dtail: Any, dn: Any) -> None:
    dn[:, -4:] += dtail.transpose(1, 0, 2)


KERNEL = Kernel(
    "window_tail_bwd",
    args=(Arg("dtail", REAL, "in", "4,R,D"), Arg("dn", REAL, "inout", "R,K,D")),
    reference=reference,
    launcher=grid_stride("R", "D"),
    tolerance=(1e-7, 1e-6, "one addition"),
)
