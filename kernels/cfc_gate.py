"""The CfC cell's time gate: h' = f1 (1 - s) + s f2, s = sigmoid(a ts + b), f = tanh (ncps, default mode).

Hasani et al., "Closed-form continuous-time neural networks", Nature Machine Intelligence 2022, eq. 2 and its code.
`maps` holds the four linear maps of the backbone's output in the order f1, f2, a, b. No gradient flows through time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec import REAL, Arg, Kernel, grid_stride


def reference(maps: Any, ts: Any, gates: Any, h: Any, head: Any) -> None:
    hidden = h.shape[1]
    f1, f2, s = gates[:, :hidden], gates[:, hidden : 2 * hidden], gates[:, 2 * hidden :]
    np.tanh(maps[:, : 2 * hidden], out=gates[:, : 2 * hidden])
    np.multiply(maps[:, 2 * hidden : 3 * hidden], ts[:, None], out=s)
    s += maps[:, 3 * hidden :]
    # sigmoid(x) = (1 + tanh(x / 2)) / 2: never overflows.
    s *= 0.5
    np.tanh(s, out=s)
    s *= 0.5
    s += 0.5
    np.subtract(f2, f1, out=h)
    h *= s
    h += f1
    head[:, :hidden] = h
    head[:, hidden] = 1
    head[:, hidden + 1 :] = 0


KERNEL = Kernel(
    "cfc_gate",
    args=(
        Arg("maps", REAL, "in", "R,M4", "M4 = 4 H"),
        Arg("ts", REAL, "in", "R", "elapsed time, log1p(gap / median gap)"),
        Arg("gates", REAL, "out", "R,G3", "G3 = 3 H: f1, f2, s, kept for the backward pass"),
        Arg("h", REAL, "out", "R,H"),
        Arg("head", REAL, "out", "R,H4", "H4 = H + 4: h, then 1, 0, 0, 0 for the heads' bias column"),
    ),
    reference=reference,
    launcher=grid_stride("R", "H4", each=4),
    tolerance=(1e-6, 1e-5, "three tanh in float32"),
)
