"""The array operations of a peer's step in PyTorch; `ops_jax` has the same names, so the step is written once.

All are traceable by torch.compile. State is a plain dict of tensors that are written in place, because a CUDA graph
replays addresses.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

exp, log, log1p, tanh, sigmoid = torch.exp, torch.log, torch.log1p, torch.tanh, torch.sigmoid
abs, sign, sqrt, rsqrt, floor, round = torch.abs, torch.sign, torch.sqrt, torch.rsqrt, torch.floor, torch.round
where, minimum, maximum, isfinite, einsum = torch.where, torch.minimum, torch.maximum, torch.isfinite, torch.einsum
clip, argmax, amax, cumsum, stack, concat = torch.clamp, torch.argmax, torch.amax, torch.cumsum, torch.stack, torch.cat
sum, mean, argsort = torch.sum, torch.mean, torch.argsort
silu, softplus, softmax, log_softmax = F.silu, F.softplus, F.softmax, F.log_softmax
INDEX = torch.int64  # what torch wants for indices


def cast(x: Any, dtype: str) -> Any:
    return x.to(getattr(torch, dtype))


def arange(n: int, like: Any) -> Any:
    """0..n-1 as indices, on the device of `like`."""
    return torch.arange(n, dtype=INDEX, device=like.device)


def zeros(shape: tuple[int, ...], like: Any) -> Any:
    return torch.zeros(shape, dtype=like.dtype, device=like.device)


def stop(x: Any) -> Any:
    return x.detach()


def take(x: Any, index: Any) -> Any:
    """Rows of x by number, an index array of any shape."""
    return x[index.to(INDEX)]


def pick(x: Any, column: Any) -> Any:
    """x[r, column[r]] for x [R, C, ...]."""
    return x[torch.arange(x.shape[0], device=x.device), column.to(INDEX)]


def pad_front(x: Any, rows: int) -> Any:
    """Zeros before axis 1 of x [R, K, C]."""
    return F.pad(x, (0, 0, rows, 0))


def search_right(ordered: Any, values: Any) -> Any:
    """Number of entries of `ordered` that are <= each value."""
    return torch.searchsorted(ordered, values, right=True)


def put(state: dict[str, Any], name: str, start: Any, block: Any) -> None:
    """Rows start .. start + len(block) of an array; start is an array of one number."""
    at = start.to(INDEX) + torch.arange(block.shape[0], device=block.device)
    state[name].index_copy_(0, at, block.to(state[name].dtype))


def put_each(x: Any, index: Any, values: Any) -> Any:
    """x with values at `index`; of several for one place any one stays."""
    return torch.index_put(x, (index.to(INDEX),), values)


def assign(state: dict[str, Any], name: str, value: Any) -> None:
    state[name].copy_(value)
