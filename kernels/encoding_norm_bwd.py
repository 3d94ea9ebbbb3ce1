"""Backward of `encoding_norm`. The encoding's gradient is the head of each row of the CfC cell's input gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.rms import rms_backward
from kernels.spec import REAL, Arg, Kernel, warp_a_row


def reference(dcat: Any, res: Any, rstd: Any, weight: Any, dres: Any, partial: Any) -> None:
    np.copyto(partial, rms_backward(dcat[:, : weight.shape[0]], res, rstd, weight, dres[:, 0]))


KERNEL = Kernel(
    "encoding_norm_bwd",
    args=(
        Arg("dcat", REAL, "in", "R,X", "gradient of the cell's input; the first D columns are the encoding's"),
        Arg("res", REAL, "in", "R,D"),
        Arg("rstd", REAL, "in", "R"),
        Arg("weight", REAL, "in", "D"),
        Arg("dres", REAL, "out", "R,1,D", "gradient of the last row of the stream, and of the last layer's output"),
        Arg("partial", REAL, "out", "R,D", "a window's weight gradient"),
    ),
    reference=reference,
    launcher=warp_a_row("R"),
    tolerance=(1e-6, 1e-4, "cancelling terms"),
)
