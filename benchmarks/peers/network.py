"""The policy network of the peers: the same layers as trainer/nets, differentiated by the framework.

Mamba-2 in its dual form (one SSD chunk a window, masked matrices), z, C, B, x and dt in one product, and the last layer
at its last row only. The form is the one that fuses best: what stands between two matrix products is elementwise or a
short reduction. A wide x, features | 1 | zeros, folds the embedding, the first norm and the first in_proj into one
product over few columns. Letters: docs/architecture.md.
"""

from __future__ import annotations

from typing import Any

from trainer.config import NetConfig
from trainer.nets.heads import USED, WIDTH
from trainer.nets.mamba2 import EPS, TAPS

HEADS = ("q", "policy", "value", "aux")  # the order of their rows in the output


def forward(xp: Any, p: dict[str, Any], net: NetConfig, x: Any, private: Any, h_prev: Any, ts: Any) -> tuple[Any, Any]:
    """x [R, K, F] normalised, or wide [R, K, X]; private [R, P], h_prev [R, H], ts [R] -> h [R, H], out [R, W]."""
    wide = x.shape[2] > p["embed.weight"].shape[1]
    u = _stem(xp, p, net, x) if wide else x @ p["embed.weight"].T + p["embed.bias"]
    for i in range(int(wide), net.layers - 1):
        u = u + _mixer(xp, p, f"layers.{i}", net, _rms_norm(xp, u, p[f"layers.{i}.norm.weight"]))
    name = f"layers.{net.layers - 1}"
    u = u[:, -1] + _last_mixer(xp, p, name, net, _rms_norm(xp, u, p[f"{name}.norm.weight"]))
    h = _cell(xp, p, _rms_norm(xp, u, p["norm.weight"]), private, h_prev, ts)
    return h, _heads(xp, p, h)


def _stem(xp: Any, p: dict[str, Any], net: NetConfig, x: Any) -> Any:
    """x [R, K, X] wide -> [R, K, D]: the embedding u = x wide^T, and u plus the first mixer of its norm.

    u is never made: the norm's mean square is a quadratic form in x, and `wide` takes x beside y into the last product.
    Their concatenation costs less traffic than the sum of two products would, and x needs no gradient.
    """
    weight, name = p["embed.weight"], "layers.0"
    d, f = weight.shape
    rest = xp.zeros((d, x.shape[2] - f - 1), weight)
    wide = xp.concat([weight, p["embed.bias"][:, None], rest], 1)  # [D, X]
    folded = p[f"{name}.in_proj.weight"] @ (p[f"{name}.norm.weight"][:, None] * wide)  # [E, X]
    square = xp.clip(xp.sum(x @ (wide.T @ wide) * x, -1), 0.0, None)  # rounding may fall below
    y = _mix(xp, p, name, net, x * xp.rsqrt(square / d + EPS)[..., None] @ folded.T)
    return xp.concat([y, x], 2) @ xp.concat([p[f"{name}.out_proj.weight"], wide], 1).T


def _rms_norm(xp: Any, x: Any, weight: Any) -> Any:
    return x * xp.rsqrt(xp.mean(x * x, -1)[..., None] + EPS) * weight


def _conv(xp: Any, x: Any, taps: Any, bias: Any) -> Any:
    """SiLU of the causal depthwise convolution; x [R, K, CH], taps [4, CH], the last tap meets the present row."""
    k, padded = x.shape[1], xp.pad_front(x, TAPS - 1)
    out = bias
    for j in range(TAPS):
        out = out + padded[:, j : j + k] * taps[j]
    return xp.silu(out)


def _mixer(xp: Any, p: dict[str, Any], name: str, net: NetConfig, n: Any) -> Any:
    """n [R, K, D] -> [R, K, D], all rows."""
    y = _mix(xp, p, name, net, n @ p[f"{name}.in_proj.weight"].T)
    return y @ p[f"{name}.out_proj.weight"].T


def _mix(xp: Any, p: dict[str, Any], name: str, net: NetConfig, zcbxdt: Any) -> Any:
    """What stands between the two products of a mixer: [R, K, E] -> [R, K, DI]."""
    inner, states = 2 * net.d_model, net.d_state
    heads, channels = inner // net.headdim, inner + 2 * states
    r, k = zcbxdt.shape[:2]
    z, dt = zcbxdt[..., :inner], xp.softplus(zcbxdt[..., inner + channels :] + p[f"{name}.dt_bias"])
    cbx = _conv(xp, zcbxdt[..., inner : inner + channels], p[f"{name}.conv.weight"], p[f"{name}.conv.bias"])
    x = cbx[..., 2 * states :].reshape(r, k, heads, net.headdim)
    scores = xp.einsum("rtn,rkn->rtk", cbx[..., :states], cbx[..., states : 2 * states])
    at, dt = xp.arange(k, dt), dt.swapaxes(1, 2)  # [R, HD, K]
    sums = xp.cumsum(dt, 2)
    decay = -xp.exp(p[f"{name}.A_log"])[:, None, None] * (sums[..., :, None] - sums[..., None, :])
    mixed = xp.exp(xp.where(at[:, None] >= at, decay, float("-inf"))) * scores[:, None] * dt[:, :, None]
    y = xp.einsum("rhtk,rkhp->rthp", mixed, x) + p[f"{name}.D"][:, None] * x
    return _rms_norm(xp, y.reshape(r, k, inner) * xp.silu(z), p[f"{name}.gate_norm.weight"])


def _last_mixer(xp: Any, p: dict[str, Any], name: str, net: NetConfig, n: Any) -> Any:
    """n [R, K, D] -> [R, D]: what `_mixer` gives at the last row."""
    inner, states = 2 * net.d_model, net.d_state
    heads, weight = inner // net.headdim, p[f"{name}.in_proj.weight"]
    r, k = n.shape[:2]
    bxdt = n @ weight[inner + states :].T
    c = n[:, -TAPS:] @ weight[inner : inner + states].T  # [R, 4, N]
    z = n[:, -1] @ weight[:inner].T
    taps, bias = p[f"{name}.conv.weight"], p[f"{name}.conv.bias"]
    c = xp.silu(xp.sum(c * taps[:, :states], 1) + bias[:states])
    bx = _conv(xp, bxdt[..., : states + inner], taps[:, states:], bias[states:])
    dt = xp.softplus(bxdt[..., states + inner :] + p[f"{name}.dt_bias"])
    sums = xp.cumsum(dt, 1)
    decay = xp.exp(-xp.exp(p[f"{name}.A_log"]) * (sums[:, -1:] - sums))
    mixed = decay * dt * xp.sum(bx[..., :states] * c[:, None], 2)[..., None]  # [R, K, HD]
    x = bx[..., states:].reshape(r, k, heads, net.headdim)
    y = xp.sum(mixed[..., None] * x, 1) + p[f"{name}.D"][:, None] * x[:, -1]
    y = _rms_norm(xp, y.reshape(r, inner) * xp.silu(z), p[f"{name}.gate_norm.weight"])
    return y @ p[f"{name}.out_proj.weight"].T


def _cell(xp: Any, p: dict[str, Any], enc: Any, private: Any, h_prev: Any, ts: Any) -> Any:
    """The CfC cell -> h [R, H]."""
    v = xp.concat([enc, private, h_prev], 1) @ p["cfc.backbone.weight"].T + p["cfc.backbone.bias"]
    maps = (1.7159 * xp.tanh(0.666 * v)) @ p["cfc.maps.weight"].T + p["cfc.maps.bias"]
    n = h_prev.shape[1]
    share = xp.sigmoid(maps[:, 2 * n : 3 * n] * ts[:, None] + maps[:, 3 * n :])
    return xp.tanh(maps[:, :n]) * (1 - share) + share * xp.tanh(maps[:, n : 2 * n])


def _heads(xp: Any, p: dict[str, Any], h: Any) -> Any:
    """The four heads as one product, padded to a width that suits it: [R, W]."""
    weights, biases = [p[f"heads.{name}.weight"] for name in HEADS], [p[f"heads.{name}.bias"] for name in HEADS]
    weight = xp.concat([*weights, xp.zeros((WIDTH - USED, h.shape[1]), h)], 0)
    bias = xp.concat([*biases, xp.zeros((WIDTH - USED,), h)], 0)
    return h @ weight.T + bias
