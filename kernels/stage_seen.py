"""What a step acts on, kept before the environment moves: for the network that acts, and for what is written later.

One launch for four small arrays: as copies of their own, each would be a node of the graph with a start of its own.
"""

from __future__ import annotations

from typing import Any

from kernels.spec import REAL, Arg, Kernel


def _reference(
    row: Any,
    mask: Any,
    private: Any,
    h: Any,
    to_row: Any,
    to_mask: Any,
    to_private: Any,
    to_h_prev: Any,
) -> None:
    to_row[:] = row
    to_mask[:] = mask
    to_private[:] = private
    to_h_prev[:] = h


KERNEL = Kernel(
    "stage_seen",
    args=(
        Arg("row", "int32", "in", "B", "market row seen"),
        Arg("mask", "uint8", "in", "B,A", "valid actions"),
        Arg("private", REAL, "in", "B,P", "private state values at that row"),
        Arg("h", REAL, "in", "B,H", "recurrent state before that row"),
        Arg("to_row", "int32", "out", "B"),
        Arg("to_mask", "uint8", "out", "B,A"),
        Arg("to_private", REAL, "out", "B,P"),
        Arg("to_h_prev", REAL, "out", "B,H"),
    ),
    reference=_reference,
    launcher=lambda sizes, scalars: ((min(max(-(-sizes["B"] * sizes["H"] // 1024), 1), 4096),), (256,), 0),
    tolerance=(0.0, 0.0, "copies"),
)
