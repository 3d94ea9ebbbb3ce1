"""The array operations of a peer's step in JAX; `ops_torch` has the same names, so the step is written once.

State is a plain dict, rebound inside a jitted function whose arguments are donated: XLA then writes in place. 64-bit
types are switched on for the environment's money; everything else names its dtype.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)

exp, log, log1p, tanh, sigmoid = jnp.exp, jnp.log, jnp.log1p, jnp.tanh, jax.nn.sigmoid
abs, sign, sqrt, rsqrt, floor, round = jnp.abs, jnp.sign, jnp.sqrt, jax.lax.rsqrt, jnp.floor, jnp.round
where, minimum, maximum, isfinite, einsum = jnp.where, jnp.minimum, jnp.maximum, jnp.isfinite, jnp.einsum
clip, argmax, amax, stack, concat = jnp.clip, jnp.argmax, jnp.max, jnp.stack, jnp.concatenate
sum, mean, argsort = jnp.sum, jnp.mean, jnp.argsort
silu, softplus, softmax, log_softmax = jax.nn.silu, jax.nn.softplus, jax.nn.softmax, jax.nn.log_softmax
INDEX = jnp.int32
MASKED_SUM = 64  # longest axis of floats that is summed by a masked reduction: XLA fuses it, a scan takes many kernels


def cast(x: Any, dtype: str) -> Any:
    return x.astype(dtype)


def arange(n: int, like: Any) -> Any:
    """0..n-1 as indices."""
    return jnp.arange(n, dtype=INDEX)


def zeros(shape: tuple[int, ...], like: Any) -> Any:
    return jnp.zeros(shape, like.dtype)


def stop(x: Any) -> Any:
    return jax.lax.stop_gradient(x)


def cumsum(x: Any, axis: int) -> Any:
    if x.shape[axis] > MASKED_SUM:
        return jnp.cumsum(x, axis)
    n = x.shape[axis]
    moved = jnp.moveaxis(x, axis, -1)
    upto = jnp.arange(n)[:, None] >= jnp.arange(n)
    return jnp.moveaxis(jnp.where(upto, moved[..., None, :], 0).sum(-1), -1, axis)


def take(x: Any, index: Any) -> Any:
    """Rows of x by number, an index array of any shape."""
    return x.at[index].get(mode="promise_in_bounds")


def pick(x: Any, column: Any) -> Any:
    """x[r, column[r]] for x [R, C, ...]."""
    return x.at[jnp.arange(x.shape[0], dtype=INDEX), column].get(mode="promise_in_bounds")


def pad_front(x: Any, rows: int) -> Any:
    """Zeros before axis 1 of x [R, K, C]."""
    return jnp.pad(x, ((0, 0), (rows, 0), (0, 0)))


def search_right(ordered: Any, values: Any) -> Any:
    """Number of entries of `ordered` that are <= each value."""
    return jnp.searchsorted(ordered, values, side="right", method="scan_unrolled")


def put(state: dict[str, Any], name: str, start: Any, block: Any) -> None:
    """Rows start .. start + len(block) of an array; start is an array of one number."""
    whole = state[name]
    state[name] = jax.lax.dynamic_update_slice_in_dim(whole, block.astype(whole.dtype), start[0].astype(INDEX), 0)


def put_each(x: Any, index: Any, values: Any) -> Any:
    """x with values at `index`; of several for one place any one stays."""
    return x.at[index].set(values, mode="promise_in_bounds")


def assign(state: dict[str, Any], name: str, value: Any) -> None:
    old = state[name]
    assert value.shape == old.shape, f"{name}: {value.shape} into {old.shape}"
    state[name] = value.astype(old.dtype)
