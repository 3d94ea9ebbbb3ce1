"""Global norm of the gradient arena, by a sum of squares in two fixed levels: the same bits on every run."""

from __future__ import annotations

import numpy as np

from kernels.isv import SIZE, SLOTS, cuda_constants
from kernels.spec import REAL, Arg, Kernel

PARTS = 256  # first-level sums; one block each on CUDA


def sum_of_squares(x: np.ndarray, parts: np.ndarray) -> np.floating:
    """Sum of x^2 over x [S] through parts [PARTS]: part i sums the i-th run of ceil(S / PARTS) values."""
    run = -(-x.size // parts.size)
    whole = x.size // run
    square = x * x
    parts[:whole] = square[: whole * run].reshape(whole, run).sum(axis=1)
    parts[whole:] = 0
    if whole < parts.size:
        parts[whole] = square[whole * run :].sum()
    return parts.sum()


def grad_norm(grad: np.ndarray, parts: np.ndarray, norm: np.ndarray, isv: np.ndarray) -> None:
    """norm = sqrt(sum grad^2). A gradient that overflows or is not finite gives a norm that is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        norm[0] = np.sqrt(sum_of_squares(grad, parts))
    isv[SLOTS["grad_norm"]] = norm[0]


KERNEL = Kernel(
    "grad_norm",
    (
        Arg("grad", REAL, "in", "S", "gradient arena"),
        Arg("parts", REAL, "out", str(PARTS), "first-level sums"),
        Arg("norm", REAL, "out", "1", "Euclidean norm"),
        Arg("isv", REAL, "inout", str(SIZE), "writes grad_norm"),
    ),
    grad_norm,
    launcher=lambda sizes, scalars: [
        ("grad_norm", (PARTS,), (256,), 0),
        ("grad_norm_finish", (1,), (256,), 0),
    ],
    tolerance=(0.0, 1e-5, "float32 sums of S / 256 squares, then of 256 parts"),
    constants=cuda_constants() | {"PARTS": PARTS},
)
