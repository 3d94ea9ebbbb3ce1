"""out[c] = sum over rows of x[n, c]: the second stage of every vector gradient. Fixed order, so reproducible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.spec import REAL, Arg, Grid, Kernel


def reference(x: Any, out: Any) -> None:
    x.sum(axis=0, out=out)


def _launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> tuple[Grid, Grid, int]:
    """1024 threads on 32 columns; on 8, the least that reads whole 32-byte sectors, where that fills a GPU better."""
    columns = 32 if sizes["C"] >= 4096 else 8
    return (-(-sizes["C"] // columns),), (columns, 1024 // columns), 0


KERNEL = Kernel(
    "column_sum",
    args=(Arg("x", REAL, "in", "N,C"), Arg("out", REAL, "out", "C")),
    reference=reference,
    launcher=_launcher,
    tolerance=(1e-5, 1e-4, "a sum of N cancelling float32 terms"),
)
