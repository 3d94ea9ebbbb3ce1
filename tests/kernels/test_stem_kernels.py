"""The stem against what it stands for: embedding, norm and in_proj one by one, and JAX's gradients of those."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import column_sum, stem_gram, stem_scale, stem_weights, stem_weights_bwd
from kernels.stem_weights import stem_columns
from trainer.device.base import NumpyDevice

EPS = 1e-5
DEVICE = NumpyDevice()

# R, K, F, D, E, DI, P: padded features, none to pad, one number of each.
SIZES = [(5, 3, 9, 12, 14, 10, 3), (3, 4, 7, 6, 5, 4, 3), (1, 1, 1, 1, 1, 1, 1), (2, 5, 56, 16, 21, 8, 2)]


class Stem:
    """One layer's beginning in float64: random weights and rows, and the loss <proj, for_proj> + <res1, for_res>, with
    y = tanh(proj mix) for a mixer."""

    def __init__(self, R: int, K: int, F: int, D: int, E: int, DI: int, P: int) -> None:
        rng = np.random.default_rng(R + F)
        self.x, self.parts, self.inner = rng.normal(size=(R, K, F)), P, DI
        self.weights = {
            "in_proj": rng.normal(size=(E, D)),
            "norm": rng.uniform(0.5, 1.5, D),
            "embed": rng.normal(size=(D, F)),
            "bias": rng.normal(size=D),
            "out_proj": rng.normal(size=(D, DI)),
        }
        self.mix = rng.normal(size=(E, DI)) / E
        self.for_proj, self.for_res = rng.normal(size=(R, K, E)), rng.normal(size=(R, K, D))
        X = stem_columns(F)
        shapes = {"folded": (E, X), "scaled": (D, X), "wide": (D, DI + X), "gram": (X, X)}
        self.made = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        DEVICE.launch(stem_weights.KERNEL, *self.weights.values(), *self.made.values())
        self.rows = np.zeros((R, K, DI + X))  # [y | x~]
        self.rows[..., DI : DI + F], self.rows[..., DI + F] = self.x, 1
        self.xs = np.full((R, K, X), np.nan)
        DEVICE.launch(stem_scale.KERNEL, self.rows, self.made["gram"], D, EPS, self.xs)

    def unfolded(self, weights: dict[str, Any]) -> tuple[Any, Any]:
        """proj, res1 as a network without a stem computes them."""
        w = weights
        res = jnp.asarray(self.x) @ w["embed"].T + w["bias"]
        n = w["norm"] * res / jnp.sqrt((res**2).mean(axis=-1, keepdims=True) + EPS)
        proj = n @ w["in_proj"].T
        return proj, res + jnp.tanh(proj @ self.mix) @ w["out_proj"].T

    def folded(self) -> tuple[np.ndarray, np.ndarray]:
        """proj, res1 by the kernels; fills y."""
        proj = self.xs @ self.made["folded"].T
        self.rows[..., : self.inner] = np.tanh(proj @ self.mix)
        return proj, self.rows @ self.made["wide"].T

    def loss(self, weights: dict[str, Any]) -> Any:
        proj, res = self.unfolded(weights)
        return (proj * self.for_proj).sum() + (res * self.for_res).sum()

    def gradients(self) -> dict[str, np.ndarray]:
        """Of the loss, by the kernels."""
        proj, _ = self.folded()
        y, x = self.rows[..., : self.inner], self.xs.shape[2]
        dwide = np.einsum("rkd,rky->dy", self.for_res, self.rows)
        dproj = self.for_proj + (self.for_res @ self.weights["out_proj"] * (1 - y**2)) @ self.mix.T
        dfolded = np.einsum("rke,rkx->ex", dproj, self.xs)
        row_dot = (dproj * proj).sum(axis=2)
        partial, gram_sum = np.full((self.parts, x * x), np.nan), np.full(x * x, np.nan)
        DEVICE.launch(stem_gram.KERNEL, self.xs, row_dot, partial)
        DEVICE.launch(column_sum.KERNEL, partial, gram_sum)
        w = self.weights
        out = {name: np.full(w[name].shape, np.nan) for name in ("embed", "bias", "norm", "out_proj")}
        given = w["in_proj"], w["norm"], w["embed"], w["bias"], dfolded, dwide, gram_sum
        DEVICE.launch(stem_weights_bwd.KERNEL, *given, *out.values())
        return out | {"in_proj": dfolded @ self.made["scaled"].T}


@pytest.fixture(params=SIZES, ids=str)
def stem(request):
    return Stem(*request.param)


def test_forward_equals_embedding_norm_and_projection(stem):
    with jax.enable_x64(True):
        want = [np.asarray(a) for a in stem.unfolded(stem.weights)]
    for ours, theirs in zip(stem.folded(), want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-11)


def test_gradients_equal_those_of_jax(stem):
    with jax.enable_x64(True):
        want = {name: np.asarray(g) for name, g in jax.grad(stem.loss)(stem.weights).items()}
    got = stem.gradients()
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        assert np.abs(gradient).max() > 0, name
        np.testing.assert_allclose(got[name], gradient, rtol=1e-9, atol=1e-10 * np.abs(gradient).max(), err_msg=name)


def test_scaled_rows_have_the_mean_square_of_the_residual_stream(stem):
    """By definition: xs = x~ / sqrt(mean((We x + b)^2) + eps)."""
    res = stem.x @ stem.weights["embed"].T + stem.weights["bias"]
    rstd = 1 / np.sqrt((res**2).mean(axis=2, keepdims=True) + EPS)
    np.testing.assert_allclose(stem.xs, stem.rows[..., stem.inner :] * rstd, rtol=1e-10)


def test_a_mean_square_that_rounding_made_negative_is_zero():
    x, xs = np.ones((1, 1, 8)), np.full((1, 1, 8), np.nan)
    DEVICE.launch(stem_scale.KERNEL, x, np.full((8, 8), -1e-9), 8, 0.25, xs)
    assert (xs == 2).all()


@pytest.mark.parametrize("parts", [1, 2, 4, 7])
def test_parts_cover_every_window_once(parts):
    """With xs a unit vector per window, a window's weight shows on the diagonal of the part that it went to."""
    xs, row_dot = np.zeros((5, 1, 8)), np.arange(1.0, 6).reshape(5, 1)
    xs[np.arange(5), 0, np.arange(5)] = 1
    partial = np.full((parts, 64), np.nan)
    DEVICE.launch(stem_gram.KERNEL, xs, row_dot, partial)
    diagonals = partial.reshape(parts, 8, 8)[:, range(8), range(8)]
    assert diagonals.sum(axis=0).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert (diagonals[:, :5] > 0).sum() == 5 and partial.sum() == 15


@pytest.mark.parametrize("features, columns", [(1, 8), (7, 8), (8, 16), (55, 56), (56, 64), (63, 64), (64, 72)])
def test_columns_are_whole_pieces(features, columns):
    assert stem_columns(features) == columns
