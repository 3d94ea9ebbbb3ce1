"""The encodings of the rows that evaluation lanes stand on, out of the table of a window, with their time gaps."""

from __future__ import annotations

from typing import Any

from kernels.spec import REAL, Arg, Kernel, grid_stride


def _reference(row: Any, table: Any, ts_gap: Any, base: int, enc: Any, ts: Any) -> None:
    enc[...] = table[row - base]
    ts[...] = ts_gap[row]


KERNEL = Kernel(
    "gather_encodings",
    args=(
        Arg("row", "int32", "in", "B", "market row of each lane, base to base + V - 1"),
        Arg("table", REAL, "in", "V,D"),
        Arg("ts_gap", "float32", "in", "N", "log1p(gap to the row before / median gap)"),
        Arg("base", "int32", "scalar", doc="market row of the table's first row"),
        Arg("enc", REAL, "out", "B,D"),
        Arg("ts", REAL, "out", "B"),
    ),
    reference=_reference,
    launcher=grid_stride("B", "D", each=4),
    tolerance=(0.0, 0.0, "a copy"),
)
