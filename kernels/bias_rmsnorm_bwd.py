"""Backward of `rmsnorm` and of the bias before it: gradient of the embedding's output, and two vectors' gradients.

`dres` is the gradient that reaches the last J rows of the residual stream by the skip connection (J = K between
layers, J = 1 below a last layer, of which only the last row is read).
"""

from __future__ import annotations

from typing import Any

from kernels.rms import PIECES_WIDTH, rms_backward, window_launcher
from kernels.spec import REAL, Arg, Kernel
from kernels.vectors import PAD, padded


def reference(dn: Any, dres: Any, u: Any, rstd: Any, weight: Any, du: Any, partial: Any) -> None:
    d = weight.shape[0]
    dweight = rms_backward(dn, u, rstd, weight, du)
    du[:, du.shape[1] - dres.shape[1] :] += dres
    partial.fill(0)
    partial[:, :d] = du.sum(axis=1)
    partial[:, padded(d) : padded(d) + d] = dweight.sum(axis=1)


KERNEL = Kernel(
    "bias_rmsnorm_bwd",
    args=(
        Arg("dn", REAL, "in", "R,K,D"),
        Arg("dres", REAL, "in", "R,J,D", "gradient of the last J rows through the skip connection"),
        Arg("u", REAL, "in", "R,K,D"),
        Arg("rstd", REAL, "in", "R,K"),
        Arg("weight", REAL, "in", "D"),
        Arg("du", REAL, "out", "R,K,D"),
        Arg("partial", REAL, "out", "R,V", "a window's bias and weight gradients, each padded to 64 with zeros"),
    ),
    reference=reference,
    launcher=window_launcher,
    constants={"PIECES_WIDTH": PIECES_WIDTH, "PAD": PAD},
    tolerance=(1e-6, 1e-4, "sums over K rows of cancelling terms"),
)
