"""Backward of `mamba2_last`: recomputes the forward pass from its inputs, which is less traffic than keeping it.

With w_k = e_k dt_k s_k, e_k = exp(sum_{j > k} a_j), s_k = C . B_k and q_kh = dy_h . x_kh:
dx_k = w_k dy (+ D dy at the last row), ds_k = sum_h q e dt, d log e_k = q w, so da_j = sum_{k < j} q_k w_k,
ddt_k = q e s - exp(A_log) da, dA_log = sum_k da_k a_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.mamba2_last import (
    INPUTS,
    any_floats,
    decay_to_last,
    heads_first,
    last_output,
    last_shape,
    tail_conv,
    window_shared,
)
from kernels.mixer_parts import (
    conv_silu,
    conv_silu_backward,
    gated_norm_backward,
    sigmoid,
    silu_slope,
    softplus,
)
from kernels.spec import REAL, Arg, Grid, Kernel
from kernels.vectors import mixer_vectors, place


def ssd_last_backward(
    dy: Any, bx: Any, cs: Any, dt: Any, decay: Any, score: Any, a_log: Any, d_skip: Any
) -> tuple[Any, Any, Any, Any]:
    """Gradients through the SSD: of B and x [R, K, N + DI], C [R, N], dt [R, K, HD], A_log [R, HD].

    dy [R, DI], bx [R, K, N + DI], cs [R, N], dt and decay [R, K, HD], score [R, K, 1].
    """
    n, heads = cs.shape[1], d_skip.shape[0]
    dbx = np.empty_like(bx)
    xh, dxh = heads_first(bx[..., n:], heads), heads_first(dbx[..., n:], heads)  # [R, HD, K, P]
    dyh = dy.reshape(-1, heads, xh.shape[3])
    q = np.matmul(xh, dyh[..., None])[..., 0].transpose(0, 2, 1)  # [R, K, HD]
    by_score = decay * dt  # dw / dscore
    weights = by_score * score
    np.multiply(weights.transpose(0, 2, 1)[..., None], dyh[:, :, None], out=dxh)
    dxh[:, :, -1] += dyh * d_skip[:, None]
    by_score *= q
    dscore = by_score.sum(axis=2, keepdims=True)
    np.multiply(dscore, cs[:, None], out=dbx[..., :n])
    dcs = np.matmul(dscore.transpose(0, 2, 1), bx[..., :n])[:, 0]
    weights *= q  # now the gradient of each row's log decay to the last row
    da = np.zeros_like(dt)
    np.cumsum(weights[:, :-1], axis=1, out=da[:, 1:])
    da *= -np.exp(a_log)  # now the gradient of dt through the decay
    ddt = q * decay
    ddt *= score
    ddt += da
    return dbx, dcs, ddt, (da * dt).sum(axis=1)


def reference(
    dy: Any,
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
    dbxdt: Any,
    dc: Any,
    dz: Any,
    partial: Any,
) -> None:
    n, heads, inner, channels = c.shape[2], dt_bias.shape[0], z.shape[1], conv_bias.shape[0]
    u, du = bxdt[..., : n + inner], dbxdt[..., : n + inner]
    bx, gate = conv_silu(u, conv_weight[:, n:], conv_bias[n:])
    cs, c_gate = tail_conv(c, conv_weight[:, :n], conv_bias[:n])
    raw = bxdt[..., n + inner :] + dt_bias
    dt = softplus(raw)
    decay, score = decay_to_last(dt, a_log), np.matmul(bx[..., :n], cs[:, :, None])
    out = last_output(decay * dt * score, bx[..., n:], d_skip, heads)
    dout, dnorm = gated_norm_backward(dy, out, z, norm_weight, eps, dz)
    dbx, dcs, ddt, da_log = ssd_last_backward(dout, bx, cs, dt, decay, score, a_log, d_skip)
    ddt *= sigmoid(raw)
    dbxdt[..., n + inner :] = ddt
    du[...], dtaps, dbias = conv_silu_backward(dbx, u, conv_weight[:, n:], bx, gate)
    dpre = dcs * silu_slope(cs, c_gate)  # of C's convolution at the last row
    np.multiply(conv_weight[:, :n], dpre[:, None], out=dc)

    where, _ = place(mixer_vectors(channels, heads, inner))
    partial.fill(0)
    dconv = partial[:, where["conv.weight"]].reshape(-1, 4, channels)
    dconv[..., :n], dconv[..., n:] = c * dpre[:, None], dtaps
    both = partial[:, where["conv.bias"]]
    both[:, :n], both[:, n:] = dpre, dbias
    partial[:, where["dt_bias"]] = ddt.sum(axis=1)
    partial[:, where["A_log"]] = da_log
    partial[:, where["D"]] = (dout * bx[:, -1, n:]).reshape(-1, heads, inner // heads).sum(axis=2)
    partial[:, where["gate_norm.weight"]] = dnorm


def general(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    """A block a window, a warp a head and one for 32 channels of B."""
    k, di, heads = sizes["K"], sizes["DI"], sizes["HD"]
    floats = any_floats(sizes) + 2 * di + k * heads + k
    warps = min(heads + -(-sizes["N"] // 32), 9)
    return [("mamba2_last_bwd_any", (sizes["R"],), (32 * warps,), 4 * floats)]


def launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    """A block a window, a warp a head; with 8 heads 75 KB of shared memory, so three blocks share a multiprocessor."""
    if not last_shape(sizes):
        return general(sizes, scalars)
    return [("mamba2_last_bwd", (sizes["R"],), (32 * sizes["HD"],), window_shared(sizes, room=32))]


KERNEL = Kernel(
    "mamba2_last_bwd",
    args=(
        Arg("dy", REAL, "in", "R,DI"),
        *INPUTS,
        Arg("dbxdt", REAL, "out", "R,K,E"),
        Arg("dc", REAL, "out", "R,4,N"),
        Arg("dz", REAL, "out", "R,DI"),
        Arg("partial", REAL, "out", "R,V", "a window's gradients of the mixer's vectors (kernels/vectors.py)"),
    ),
    reference=reference,
    launcher=launcher,
    general=general,
    tolerance=(2e-6, 2e-4, "sums over K rows of cancelling terms"),
)
