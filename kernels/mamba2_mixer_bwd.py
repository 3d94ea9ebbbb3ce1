"""Backward of `mamba2_mixer`: recomputes the forward pass from its inputs, which is less traffic than keeping it.

With G = C B^T, M = L o G o dt (dt by column), Y = M x + D x and Q = dY x^T (per head):
dx = M^T dY + D dY, dG = sum_h Q o L o dt, dC = dG B, dB = dG^T C, ddt_k = sum_t Q o L o G (+ the decay's part),
dS = Q o M for the segment sums S = log L, and da_j = sum_{t >= j} sum_{k < j} dS[t, k].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.mamba2_last import heads_first
from kernels.mamba2_mixer import INPUTS, any_shared, mixed_rows, segment_decay, window_shape
from kernels.mixer_parts import conv_silu, conv_silu_backward, gated_norm_backward, sigmoid, softplus
from kernels.spec import REAL, Arg, Grid, Kernel
from kernels.vectors import mixer_vectors, place


def ssd_backward(
    dy: Any, cbx: Any, dt: Any, decay: Any, score: Any, matrix: Any, a_log: Any, d_skip: Any
) -> tuple[Any, Any, Any]:
    """Gradients through the SSD: of C, B and x [R, K, CH], dt [R, K, HD], A_log [R, HD].

    dy [R, K, DI]; cbx [R, K, CH]; decay L, matrix M [R, HD, K, K]; score G [R, 1, K, K].
    """
    heads, n = d_skip.shape[0], (cbx.shape[2] - dy.shape[2]) // 2
    dcbx = np.empty_like(cbx)
    xh, dxh = heads_first(cbx[..., 2 * n :], heads), heads_first(dcbx[..., 2 * n :], heads)  # [R, HD, K, P]
    dyh = heads_first(dy, heads)
    np.multiply(dyh, d_skip[:, None, None], out=dxh)
    dxh += np.matmul(matrix.transpose(0, 1, 3, 2), dyh)
    q = np.matmul(dyh, xh.transpose(0, 1, 3, 2))
    dlog = q * matrix
    q *= decay
    dscore = (q * dt.transpose(0, 2, 1)[:, :, None]).sum(axis=1)  # [R, K, K]
    np.matmul(dscore, cbx[..., n : 2 * n], out=dcbx[..., :n])
    np.matmul(dscore.transpose(0, 2, 1), cbx[..., :n], out=dcbx[..., n : 2 * n])
    q *= score
    later = np.cumsum(dlog[:, :, ::-1], axis=2)[:, :, ::-1]  # row j: sum over t >= j
    da = np.tril(later, -1).sum(axis=3).transpose(0, 2, 1) * -np.exp(a_log)  # the gradient of dt through the decay
    return dcbx, q.sum(axis=2).transpose(0, 2, 1) + da, (da * dt).sum(axis=1)


def reference(
    dy: Any,
    zcbxdt: Any,
    conv_weight: Any,
    conv_bias: Any,
    dt_bias: Any,
    a_log: Any,
    d_skip: Any,
    norm_weight: Any,
    eps: float,
    tf32: int,
    dzcbxdt: Any,
    partial: Any,
    row_dot: Any,
) -> None:
    inner, channels, heads = dy.shape[2], conv_bias.shape[0], dt_bias.shape[0]
    n, conv = (channels - inner) // 2, slice(inner, inner + channels)
    cbx, gate = conv_silu(zcbxdt[..., conv], conv_weight, conv_bias)
    raw = zcbxdt[..., inner + channels :] + dt_bias
    dt = softplus(raw)
    decay = segment_decay(dt, a_log)
    score = np.matmul(cbx[..., :n], cbx[..., n : 2 * n].transpose(0, 2, 1))[:, None]
    matrix = decay * score * dt.transpose(0, 2, 1)[:, :, None]
    out = mixed_rows(matrix, cbx[..., 2 * n :], d_skip, heads)
    dout, dnorm = gated_norm_backward(dy, out, zcbxdt[..., :inner], norm_weight, eps, dzcbxdt[..., :inner])
    dcbx, ddt, da_log = ssd_backward(dout, cbx, dt, decay, score, matrix, a_log, d_skip)
    ddt *= sigmoid(raw)
    dzcbxdt[..., inner + channels :] = ddt
    dzcbxdt[..., conv], dconv, dbias = conv_silu_backward(dcbx, zcbxdt[..., conv], conv_weight, cbx, gate)

    where, _ = place(mixer_vectors(channels, heads, inner))
    partial.fill(0)
    partial[:, where["conv.weight"]] = dconv.reshape(-1, 4 * channels)
    partial[:, where["conv.bias"]] = dbias
    partial[:, where["dt_bias"]] = ddt.sum(axis=1)
    partial[:, where["A_log"]] = da_log
    skip = (dout * cbx[..., 2 * n :]).sum(axis=1)
    partial[:, where["D"]] = skip.reshape(-1, heads, inner // heads).sum(axis=2)
    partial[:, where["gate_norm.weight"]] = dnorm.sum(axis=1)
    np.matmul(dzcbxdt[..., None, :], zcbxdt[..., :, None], out=row_dot[..., None, None])


def general(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    """A block a window, head by head."""
    k, p = sizes["K"], sizes["DI"] // sizes["HD"]
    shared = any_shared(sizes) + 4 * (k * p + 2 * k * k + p + 6 * k)
    return [("mamba2_mixer_bwd_any", (sizes["R"],), (256,), shared)]


def launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[tuple[str, Grid, Grid, int]]:
    """A block a window, two warps a head. 201 KiB of shared memory at the seed size, 113 at the small one: an A100 has
    163 for a block, sm_86, sm_89 and sm_120 have 99, and there the general variant runs."""
    if not window_shape(sizes):
        return general(sizes, scalars)
    heads, di = sizes["HD"], sizes["DI"]
    floats = 32 * (2 * (di + 8) + 2 * 72 + 36) + heads * (32 * 36 + 12 * 32 + 2)
    entry = "mamba2_mixer_bwd" if scalars["tf32"] else "mamba2_mixer_bwd_exact"
    return [(entry, (sizes["R"],), (64 * heads,), 4 * floats)]


KERNEL = Kernel(
    "mamba2_mixer_bwd",
    args=(
        Arg("dy", REAL, "in", "R,K,DI"),
        *INPUTS,
        Arg("dzcbxdt", REAL, "out", "R,K,E"),
        Arg("partial", REAL, "out", "R,V", "a window's gradients of the mixer's vectors (kernels/vectors.py)"),
        Arg("row_dot", REAL, "out", "R,K", "sum over E of dzcbxdt zcbxdt: the gradient of a factor of the row"),
    ),
    reference=reference,
    launcher=launcher,
    general=general,
    tolerance=(2e-6, 2e-4, "sums over K rows of cancelling terms"),
)
