"""The recurrent state that the next step starts from: the one just computed, or zero where a new episode began."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Kernel, grid_stride


def _reference(h: Any, valid: Any, h_next: Any) -> None:
    np.multiply(h, (valid != 0)[:, None], out=h_next)


KERNEL = Kernel(
    "carry_hidden",
    args=(
        Arg("h", REAL, "in", "B,H", "state after the row that was acted on"),
        Arg("valid", "int8", "in", "B", "0: the step was a reset, or the lane is parked"),
        Arg("h_next", REAL, "out", "B,H"),
    ),
    reference=_reference,
    launcher=grid_stride("B", "H"),
    tolerance=(0.0, 0.0, "a copy"),
)
