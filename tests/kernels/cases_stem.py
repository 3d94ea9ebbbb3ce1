"""Cases of the stem: what stands for embedding, first norm and first in_proj."""

from __future__ import annotations

from typing import Any

from kernels import stem_weights
from kernels.stem_weights import stem_columns
from tests.kernels.registry import around, case

EPS = 1e-5
# (D, F, DI): the profiles' sizes, a width of more than one tile, and sizes that fit nothing.
SHAPES = {
    "the seed profile": (256, 56, 512),
    "the small profile": (128, 56, 256),
    "many features": (40, 150, 80),
    "odd sizes": (33, 7, 22),
    "one of each": (1, 1, 1),
}


def weights(e: int, d: int, f: int, inner: int, rng: Any) -> dict[str, Any]:
    x = stem_columns(f)
    return {
        "in_proj": rng.normal(0, d**-0.5, (e, d)),
        "norm": rng.uniform(0.5, 1.5, d),
        "embed": rng.normal(0, f**-0.5, (d, f)),
        "DI": inner,
        "X": x,
        "Y": inner + x,
    }


for label, (d, f, inner) in SHAPES.items():
    rows = around(stem_weights.ROWS, 41)

    @case(stem_weights, rows if d < 100 else rows[2:], label)
    def folding(e: int, rng: Any, d: int = d, f: int = f, inner: int = inner) -> dict[str, Any]:
        return weights(e, d, f, inner, rng)
