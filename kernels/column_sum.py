"""out[c] = sum over rows of x[n, c]: the second stage of every vector gradient. Fixed order, so reproducible."""

from __future__ import annotations

from typing import Any

from kernels.spec import REAL, Arg, Kernel


def reference(x: Any, out: Any) -> None:
    x.sum(axis=0, out=out)


KERNEL = Kernel(
    "column_sum",
    args=(Arg("x", REAL, "in", "N,C"), Arg("out", REAL, "out", "C")),
    reference=reference,
    tolerance=(1e-5, 1e-4, "a sum of N cancelling float32 terms"),
)
