"""Backward of `residual_rmsnorm`: gradient of the residual stream, and each window's part of the weight gradient.

The same gradient goes to both addends, the layer's output and the stream below it.
"""

from __future__ import annotations

from typing import Any

from kernels.rms import PIECES_WIDTH, rms_backward, window_launcher
from kernels.spec import REAL, Arg, Kernel


def reference(dn: Any, dres: Any, res: Any, rstd: Any, weight: Any, du: Any, partial: Any) -> None:
    dweight = rms_backward(dn, res, rstd, weight, du)
    du[:, du.shape[1] - dres.shape[1] :] += dres
    dweight.sum(axis=1, out=partial)


KERNEL = Kernel(
    "residual_rmsnorm_bwd",
    args=(
        Arg("dn", REAL, "in", "R,K,D"),
        Arg("dres", REAL, "in", "R,J,D", "gradient of the last J rows through the skip connection"),
        Arg("res", REAL, "in", "R,K,D"),
        Arg("rstd", REAL, "in", "R,K"),
        Arg("weight", REAL, "in", "D"),
        Arg("du", REAL, "out", "R,K,D"),
        Arg("partial", REAL, "out", "R,D", "a window's weight gradient"),
    ),
    reference=reference,
    launcher=window_launcher,
    constants={"PIECES_WIDTH": PIECES_WIDTH},
    tolerance=(1e-6, 1e-4, "sums over K rows of cancelling terms"),
)
