"""How small parameters lie side by side: one after the other, each padded to 64 floats.

The arena, the `partial` rows of the backward kernels and the CUDA side use the same rule, so one `column_sum` writes
the gradients of all vectors of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

PAD = 64  # floats: 256 bytes, the alignment of every tensor in the arena


def padded(n: int) -> int:
    """n rounded up to a multiple of 64."""
    return -(-n // PAD) * PAD


def place(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, slice], int]:
    """Where each tensor lies in one row, in the order given, and the row's length."""
    where, at = {}, 0
    for name, shape in shapes.items():
        n = math.prod(shape)
        where[name] = slice(at, at + n)
        at += padded(n)
    return where, at


def mixer_vectors(channels: int, heads: int, inner: int) -> dict[str, tuple[int, ...]]:
    """The vector parameters of one Mamba-2 mixer, in arena order. channels = CH, heads = HD, inner = DI."""
    return {
        "conv.weight": (4, channels),
        "conv.bias": (channels,),
        "dt_bias": (heads,),
        "A_log": (heads,),
        "D": (heads,),
        "gate_norm.weight": (inner,),
    }
