"""Mamba-2 mixer over all rows of a window: conv, SiLU, softplus, SSD in its dual form, D skip, gated norm.

One window is one SSD chunk (K <= 64): Y = (L o C B^T) (dt x) + D x with L[t, k] = exp(sum_{k < j <= t} a_j) for k <= t,
a = -exp(A_log) dt. The segment sums are masked cumulative sums, so no large prefixes cancel. Source: `mixer_parts`.
y may have columns behind the mixer's own, which keep their values: what else the product after it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.mamba2_last import heads_first
from kernels.mixer_parts import PARAMETERS, conv_silu, gated_norm, softplus
from kernels.spec import REAL, Arg, Grid, Kernel

INPUTS = (
    Arg("zcbxdt", REAL, "in", "R,K,E", "in_proj rows z, C, B, x, dt; E = 2 DI + 2 N + HD"),
    *PARAMETERS,
    Arg("tf32", "int32", "scalar", doc="1: factors of the products over rows, states and heads may be rounded to TF32"),
)


def segment_decay(dt: Any, a_log: Any) -> Any:
    """L [R, HD, K(t), K(k)] = exp(sum_{k < j <= t} a_j) for k <= t, else 0. dt [R, K, HD]."""
    k = dt.shape[1]
    a = (dt * -np.exp(a_log)).transpose(0, 2, 1)  # [R, HD, K]
    decay = np.tril(np.broadcast_to(a[..., None], (*a.shape, k)), -1)  # row j: a_j for k < j
    np.cumsum(decay, axis=2, out=decay)
    np.exp(decay, out=decay)
    return np.tril(decay)


def reference(
    zcbxdt: Any,
    conv_weight: Any,
    conv_bias: Any,
    dt_bias: Any,
    a_log: Any,
    d_skip: Any,
    norm_weight: Any,
    eps: float,
    tf32: int,
    y: Any,
) -> None:
    inner, channels, heads = norm_weight.shape[0], conv_bias.shape[0], dt_bias.shape[0]
    n = (channels - inner) // 2
    cbx, _ = conv_silu(zcbxdt[..., inner : inner + channels], conv_weight, conv_bias)
    dt = softplus(zcbxdt[..., inner + channels :] + dt_bias)
    decay = segment_decay(dt, a_log)
    decay *= np.matmul(cbx[..., :n], cbx[..., n : 2 * n].transpose(0, 2, 1))[:, None]
    decay *= dt.transpose(0, 2, 1)[:, :, None]  # [R, HD, K, K]: the masked matrix times dt
    out = mixed_rows(decay, cbx[..., 2 * n :], d_skip, heads)
    gated_norm(out, zcbxdt[..., :inner], norm_weight, eps, y[..., :inner])


def mixed_rows(matrix: Any, x: Any, d_skip: Any, heads: int) -> Any:
    """matrix x + D x, [R, K, DI]. matrix [R, HD, K, K], x [R, K, DI]."""
    out = np.empty_like(x, order="C")
    xh, oh = heads_first(x, heads), heads_first(out, heads)
    np.multiply(xh, d_skip[:, None, None], out=oh)
    oh += np.matmul(matrix, xh)
    return out


def window_shape(sizes: Mapping[str, int]) -> bool:
    """Whether the kernels for windows of 32 rows, states and heads of 64 (mamba2_window.cuh) serve these sizes."""
    di, heads = sizes["DI"], sizes["HD"]
    return sizes["K"] == 32 and di == 64 * heads and sizes["CH"] == di + 128 and heads <= 8 and sizes["E"] % 4 == 0


def any_shared(sizes: Mapping[str, int]) -> int:
    """Bytes of struct AnyWindow in mamba2_any.cuh."""
    k, p, n = sizes["K"], sizes["DI"] // sizes["HD"], (sizes["CH"] - sizes["DI"]) // 2
    return 8 * k + 4 * (2 * k * n + 2 * k * k + k * p + k)


def general(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    """A block a window, head by head."""
    return [("mamba2_mixer_any", (sizes["R"],), (256,), any_shared(sizes))]


def launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    """A block a window, a warp a head. 91.5 KiB of shared memory at the seed size, 57.5 at the small one: on an H200
    a multiprocessor has room for two such blocks and for three."""
    if not window_shape(sizes) or sizes["Y"] % 2:  # it writes two columns at a time
        return general(sizes, scalars)
    heads = sizes["HD"]
    floats = 32 * (sizes["DI"] + 8 + 2 * 72 + 36) + heads * 4 * 32
    entry = "mamba2_mixer" if scalars["tf32"] else "mamba2_mixer_exact"
    return [(entry, (sizes["R"],), (32 * heads,), 4 * floats)]


KERNEL = Kernel(
    "mamba2_mixer",
    args=(*INPUTS, Arg("y", REAL, "inout", "R,K,Y", "input of out_proj in columns :DI, the others kept")),
    reference=reference,
    launcher=launcher,
    general=general,
    tolerance=(2e-6, 2e-5, "sums over K rows and N states, then a norm"),
)
