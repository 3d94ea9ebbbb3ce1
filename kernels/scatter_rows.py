"""Encodings of a chunk of rows into the table of a whole window: table[index[r]] = rows[r]; equal indices agree."""

from __future__ import annotations

from typing import Any

from kernels.spec import REAL, Arg, Kernel, grid_stride


def _reference(rows: Any, index: Any, table: Any) -> None:
    table[index] = rows


KERNEL = Kernel(
    "scatter_rows",
    args=(
        Arg("rows", REAL, "in", "R,D"),
        Arg("index", "int32", "in", "R", "row of the table"),
        Arg("table", REAL, "inout", "V,D"),
    ),
    reference=_reference,
    launcher=grid_stride("R", "D", each=4),
    tolerance=(0.0, 0.0, "a copy"),
)
