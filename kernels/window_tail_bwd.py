"""Backward of `window_tail`: adds the gradients of the tail and of the last row to the rows they were copied from."""

from __future__ import annotations

from typing import Any

from kernels.spec import REAL, Arg, Kernel, grid_stride


def reference(dtail: Any, dlast: Any, dn: Any) -> None:
    dn[:, -4:] += dtail
    dn[:, -1] += dlast


KERNEL = Kernel(
    "window_tail_bwd",
    args=(
        Arg("dtail", REAL, "in", "R,4,D"),
        Arg("dlast", REAL, "in", "R,D"),
        Arg("dn", REAL, "inout", "R,K,D"),
    ),
    reference=reference,
    launcher=grid_stride("R", "D"),
    tolerance=(1e-7, 1e-6, "two additions"),
)
