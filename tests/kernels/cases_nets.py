"""Cases of the network kernels. The size is the number of windows R unless said otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels import (
    bias_rmsnorm_bwd,
    carry_hidden,
    cfc_gate,
    cfc_gate_bwd,
    cfc_input,
    column_sum,
    encoding_norm,
    encoding_norm_bwd,
    gather_encodings,
    gather_windows,
    lecun_tanh,
    lecun_tanh_bwd,
    mamba2_last,
    mamba2_last_bwd,
    mamba2_mixer,
    mamba2_mixer_bwd,
    residual_rmsnorm,
    residual_rmsnorm_bwd,
    rmsnorm,
    rmsnorm_tail,
    scatter_rows,
    window_tail,
    window_tail_bwd,
)
from kernels.vectors import mixer_vectors, padded, place
from tests.kernels.registry import around, case, edges

EPS = 1e-5
P = 8  # private state values
NORM_ROWS = around(64, 2049)  # times K = 4 rows each: 64 windows are 256 rows
GATE_ROWS = around(8, 8193)  # times H = 32: 8 rows are a block; times 4 H, 8193 are above a grid
FEW = (1, 7, 8, 9)  # windows of the mixers: heavy ones, so there is no size above a grid


def rstd_of(u: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt((u**2).mean(axis=-1) + EPS)


@case(rmsnorm, NORM_ROWS)
@case(rmsnorm_tail, NORM_ROWS)
def norm(r: int, rng: Any, k: int = 4, d: int = 64) -> dict[str, Any]:
    return {"R": r, "K": k, "D": d, "eps": EPS}


@case(rmsnorm, FEW, "odd width")
@case(rmsnorm_tail, FEW, "odd width")
def norm_odd(r: int, rng: Any) -> dict[str, Any]:
    return norm(r, rng, k=5, d=33)


@case(rmsnorm, (2,), "wide")
def norm_wide(r: int, rng: Any) -> dict[str, Any]:
    return norm(r, rng, k=32, d=1025)


@case(rmsnorm, (9,), "seed profile")
@case(rmsnorm_tail, (9,), "seed profile")
def norm_seed(r: int, rng: Any) -> dict[str, Any]:
    return norm(r, rng, k=32, d=256)


@case(residual_rmsnorm, NORM_ROWS)
def residual(r: int, rng: Any, k: int = 4, d: int = 64, j: int = 4) -> dict[str, Any]:
    return norm(r, rng, k, d) | {"J": j}


@case(residual_rmsnorm, FEW, "odd width, last row kept")
def residual_odd(r: int, rng: Any) -> dict[str, Any]:
    return residual(r, rng, k=5, d=33, j=1)


@case(residual_rmsnorm, (2,), "wide")
def residual_wide(r: int, rng: Any) -> dict[str, Any]:
    return residual(r, rng, k=32, d=1025, j=32)


@case(residual_rmsnorm, (9,), "seed profile, last row kept")
def residual_seed(r: int, rng: Any) -> dict[str, Any]:
    return residual(r, rng, k=32, d=256, j=1)


@case(encoding_norm, NORM_ROWS)
def encoding(r: int, rng: Any, j: int = 4, d: int = 64) -> dict[str, Any]:
    return {"R": r, "J": j, "D": d, "eps": EPS}


@case(encoding_norm, FEW, "odd width")
def encoding_odd(r: int, rng: Any) -> dict[str, Any]:
    return encoding(r, rng, j=5, d=33)


@case(encoding_norm, (2,), "wide, one row")
def encoding_wide(r: int, rng: Any) -> dict[str, Any]:
    return encoding(r, rng, j=1, d=1025)


@case(encoding_norm, (9,), "seed profile")
def encoding_seed(r: int, rng: Any) -> dict[str, Any]:
    return encoding(r, rng, j=32, d=256)


def norm_bwd(r: int, rng: Any, stream: str, v: int, k: int = 4, d: int = 64, j: int = 4) -> dict[str, Any]:
    u = rng.normal(0, 2, (r, k, d))
    return {stream: u, "rstd": rstd_of(u), "J": j} | ({"V": v} if v else {})


@case(bias_rmsnorm_bwd, NORM_ROWS)
def bias_bwd(r: int, rng: Any) -> dict[str, Any]:
    return norm_bwd(r, rng, "u", 2 * padded(64))


@case(bias_rmsnorm_bwd, FEW, "odd width, skip into the last row")
def bias_bwd_odd(r: int, rng: Any) -> dict[str, Any]:
    return norm_bwd(r, rng, "u", 2 * padded(33), k=5, d=33, j=1)


@case(bias_rmsnorm_bwd, (9,), "seed profile")
def bias_bwd_seed(r: int, rng: Any) -> dict[str, Any]:
    return norm_bwd(r, rng, "u", 2 * padded(256), k=32, d=256, j=32)


@case(bias_rmsnorm_bwd, (2,), "wide")
def bias_bwd_wide(r: int, rng: Any) -> dict[str, Any]:
    return norm_bwd(r, rng, "u", 2 * padded(1025), k=32, d=1025, j=32)


@case(residual_rmsnorm_bwd, NORM_ROWS)
def residual_bwd(r: int, rng: Any) -> dict[str, Any]:
    return norm_bwd(r, rng, "res", 0)


@case(residual_rmsnorm_bwd, FEW, "odd width, skip into the last row")
def residual_bwd_odd(r: int, rng: Any) -> dict[str, Any]:
    return norm_bwd(r, rng, "res", 0, k=5, d=33, j=1)


@case(residual_rmsnorm_bwd, (9,), "seed profile, skip into the last row")
def residual_bwd_seed(r: int, rng: Any) -> dict[str, Any]:
    return norm_bwd(r, rng, "res", 0, k=32, d=256, j=1)


@case(encoding_norm_bwd, around(256, 8193))
def encoding_bwd(r: int, rng: Any, d: int = 64) -> dict[str, Any]:
    res = rng.normal(0, 2, (r, d))
    return {"res": res, "rstd": rstd_of(res), "X": d + P + 16 + 4}


@case(encoding_norm_bwd, FEW, "odd width")
def encoding_bwd_odd(r: int, rng: Any) -> dict[str, Any]:
    return encoding_bwd(r, rng, 33)


@case(encoding_norm_bwd, (9,), "seed profile")
def encoding_bwd_seed(r: int, rng: Any) -> dict[str, Any]:
    return encoding_bwd(r, rng, 256)


@case(encoding_norm_bwd, (2,), "wide")
def encoding_bwd_wide(r: int, rng: Any) -> dict[str, Any]:
    return encoding_bwd(r, rng, 516)


def mixer(rng: Any, k: int, n: int, heads: int, p: int) -> dict[str, Any]:
    """Parameters near their initial values (dt from 0.001 to 0.1, A from 1 to 16), as Mamba-2 has them."""
    inner = heads * p
    channels = 2 * n + inner
    dt = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), heads))
    return {
        "K": k,
        "DI": inner,
        "conv_weight": rng.uniform(-0.5, 0.5, (4, channels)),
        "conv_bias": rng.uniform(-0.5, 0.5, channels),
        "dt_bias": dt + np.log(-np.expm1(-dt)),
        "a_log": np.log(rng.uniform(1, 16, heads)),
        "d_skip": rng.uniform(0.5, 1.5, heads),
        "norm_weight": rng.uniform(0.5, 1.5, inner),
        "eps": EPS,
    }


def mixer_rows(r: int, rng: Any, n: int, heads: int, p: int, k: int, backward: bool) -> dict[str, Any]:
    out = mixer(rng, k, n, heads, p) | {"R": r, "E": 2 * heads * p + 2 * n + heads}
    return out | ({"V": place(mixer_vectors(2 * n + heads * p, heads, heads * p))[1]} if backward else {})


def all_rows(r: int, rng: Any, n: int, heads: int, p: int, k: int, backward: bool, tf32: int = 0) -> dict[str, Any]:
    return mixer_rows(r, rng, n, heads, p, k, backward) | {"tf32": tf32}


def forward_rows(
    r: int, rng: Any, n: int, heads: int, p: int, k: int, backward: bool = False, tf32: int = 0, more: int = 0
) -> dict[str, Any]:
    return all_rows(r, rng, n, heads, p, k, backward, tf32) | {"Y": heads * p + more}


@case(mamba2_mixer, FEW[::3], "the seed profile, columns behind")
def wider(r: int, rng: Any) -> dict[str, Any]:
    return forward_rows(r, rng, 64, 8, 64, 32, more=64)


@case(mamba2_mixer, FEW[::3], "the small profile, an odd number of columns behind")
def wider_odd(r: int, rng: Any) -> dict[str, Any]:
    return forward_rows(r, rng, 64, 4, 64, 32, more=57)


@case(mamba2_mixer, FEW, "odd sizes, columns behind")
def wider_any(r: int, rng: Any) -> dict[str, Any]:
    return forward_rows(r, rng, 5, 3, 22, 4, more=7)


def last_row(r: int, rng: Any, n: int, heads: int, p: int, k: int, backward: bool) -> dict[str, Any]:
    return mixer_rows(r, rng, n, heads, p, k, backward) | {"N": n, "E": n + heads * p + heads}


# (N, heads, head size, K): the demo's, the seed and small profiles', the small one's with the longest window, an odd
# window of even sizes, the shortest window of odd sizes.
for label, shape in {
    "": (16, 1, 64, 16),
    "the seed profile": (64, 8, 64, 32),
    "the small profile": (64, 4, 64, 32),
    "the longest window": (64, 4, 64, 64),
    "an odd window, wide heads": (6, 2, 100, 9),
    "the shortest window, odd sizes": (5, 3, 22, 4),
}.items():
    sizes = FEW[::3] if shape[-1] >= 32 else FEW
    for module, make, backward in (
        (mamba2_mixer, forward_rows, False),
        (mamba2_mixer_bwd, all_rows, True),
        (mamba2_last, last_row, False),
        (mamba2_last_bwd, last_row, True),
    ):

        @case(module, sizes, label)
        def any_mixer(
            r: int, rng: Any, make: Any = make, shape: Any = shape, backward: bool = backward
        ) -> dict[str, Any]:
            return make(r, rng, *shape, backward)


for label, heads in {"the seed profile in TF32": 8, "the small profile in TF32": 4}.items():
    for module, make, backward in ((mamba2_mixer, forward_rows, False), (mamba2_mixer_bwd, all_rows, True)):

        @case(module, FEW[::3], label, tolerance=1e-3)
        def mixer_in_tf32(
            r: int, rng: Any, make: Any = make, heads: int = heads, backward: bool = backward
        ) -> dict[str, Any]:
            return make(r, rng, 64, heads, 64, 32, backward, tf32=1)


@case(cfc_input, edges(64))
def cell_input(r: int, rng: Any) -> dict[str, Any]:
    return {"R": r, "D": 32, "P": P, "H": 20, "X": 32 + P + 20 + 4}


@case(cfc_input, FEW, "odd widths")
def cell_input_odd(r: int, rng: Any) -> dict[str, Any]:
    return {"R": r, "D": 33, "P": P, "H": 21, "X": 33 + P + 21 + 4}


@case(cfc_input, (3,), "wide")
def cell_input_wide(r: int, rng: Any) -> dict[str, Any]:
    return {"R": r, "D": 512, "P": P, "H": 128, "X": 512 + P + 128 + 4}


@case(cfc_gate, GATE_ROWS)
def gate(r: int, rng: Any, h: int = 32) -> dict[str, Any]:
    ts = np.log1p(rng.exponential(size=r))
    return {"R": r, "M4": 4 * h, "ts": ts, "H": h, "G3": 3 * h, "H4": h + 4}


@case(cfc_gate, FEW, "odd width")
def gate_odd(r: int, rng: Any) -> dict[str, Any]:
    return gate(r, rng, 33)


@case(cfc_gate_bwd, GATE_ROWS)
def gate_bwd(r: int, rng: Any, h: int = 32) -> dict[str, Any]:
    f, s = np.tanh(rng.normal(size=(r, 2 * h))), 1 / (1 + np.exp(rng.normal(size=(r, h))))
    return {"gates": np.concatenate([f, s], 1), "ts": np.log1p(rng.exponential(size=r)), "H4": h + 4, "M4": 4 * h}


@case(cfc_gate_bwd, FEW, "odd width")
def gate_bwd_odd(r: int, rng: Any) -> dict[str, Any]:
    return gate_bwd(r, rng, 33)


@case(lecun_tanh, edges(32))
def tanh(r: int, rng: Any, u: int = 32) -> dict[str, Any]:
    return {"R": r, "U": u, "U4": u + 4}


@case(lecun_tanh, FEW, "odd width")
def tanh_odd(r: int, rng: Any) -> dict[str, Any]:
    return tanh(r, rng, 33)


@case(lecun_tanh_bwd, edges(32))
def tanh_bwd(r: int, rng: Any, u: int = 32) -> dict[str, Any]:
    return {"v": 1.7159 * np.tanh(0.666 * rng.normal(size=(r, u + 4))), "U": u}


@case(lecun_tanh_bwd, FEW, "odd width")
def tanh_bwd_odd(r: int, rng: Any) -> dict[str, Any]:
    return tanh_bwd(r, rng, 33)


@case(window_tail, edges(4 * 16))
@case(window_tail_bwd, edges(4 * 16))
def tail(r: int, rng: Any) -> dict[str, Any]:
    return {"R": r, "K": 5, "D": 16}


@case(window_tail, FEW, "odd width")
@case(window_tail_bwd, FEW, "odd width")
def tail_odd(r: int, rng: Any) -> dict[str, Any]:
    return {"R": r, "K": 6, "D": 33}


@case(column_sum, around(256, 8193))
def sum_rows(n: int, rng: Any) -> dict[str, Any]:
    return {"N": n, "C": 130}


@case(column_sum, around(256, 2049), "16 bytes a thread")
def sum_rows_of_pieces(n: int, rng: Any) -> dict[str, Any]:
    return {"N": n, "C": 132}


@case(column_sum, (33, 1025), "more columns than fill a GPU by eights")
def sum_many_columns(n: int, rng: Any) -> dict[str, Any]:
    return {"N": n, "C": 2052}


@case(column_sum, around(256, 8193), "columns")
def sum_columns(c: int, rng: Any) -> dict[str, Any]:
    return {"N": 33, "C": c}


@case(scatter_rows, edges(8))
def scatter(r: int, rng: Any, d: int = 8) -> dict[str, Any]:
    """The last two rows go to the same place and are equal: how a chunk that is not full is padded."""
    rows, index = rng.normal(size=(r, d)), rng.permutation(r + 40)[:r]
    rows[-1], index[-1] = rows[max(r - 2, 0)], index[max(r - 2, 0)]
    return {"rows": rows, "index": index, "V": r + 40}


@case(scatter_rows, FEW, "odd width")
def scatter_odd(r: int, rng: Any) -> dict[str, Any]:
    return scatter(r, rng, 33)


@case(gather_encodings, edges(8))
def encodings(b: int, rng: Any, d: int = 8) -> dict[str, Any]:
    base, v = 7, 500
    return {"row": rng.integers(base, base + v, b), "base": base, "V": v, "D": d, "N": base + v + 3}


@case(gather_encodings, FEW, "odd width")
def encodings_odd(b: int, rng: Any) -> dict[str, Any]:
    return encodings(b, rng, 33)


@case(carry_hidden, edges(8))
def hidden(b: int, rng: Any) -> dict[str, Any]:
    return {"B": b, "H": 8, "valid": rng.random(b) < 0.8}


@case(gather_windows, edges(4 * 8))
def windows(r: int, rng: Any, n: int = 500, k: int = 4, f: int = 8, first: int = 0, y: int = 0) -> dict[str, Any]:
    """Features a few standard deviations wide, so that some values are clipped."""
    std = rng.uniform(0.2, 2, f)
    features = rng.normal(0, 1, (n, f)) * std * rng.choice([1, 20], (n, 1), p=[0.9, 0.1])
    rows = rng.integers(k - 1, n, r)
    return {"rows": rows, "features": features, "std": std, "K": k, "first": first, "Y": y or first + f}


@case(gather_windows, (1, 255), "the widest market")
def windows_wide(r: int, rng: Any) -> dict[str, Any]:
    return windows(r, rng, n=5000, k=64, f=57)


# (K, F, first, Y): the seed profile's, and where the row ends with the 1, or 16 bytes hold parts of two columns.
for label, (k, f, first, y) in {
    "behind the seed's mixer": (32, 56, 512, 576),
    "a 1 at the end": (4, 7, 8, 16),
    "odd sizes": (3, 5, 3, 11),
    "odd place": (4, 8, 6, 16),
}.items():

    @case(gather_windows, FEW, label)
    def windows_behind(r: int, rng: Any, k: int = k, f: int = f, first: int = first, y: int = y) -> dict[str, Any]:
        return windows(r, rng, 500, k, f, first, y)
