"""Backward of `mamba2_mixer`: recomputes the forward pass from its inputs, which is less traffic than keeping it.

With G = C B^T, M = L o G o dt (dt by column), Y = M x + D x and Q = dY x^T (per head):
dx = M^T dY + D dY, dG = sum_h Q o L o dt, dC = dG B, dB = dG^T C, ddt_k = sum_t Q o L o G (+ the decay's part),
dS = Q o M for the segment sums S = log L, and da_j = sum_{t >= j} sum_{k < j} dS[t, k].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.mamba2_last import heads_first
from kernels.mamba2_mixer import INPUTS, mixed_rows, segment_decay
from kernels.mixer_parts import conv_silu, conv_silu_backward, gated_norm_backward, sigmoid, softplus
from kernels.spec import REAL, Arg, Kernel
from kernels.vectors import mixer_vectors, place


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
    dzcbxdt: Any,
    partial: Any,
) -> None:
    inner, channels, heads = dy.shape[2], conv_bias.shape[0], dt_bias.shape[0]
    n = (channels - inner) // 2
    conv = slice(inner, inner + channels)
    cbx, gate = conv_silu(zcbxdt[..., conv], conv_weight, conv_bias)
    c, b, x = cbx[..., :n], cbx[..., n : 2 * n], cbx[..., 2 * n :]
    raw = zcbxdt[..., inner + channels :] + dt_bias
    dt = softplus(raw)
    decay = segment_decay(dt, a_log)  # [R, HD, K, K]
    score = np.matmul(c, b.transpose(0, 2, 1))[:, None]
    dt_column = dt.transpose(0, 2, 1)[:, :, None]
    matrix = decay * score
    matrix *= dt_column
    out = mixed_rows(matrix, x, d_skip, heads)
    dout, dnorm = gated_norm_backward(dy, out, zcbxdt[..., :inner], norm_weight, eps, dzcbxdt[..., :inner])

    dcbx = np.empty_like(cbx)
    xh, doh = heads_first(x, heads), heads_first(dout, heads)
    q = np.matmul(doh, xh.transpose(0, 1, 3, 2))
    dxh = heads_first(dcbx[..., 2 * n :], heads)
    np.multiply(doh, d_skip[:, None, None], out=dxh)
    dxh += np.matmul(matrix.transpose(0, 1, 3, 2), doh)
    dlog = q * matrix
    q *= decay
    dscore = (q * dt_column).sum(axis=1)  # [R, K, K]
    np.matmul(dscore, b, out=dcbx[..., :n])
    np.matmul(dscore.transpose(0, 2, 1), c, out=dcbx[..., n : 2 * n])

    q *= score
    ddt = q.sum(axis=2).transpose(0, 2, 1)  # [R, K, HD]
    later = np.cumsum(dlog[:, :, ::-1], axis=2)[:, :, ::-1]  # row j: sum over t >= j
    da = np.tril(later, -1).sum(axis=3).transpose(0, 2, 1) * -np.exp(a_log)
    ddt += da
    ddt *= sigmoid(raw)
    dzcbxdt[..., inner + channels :] = ddt

    where, _ = place(mixer_vectors(channels, heads, inner))
    partial.fill(0)
    dzcbxdt[..., conv], dconv, dbias = conv_silu_backward(dcbx, zcbxdt[..., conv], conv_weight, cbx, gate)
    partial[:, where["conv.weight"]] = dconv.reshape(-1, 4 * channels)
    partial[:, where["conv.bias"]] = dbias
    partial[:, where["dt_bias"]] = ddt.sum(axis=1)
    partial[:, where["A_log"]] = (da * dt).sum(axis=1)
    partial[:, where["D"]] = (doh * xh).sum(axis=(2, 3))
    partial[:, where["gate_norm.weight"]] = dnorm.sum(axis=1)


KERNEL = Kernel(
    "mamba2_mixer_bwd",
    args=(
        Arg("dy", REAL, "in", "R,K,DI"),
        *INPUTS,
        Arg("dzcbxdt", REAL, "out", "R,K,E"),
        Arg("partial", REAL, "out", "R,V", "a window's gradients of the mixer's vectors (kernels/vectors.py)"),
    ),
    reference=reference,
    tolerance=(2e-6, 2e-4, "sums over K rows of cancelling terms"),
)
