"""Cases of the stem: what stands for embedding, first norm and first in_proj."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from kernels import stem_gram, stem_project, stem_scale, stem_weights, stem_weights_bwd
from kernels.stem_weights import stem_columns
from tests.kernels.registry import around, case

EPS = 1e-5
TF32 = 1e-3  # of a product's largest value: factors are off by 2^-11, sums of 64 terms by half of this at most
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


def rows_of(r: int, k: int, f: int, before: int, rng: Any) -> np.ndarray:
    """[R, K, before + X]: x~, normalised features and a 1, after `before` columns of something else."""
    x = np.zeros((r, k, before + stem_columns(f)))
    x[..., : before + f] = rng.normal(size=(r, k, before + f))
    x[..., before + f] = 1
    return x


def gram_of(f: int, d: int, rng: Any) -> np.ndarray:
    """We~^T We~, symmetric to the last bit."""
    stem = np.zeros((d, stem_columns(f)))
    stem[:, : f + 1] = rng.normal(0, f**-0.5, (d, f + 1))
    gram = stem.T @ stem
    return np.tril(gram) + np.tril(gram, -1).T


# (K, F, columns before x~)
ROWS = {
    "": (4, 56, 8),
    "the seed profile": (32, 56, 512),
    "nothing before, no padding": (3, 63, 0),
    "odd place": (3, 60, 5),
    "few features": (4, 8, 6),
    "many features": (5, 150, 3),
}
for label, (k, f, before) in ROWS.items():
    windows = (*around(32, 8449)[::2], 33) if not label else (1, 9)

    @case(stem_scale, windows, label)
    def scaling(r: int, rng: Any, k: int = k, f: int = f, before: int = before) -> dict[str, Any]:
        return {"x": rows_of(r, k, f, before, rng), "gram": gram_of(f, 96, rng), "width": 96, "eps": EPS}


# (K, F, columns before x~, E, windows). A block takes 64 rows at a time; E is an odd number of fours or an even one.
PROJECTED = {
    "": (4, 56, 8, 148, (1, 15, 16, 17, 33)),
    "the seed profile": (32, 56, 512, 1160, (1, 9)),
    "the small profile": (32, 56, 256, 644, (1, 9)),
    "few features": (5, 20, 12, 12, (1, 13)),
    "nothing before, no padding": (3, 63, 0, 36, (1, 33)),
    "one of each": (1, 1, 4, 4, (1, 2)),
}
for label, (k, f, before, e, windows) in PROJECTED.items():

    def projecting(
        r: int, rng: Any, k: int = k, f: int = f, before: int = before, e: int = e, tf32: int = 0
    ) -> dict[str, Any]:
        given = {"x": rows_of(r, k, f, before, rng), "gram": gram_of(f, 96, rng), "width": 96, "eps": EPS}
        return given | {"E": e, "tf32": tf32}

    case(stem_project, windows, label)(projecting)
    case(stem_project, windows, f"{label}, TF32".removeprefix(", "), tolerance=TF32)(partial(projecting, tf32=1))


# (K, F, P). At the seed profile a part is up to 5 windows, 160 rows: a third lot of stem_gram's.
for label, (k, f, p) in {
    "": (4, 56, 3),
    "the seed profile": (32, 56, 2),
    "more parts than windows": (5, 60, 11),
    "few features": (3, 8, 2),
    "many features": (2, 150, 1),
}.items():

    @case(stem_gram, around(14, 33) if not label else (1, 9), label)
    def products(r: int, rng: Any, k: int = k, f: int = f, p: int = p) -> dict[str, Any]:
        return {"xs": rows_of(r, k, f, 0, rng), "P": p, "Q": stem_columns(f) ** 2}


# Rows of in_proj: 192 are one round of stem_weights_bwd's warps, and the profiles have E = 1160 and 644.
for label, (d, f, inner) in SHAPES.items():
    own = {"the seed profile": (257, 1160), "the small profile": (193, 644), "one of each": (1, 2)}  # few: sums cancel
    rows = own.get(label, around(192, 33))

    @case(stem_weights_bwd, rows, label)
    def unfolding(e: int, rng: Any, d: int = d, f: int = f, inner: int = inner) -> dict[str, Any]:
        x, given = stem_columns(f), weights(e, d, f, inner, rng)
        terms = rng.normal(size=(x, 2 * x))
        return given | {"gram_sum": (terms @ terms.T).ravel() * rng.choice([-1, 1]) * min(1, d / 32)}
