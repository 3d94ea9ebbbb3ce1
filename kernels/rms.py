"""RMSNorm over the last axis, forward and backward: the NumPy part that the normalising references share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.spec import Grid

PIECES_WIDTH = 256  # widest row that a backward warp keeps in registers (rms_bwd.cuh)


def window_launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> tuple[Grid, Grid, int]:
    """A block a window, for the backward kernels; shared memory for one row of sums a warp, or one mean a row."""
    k, d, warps = sizes["K"], sizes["D"], 8
    floats = warps * d if d % 4 == 0 and d <= PIECES_WIDTH else k
    return (sizes["R"],), (32 * warps,), 4 * floats


def rms_forward(u: Any, weight: Any, eps: float, n: Any, rstd: Any) -> None:
    """n = u * rstd * weight, rstd = 1 / sqrt(mean(u^2) + eps). u, n [..., D]; rstd [...]; weight [D]."""
    mean = np.matmul(u[..., None, :], u[..., :, None])[..., 0, 0]
    mean /= u.shape[-1]
    mean += eps
    np.sqrt(mean, out=mean)
    np.divide(1, mean, out=rstd)
    np.multiply(u, rstd[..., None], out=n)
    n *= weight


def rms_backward(dn: Any, u: Any, rstd: Any, weight: Any, du: Any) -> Any:
    """Writes du [..., D] and returns dn * u * rstd [..., D], whose sum over the rows is the weight's gradient.

    With v = u rstd: du = rstd (dn weight - v mean(dn weight v)), because d rstd / du_i = -rstd^3 u_i / D.
    """
    v = u * rstd[..., None]
    dweight = dn * v
    mean = np.matmul(dweight, weight)  # [...]
    mean /= -u.shape[-1]
    np.multiply(dn, weight, out=du)
    v *= mean[..., None]
    du += v
    du *= rstd[..., None]
    return dweight
