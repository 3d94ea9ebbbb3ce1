"""Backward of `cfc_gate`, to the four maps only: h_prev and ts are data.

df1 = dh (1 - s)(1 - f1^2), df2 = dh s (1 - f2^2), db = dh (f2 - f1) s (1 - s), da = db ts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Kernel, grid_stride


def reference(dhead: Any, gates: Any, ts: Any, dmaps: Any) -> None:
    hidden = gates.shape[1] // 3
    dh = dhead[:, :hidden]
    f1, f2, s = gates[:, :hidden], gates[:, hidden : 2 * hidden], gates[:, 2 * hidden :]
    df, da, db = dmaps[:, : 2 * hidden], dmaps[:, 2 * hidden : 3 * hidden], dmaps[:, 3 * hidden :]
    through2 = dh * s
    through1 = dh - through2
    np.square(gates[:, : 2 * hidden], out=df)
    np.subtract(1, df, out=df)
    df[:, :hidden] *= through1
    df[:, hidden:] *= through2
    np.subtract(f2, f1, out=db)
    db *= s
    db *= through1
    np.multiply(db, ts[:, None], out=da)


KERNEL = Kernel(
    "cfc_gate_bwd",
    args=(
        Arg("dhead", REAL, "in", "R,H4", "the last four columns belong to constants and are not read"),
        Arg("gates", REAL, "in", "R,G3"),
        Arg("ts", REAL, "in", "R"),
        Arg("dmaps", REAL, "out", "R,M4"),
    ),
    reference=reference,
    launcher=grid_stride("R", "H4", each=4),
    tolerance=(1e-6, 1e-5, "products of differences near saturation"),
)
