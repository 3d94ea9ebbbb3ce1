"""The CfC backbone's activation 1.7159 tanh(0.666 u) (LeCun et al. 1998, section 4.4, with ncps' rounded 2/3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Kernel, grid_stride

SCALE, SLOPE = 1.7159, 0.666


def cuda_constants() -> dict[str, str]:
    return {"SCALE": f"{SCALE}f", "SLOPE": f"{SLOPE}f"}


def reference(u: Any, v: Any) -> None:
    units = u.shape[1]
    body = v[:, :units]
    np.multiply(u, SLOPE, out=body)
    np.tanh(body, out=body)
    body *= SCALE
    v[:, units] = 1
    v[:, units + 1 :] = 0


KERNEL = Kernel(
    "lecun_tanh",
    args=(
        Arg("u", REAL, "in", "R,U"),
        Arg("v", REAL, "out", "R,U4", "U4 = U + 4: activations, then 1, 0, 0, 0 for the bias column"),
    ),
    reference=reference,
    launcher=grid_stride("R", "U4", each=4),
    constants=cuda_constants(),
    tolerance=(1e-6, 1e-5, "one tanh in float32"),
)
