"""Backward of `mamba2_last`: recomputes the forward pass from its inputs, which is less traffic than keeping it.

With w_k = e_k dt_k s_k, e_k = exp(sum_{j > k} a_j), s_k = C . B_k and q_kh = dy_h . x_kh:
dx_k = w_k dy (+ D dy at the last row), ds_k = sum_h q e dt, d log e_k = q w, so da_j = sum_{k < j} q_k w_k,
ddt_k = q e s - exp(A_log) da, dA_log = sum_k da_k a_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.mamba2_last import INPUTS, decay_to_last, heads_first, last_output, tail_conv
from kernels.mixer_parts import (
    conv_silu,
    conv_silu_backward,
    gated_norm_backward,
    sigmoid,
    silu_slope,
    softplus,
)
from kernels.spec import REAL, Arg, Kernel
from kernels.vectors import mixer_vectors, place


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
    n, heads, inner = c.shape[2], dt_bias.shape[0], z.shape[1]
    bx, gate = conv_silu(bxdt[..., : n + inner], conv_weight[:, n:], conv_bias[n:])
    cs, c_gate = tail_conv(c, conv_weight[:, :n], conv_bias[:n])
    raw = bxdt[..., n + inner :] + dt_bias
    dt = softplus(raw)
    decay = decay_to_last(dt, a_log)
    score = np.matmul(bx[..., :n], cs[:, :, None])  # [R, K, 1]
    weights = decay * dt
    decay *= score  # now dw / ddt
    scale = weights.copy()  # dw / dscore
    weights *= score
    out = last_output(weights, bx[..., n:], d_skip, heads)
    dout, dnorm = gated_norm_backward(dy, out, z, norm_weight, eps, dz)

    dbx = np.empty_like(bx)
    xh, doh = heads_first(bx[..., n:], heads), dout.reshape(-1, heads, inner // heads)
    q = np.matmul(xh, doh[..., None])[..., 0].transpose(0, 2, 1)  # [R, K, HD]
    dxh = heads_first(dbx[..., n:], heads)
    np.multiply(weights.transpose(0, 2, 1)[..., None], doh[:, :, None], out=dxh)
    dxh[:, :, -1] += doh * d_skip[:, None]
    scale *= q
    dscore = scale.sum(axis=2, keepdims=True)  # [R, K, 1]
    np.multiply(dscore, cs[:, None], out=dbx[..., :n])
    dcs = np.matmul(dscore.transpose(0, 2, 1), bx[..., :n])[:, 0]

    da = np.zeros_like(dt)
    np.cumsum((q * weights)[:, :-1], axis=1, out=da[:, 1:])
    da *= -np.exp(a_log)  # now the gradient of dt through the decay
    ddt = q * decay
    ddt += da
    ddt *= sigmoid(raw)
    dbxdt[..., n + inner :] = ddt

    where, _ = place(mixer_vectors(conv_bias.shape[0], heads, inner))
    partial.fill(0)
    dconv = partial[:, where["conv.weight"]].reshape(-1, 4, conv_bias.shape[0])
    dbias = partial[:, where["conv.bias"]]
    dbxdt[..., : n + inner], dconv[..., n:], dbias[:, n:] = conv_silu_backward(
        dbx, bxdt[..., : n + inner], conv_weight[:, n:], bx, gate
    )
    dpre = dcs * silu_slope(cs, c_gate)
    dbias[:, :n] = dpre
    dconv[..., :n] = (c * dpre).transpose(1, 0, 2)
    np.multiply(conv_weight[:, None, :n], dpre, out=dc)
    partial[:, where["dt_bias"]] = ddt.sum(axis=1)
    partial[:, where["A_log"]] = (da * dt).sum(axis=1)
    partial[:, where["D"]] = np.matmul(doh[:, :, None], xh[:, :, -1, :, None])[..., 0, 0]
    partial[:, where["gate_norm.weight"]] = dnorm


KERNEL = Kernel(
    "mamba2_last_bwd",
    args=(
        Arg("dy", REAL, "in", "R,DI"),
        *INPUTS,
        Arg("dbxdt", REAL, "out", "R,K,E"),
        Arg("dc", REAL, "out", "4,R,N"),
        Arg("dz", REAL, "out", "R,DI"),
        Arg("partial", REAL, "out", "R,V", "a window's gradients of the mixer's vectors (kernels/vectors.py)"),
    ),
    reference=reference,
    tolerance=(2e-6, 2e-4, "sums over K rows of cancelling terms"),
)
