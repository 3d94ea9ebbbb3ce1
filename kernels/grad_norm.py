"""Global norm of the gradient arena, by a sum of squares in two fixed levels: the same bits on every run."""

from __future__ import annotations

import numpy as np

from kernels.isv import SIZE, SLOTS, cuda_constants
from kernels.spec import REAL, Arg, Kernel

PARTS = 256  # first-level sums at most
MIN_RUN = 256  # values of one first-level sum at least


def sum_of_squares(x: np.ndarray, parts: np.ndarray) -> np.floating:
    """Sum of x^2 over x [S]; parts [PARTS] take the sums of runs of max(MIN_RUN, ceil(S / PARTS)), the rest 0."""
    run = max(MIN_RUN, -(-x.size // PARTS))
    whole = x.size // run
    rows = x[: whole * run].reshape(whole, run)
    tail = x[whole * run :]
    np.vecdot(rows, rows, out=parts[:whole])
    parts[whole:] = 0
    if tail.size:
        parts[whole] = np.vecdot(tail, tail)
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
    launcher=lambda sizes, scalars: ((PARTS,), (256,), 0),
    tolerance=(0.0, 1e-5, "float32 sums of a run of squares, then of at most 256 runs"),
    constants=cuda_constants() | {"PARTS": PARTS, "MIN_RUN": MIN_RUN},
)
