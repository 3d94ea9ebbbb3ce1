"""The same network in JAX, plainly, from the papers: an SSM as a recurrence, every row of every layer.

Parameters come as a dict of the arena's tensors; they are taken apart here into the published form (z, x, B, C, dt).
"""

import jax
import jax.numpy as jnp
from jax import lax


def rms_norm(x, weight, eps=1e-5):
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def causal_conv(x, taps, bias):
    """x [R, K, CH], taps [4, CH], one filter a channel; the last tap meets the present row."""
    before = jnp.pad(x, ((0, 0), (3, 0), (0, 0)))
    return sum(before[:, j : j + x.shape[1]] * taps[j] for j in range(4)) + bias


def mamba2(u, p, headdim):
    """u [R, K, D] -> [R, K, D]. Equation 2 of the paper, step by step: h = exp(dt A) h + dt B x, y = C h + D x."""
    inner = p["gate_norm.weight"].shape[0]
    n = (p["conv.bias"].shape[0] - inner) // 2
    heads = inner // headdim
    z, cbx, dt = jnp.split(u @ p["in_proj.weight"].T, [inner, 2 * inner + 2 * n], axis=-1)
    c, b, x = jnp.split(jax.nn.silu(causal_conv(cbx, p["conv.weight"], p["conv.bias"])), [n, 2 * n], axis=-1)
    dt = jax.nn.softplus(dt + p["dt_bias"])
    decay = jnp.exp(-jnp.exp(p["A_log"]) * dt)
    x = x.reshape(*x.shape[:2], heads, headdim)

    def step(state, row):
        xt, bt, ct, dtt, decayt = row  # [R, HD, P], [R, N], [R, N], [R, HD], [R, HD]
        state = state * decayt[..., None, None] + jnp.einsum("rh,rhp,rn->rhpn", dtt, xt, bt)
        return state, jnp.einsum("rhpn,rn->rhp", state, ct)

    rows = [jnp.moveaxis(t, 1, 0) for t in (x, b, c, dt, decay)]
    _, y = lax.scan(step, jnp.zeros((u.shape[0], heads, headdim, n), u.dtype), rows)
    y = jnp.moveaxis(y, 0, 1) + p["D"][:, None] * x
    y = y.reshape(*u.shape[:2], inner) * jax.nn.silu(z)
    return rms_norm(y, p["gate_norm.weight"]) @ p["out_proj.weight"].T


def affine(weight, *inputs):
    x = jnp.concatenate([*inputs, jnp.ones((inputs[0].shape[0], 1))], axis=1)
    return x @ weight[:, : x.shape[1]].T


def network(params, headdim, layers, x, private, h_prev, ts):
    """Returns enc [R, D], h [R, H], out [R, W]."""
    u = x @ params["embed.weight"].T + params["embed.bias"]
    for i in range(layers):
        own = {k.removeprefix(f"layers.{i}."): v for k, v in params.items() if k.startswith(f"layers.{i}.")}
        u = u + mamba2(rms_norm(u, own["norm.weight"]), own, headdim)
    enc = rms_norm(u, params["norm.weight"])[:, -1]
    v = 1.7159 * jnp.tanh(0.666 * affine(params["cfc.backbone.weight"], enc, private, h_prev))
    f1, f2, a, b = jnp.split(affine(params["cfc.maps.weight"], v), 4, axis=1)
    s = jax.nn.sigmoid(a * ts[:, None] + b)
    h = jnp.tanh(f1) * (1 - s) + s * jnp.tanh(f2)
    return enc, h, affine(params["heads.weight"], h)
