"""Backward of `lecun_tanh`, from its output: dv/du = slope (scale - v^2 / scale)."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.lecun_tanh import SCALE, SLOPE, cuda_constants
from kernels.spec import REAL, Arg, Kernel, grid_stride


def reference(dv: Any, v: Any, du: Any) -> None:
    units = du.shape[1]
    np.square(v[:, :units], out=du)
    du *= -SLOPE / SCALE
    du += SLOPE * SCALE
    du *= dv[:, :units]


KERNEL = Kernel(
    "lecun_tanh_bwd",
    args=(
        Arg("dv", REAL, "in", "R,U4", "the last four columns belong to constants and are not read"),
        Arg("v", REAL, "in", "R,U4"),
        Arg("du", REAL, "out", "R,U"),
    ),
    reference=reference,
    launcher=grid_stride("R", "U", each=4),
    constants=cuda_constants(),
    tolerance=(1e-6, 1e-5, "a difference near saturation"),
)
