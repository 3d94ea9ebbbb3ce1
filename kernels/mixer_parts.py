"""Mamba-2 between its two GEMMs: the pieces that `mamba2_mixer` and `mamba2_last` share.

Dao and Gu, "Transformers are SSMs" (ICML 2024): block of section 7.1 and figure 6 (right), SSD of equation 16 in the
dual, masked-matrix form. Channel order of this project: z (gate), C, B, x, dt; the convolution covers C, B, x.
Sizes: N state, DI inner, HD heads, P = DI / HD head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec import REAL, Arg

PARAMETERS = (
    Arg("conv_weight", REAL, "in", "4,CH", "channels C, B, x; CH = 2 N + DI; tap 3 meets the present row"),
    Arg("conv_bias", REAL, "in", "CH"),
    Arg("dt_bias", REAL, "in", "HD"),
    Arg("a_log", REAL, "in", "HD"),
    Arg("d_skip", REAL, "in", "HD"),
    Arg("norm_weight", REAL, "in", "DI"),
    Arg("eps", REAL, "scalar"),
)


def sigmoid(u: Any, out: Any = None) -> Any:
    """(1 + tanh(u / 2)) / 2: one vectorised transcendental, and no overflow at either end."""
    s = np.multiply(u, 0.5, out=out)
    np.tanh(s, out=s)
    s *= 0.5
    s += 0.5
    return s


def softplus(u: Any) -> Any:
    """log(1 + exp(u)) = max(u, 0) + log1p(exp(-|u|))."""
    t = np.abs(u)
    np.negative(t, out=t)
    np.exp(t, out=t)
    np.log1p(t, out=t)
    t += np.maximum(u, 0)
    return t


def conv_silu(u: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """SiLU of the causal depthwise convolution. u [R, K, CH], weight [4, CH] (tap 3 meets the present row), bias [CH].

    pre[k] = bias + sum_j weight[j] u[k - 3 + j]. Returns SiLU(pre) and sigmoid(pre), contiguous.
    """
    r, k, channels = u.shape
    # A window as one long row: a lag of one row is a shift by CH, and the inner loops run over K CH floats.
    flat = np.ascontiguousarray(u).reshape(r, k * channels)
    taps = np.tile(weight, k)
    pre, gate = flat * taps[3], np.empty_like(flat)  # `gate` serves as the one temporary until it is due
    for lag in (1, 2, 3):
        shift = lag * channels
        pre[:, shift:] += np.multiply(flat[:, :-shift], taps[3 - lag, shift:], out=gate[:, shift:])
    pre += np.tile(bias, k)
    sigmoid(pre, gate)
    pre *= gate
    return pre.reshape(u.shape), gate.reshape(u.shape)


def silu_slope(value: Any, gate: Any) -> Any:
    """d SiLU(u) / du from SiLU(u) and sigmoid(u): s + SiLU (1 - s) = s (1 - SiLU) + SiLU."""
    slope = 1 - value
    slope *= gate
    slope += value
    return slope


def conv_silu_backward(dy: Any, u: Any, weight: Any, value: Any, gate: Any) -> tuple[Any, Any, Any]:
    """Gradients: du [R, K, CH], and each window's of weight [R, 4, CH] and bias [R, CH]. All inputs but u contiguous.

    With dpre = dy slope: du[k] = sum_j weight[j] dpre[k + 3 - j], dweight[j] = sum_k dpre[k] u[k - 3 + j].
    """
    r, k, channels = u.shape
    dpre = silu_slope(value, gate)
    dpre *= dy
    flat, taps = dpre.reshape(r, k * channels), np.tile(weight, k)
    du, product = flat * taps[3], np.empty_like(flat)
    dweight = np.empty((r, 4, channels), u.dtype)
    np.einsum("rkc,rkc->rc", dpre, u, out=dweight[:, 3])
    for lag in (1, 2, 3):
        shift = lag * channels
        du[:, :-shift] += np.multiply(flat[:, shift:], taps[3 - lag, shift:], out=product[:, shift:])
        np.einsum("rkc,rkc->rc", dpre[:, lag:], u[:, :-lag], out=dweight[:, 3 - lag])
    return du.reshape(u.shape), dweight, dpre.sum(axis=1)


def gated_norm(y: Any, z: Any, weight: Any, eps: float, out: Any) -> None:
    """out = RMSNorm(y SiLU(z)) weight: the gate multiplies before the norm. All [..., DI]."""
    np.multiply(sigmoid(z), z, out=out)
    out *= y
    mean = np.matmul(out[..., None, :], out[..., :, None])[..., 0]
    mean /= y.shape[-1]
    mean += eps
    out /= np.sqrt(mean)
    out *= weight


def gated_norm_backward(dout: Any, y: Any, z: Any, weight: Any, eps: float, dz: Any) -> tuple[Any, Any]:
    """Writes dz [..., DI]; returns dy [..., DI] and the rows' terms of the weight's gradient [..., DI].

    With g = y SiLU(z), v = g rstd: dg = rstd (dout weight - v mean(dout weight v)).
    """
    gate = sigmoid(z)
    silu = gate * z
    v = y * silu
    mean = np.matmul(v[..., None, :], v[..., :, None])[..., 0]
    mean /= y.shape[-1]
    mean += eps
    rstd = 1 / np.sqrt(mean)
    v *= rstd
    dweight = dout * v
    v *= np.matmul(dweight, weight)[..., None] / -y.shape[-1]
    dg = dout * weight
    dg += v
    dg *= rstd
    np.multiply(silu_slope(silu, gate), y, out=dz)
    dz *= dg
    dg *= silu
    return dg, dweight
