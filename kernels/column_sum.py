"""out[c] = sum over rows of x[n, c]: the second stage of every vector gradient. Fixed order, so reproducible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.spec import REAL, Arg, Grid, Kernel


def reference(x: Any, out: Any) -> None:
    x.sum(axis=0, out=out)


def _launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> tuple[Grid, Grid, int]:
    """512 threads on 16 columns, or on 8, the least that reads whole 32-byte sectors, as only more blocks fill a GPU.

    Four columns a thread where every row begins on 16 bytes, so that few blocks have enough bytes in flight.
    """
    columns = 16 if sizes["C"] >= 2048 else 8
    across = columns // 4 if sizes["C"] % 4 == 0 else columns
    return (-(-sizes["C"] // columns),), (across, 512 // across), 0


KERNEL = Kernel(
    "column_sum",
    args=(Arg("x", REAL, "in", "N,C"), Arg("out", REAL, "out", "C")),
    reference=reference,
    launcher=_launcher,
    tolerance=(1e-5, 1e-4, "a sum of N cancelling float32 terms"),
)
