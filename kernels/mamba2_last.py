"""Mamba-2 mixer of the last layer, for the last row of each window: conv, SiLU, softplus, SSD, D skip, gated norm.

Only the last row of the encoder is read, so B, x and dt are needed on all rows, C's convolution on the last four, and z
and everything after the SSD on one. The dual form then has one row of the masked matrix:

y = sum_k exp(sum_{j > k} a_j) dt_k (C . B_k) x_k + D x_K,  a = -exp(A_log) dt,  dt = softplus(raw + dt_bias).

The sums of a are cumulative from the last row backwards, so nothing cancels. Source: see `mixer_parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.mixer_parts import PARAMETERS, conv_silu, gated_norm, sigmoid, softplus
from kernels.spec import REAL, Arg, Grid, Kernel

INPUTS = (
    Arg("bxdt", REAL, "in", "R,K,E", "in_proj rows B, x, dt; E = N + DI + HD"),
    Arg("c", REAL, "in", "R,4,N", "in_proj rows C of the last four rows, oldest first"),
    Arg("z", REAL, "in", "R,DI", "gate of the last row"),
    *PARAMETERS,
)


def tail_conv(c: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """The convolution of C at the last row: SiLU(pre) and sigmoid(pre), [R, N]."""
    pre = c[:, 0] * weight[0]
    for j in (1, 2, 3):
        pre += c[:, j] * weight[j]
    pre += bias
    gate = sigmoid(pre)
    pre *= gate
    return pre, gate


def decay_to_last(dt: Any, a_log: Any) -> Any:
    """exp(sum_{j > k} a_j) [R, K, HD]: what is left of row k's state at the last row."""
    log_decay = np.zeros_like(dt)
    np.cumsum(dt[:, :0:-1], axis=1, out=log_decay[:, -2::-1])
    log_decay *= -np.exp(a_log)
    return np.exp(log_decay, out=log_decay)


def heads_first(x: Any, heads: int) -> Any:
    """[R, K, DI] as a view [R, HD, K, P]."""
    r, k, inner = x.shape
    return x.reshape(r, k, heads, inner // heads).transpose(0, 2, 1, 3)


def reference(
    bxdt: Any,
    c: Any,
    z: Any,
    conv_weight: Any,
    conv_bias: Any,
    dt_bias: Any,
    a_log: Any,
    d_skip: Any,
    norm_weight: Any,
    eps: float,
    y: Any,
) -> None:
    n, heads, inner = c.shape[2], dt_bias.shape[0], z.shape[1]
    bx, _ = conv_silu(bxdt[..., : n + inner], conv_weight[:, n:], conv_bias[n:])
    cs, _ = tail_conv(c, conv_weight[:, :n], conv_bias[:n])
    dt = softplus(bxdt[..., n + inner :] + dt_bias)
    weights = decay_to_last(dt, a_log)
    weights *= dt
    weights *= np.matmul(bx[..., :n], cs[:, :, None])  # [R, K, HD]
    out = last_output(weights, bx[..., n:], d_skip, heads)
    gated_norm(out, z, norm_weight, eps, y)


def last_output(weights: Any, x: Any, d_skip: Any, heads: int) -> Any:
    """sum_k weights_k x_k + D x_K, [R, DI]. weights [R, K, HD], x [R, K, DI]."""
    xh = heads_first(x, heads)
    out = np.matmul(weights.transpose(0, 2, 1)[:, :, None], xh)[:, :, 0]  # [R, HD, P]
    out += xh[:, :, -1] * d_skip[:, None]
    return out.reshape(x.shape[0], -1)


def last_shape(sizes: Mapping[str, int]) -> bool:
    """Whether the kernels for windows of 32 rows, states and heads of 64 (struct LastWindow) serve these sizes."""
    k, n, di, heads = (sizes[letter] for letter in ("K", "N", "DI", "HD"))
    return (k, n) == (32, 64) and di == 64 * heads and heads in (4, 8)


def window_shared(sizes: Mapping[str, int], room: int) -> int:
    """Bytes of struct LastWindow in mamba2_last.cuh with `room` rows of x."""
    heads = sizes["HD"]
    return 4 * (64 * (room * heads + 32) + 4 * 64 + 32 * heads + 32 + 64 + 2 * heads)


def any_floats(sizes: Mapping[str, int]) -> int:
    """Floats of struct LastRow in mamba2_last.cuh."""
    return sizes["N"] + sizes["K"] + 3 * sizes["K"] * sizes["HD"] + sizes["DI"] + 64


def general(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    """A block a window, a warp a head."""
    return [("mamba2_last_any", (sizes["R"],), (32 * min(sizes["HD"], 8),), 4 * any_floats(sizes))]


def launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    """A block a window, a warp a head; with 8 heads 43 KB of shared memory, so four blocks share a multiprocessor."""
    if not last_shape(sizes):
        return general(sizes, scalars)
    return [("mamba2_last", (sizes["R"],), (32 * sizes["HD"],), window_shared(sizes, room=16))]


KERNEL = Kernel(
    "mamba2_last",
    args=(*INPUTS, Arg("y", REAL, "out", "R,DI", "input of out_proj")),
    reference=reference,
    launcher=launcher,
    general=general,
    tolerance=(2e-6, 2e-5, "sums over K rows and N states, then a norm"),
)
