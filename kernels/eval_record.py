"""One line of an evaluation's log: what every lane was and did in this step, at the cursor, which advances."""

from __future__ import annotations

from typing import Any

from kernels.spec import REAL, Arg, Kernel, one_block

RECORDED = (
    ("row", "int32"),
    ("valid", "int8"),
    ("done", "int8"),
    ("cash", "int64"),
    ("equity", "int64"),
    ("position", "int32"),
    ("target", "int32"),
    ("filled", "int32"),
    ("fee_paid", "int64"),
    ("spread_paid", "int64"),
    ("action_done", "int8"),
    ("ordered", "int8"),
    ("greedy", "int32"),
    ("q_greedy", "int32"),
    ("entropy_frac", REAL),
)


def _reference(cursor: Any, *arrays: Any) -> None:
    at = int(cursor[0])
    n = len(RECORDED)
    for value, logged in zip(arrays[:n], arrays[n:]):
        logged[at] = value
    cursor[0] = at + 1


KERNEL = Kernel(
    "eval_record",
    args=(
        Arg("cursor", "int64", "inout", "1", "lines written; the log has room for one more"),
        *(Arg(name, dtype, "in", "B") for name, dtype in RECORDED),
        *(Arg(f"log_{name}", dtype, "inout", "T,B", "line `cursor` is written") for name, dtype in RECORDED),
    ),
    reference=_reference,
    launcher=one_block,
    tolerance=(0.0, 0.0, "a copy"),
)
