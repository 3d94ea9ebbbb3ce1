"""The normalising kernels and the small ones between GEMMs: gradients, and what they do by definition."""

import jax
import numpy as np
import pytest

from kernels import (
    bias_rmsnorm_bwd,
    column_sum,
    encoding_norm,
    encoding_norm_bwd,
    residual_rmsnorm,
    residual_rmsnorm_bwd,
    rmsnorm,
    window_tail,
    window_tail_bwd,
)
from kernels.vectors import PAD, padded, place
from tests.kernels.net_pairs import EPS, Pair, check_gradients, run_forward, vectors
from trainer.device.base import NumpyDevice

R, K, D = 3, 5, 12


def embedding_pair(rows: int) -> Pair:
    """`rows` = J, the rows that the skip connection's gradient reaches; here it is zero and tested apart."""
    rng = np.random.default_rng(0)
    inputs = {"u": rng.standard_normal((R, K, D)), "weight": rng.standard_normal(D)}

    def grads(out):
        tensors = vectors(out["partial"], {"bias": (D,), "weight": (D,)})
        return {"u": out["du"], "weight": tensors["weight"]}

    shapes = {"n": (R, K, D), "rstd": (R, K), "du": (R, K, D), "partial": (R, 2 * padded(D))}
    extra = {"dres": np.zeros((R, rows, D))}
    return Pair(rmsnorm.KERNEL, bias_rmsnorm_bwd.KERNEL, inputs, shapes, {"n": "dn"}, grads, extra)


def residual_pair(rows: int) -> Pair:
    rng = np.random.default_rng(1)
    names = ("base", "delta")
    inputs = {name: rng.standard_normal((R, K, D)) for name in names} | {"weight": rng.standard_normal(D)}
    shapes = {"res": (R, K, D), "n": (R, K, D), "rstd": (R, K), "du": (R, K, D), "partial": (R, D)}

    def grads(out):
        return {"base": out["du"], "delta": out["du"], "weight": out["partial"].sum(axis=0)}

    extra = {"dres": np.zeros((R, rows, D))}
    return Pair(residual_rmsnorm.KERNEL, residual_rmsnorm_bwd.KERNEL, inputs, shapes, {"n": "dn"}, grads, extra)


def encoding_pair() -> Pair:
    rng = np.random.default_rng(2)
    inputs = {"base": rng.standard_normal((R, K, D)), "delta": rng.standard_normal((R, D))}
    inputs["weight"] = rng.standard_normal(D)
    shapes = {"res": (R, D), "enc": (R, D), "rstd": (R,), "dres": (R, 1, D), "partial": (R, D)}

    def grads(out):
        below = np.zeros((R, K, D))
        below[:, -1:] = out["dres"]
        return {"base": below, "delta": out["dres"][:, 0], "weight": out["partial"].sum(axis=0)}

    return Pair(encoding_norm.KERNEL, encoding_norm_bwd.KERNEL, inputs, shapes, {"enc": "dcat"}, grads, {})


PAIRS = {
    "embedding": lambda: embedding_pair(K),
    "residual": lambda: residual_pair(K),
    "residual, last row": lambda: residual_pair(1),
    "encoding": encoding_pair,
}


@pytest.mark.parametrize("name", PAIRS)
def test_gradients(name):
    check_gradients(PAIRS[name]())


def test_equals_jax_variance_of_the_norm():
    """Against jax.nn's own primitive: x / sqrt(mean of squares + eps) through `jax.nn.standardize` around zero mean."""
    pair = embedding_pair(K)
    u = pair.inputs["u"]
    with jax.enable_x64(True):
        square = (u**2).mean(axis=-1, keepdims=True)
        want = jax.nn.standardize(u, mean=np.zeros_like(square), variance=square, epsilon=EPS)
    got = run_forward(pair)
    np.testing.assert_allclose(got["n"], np.asarray(want) * pair.inputs["weight"], rtol=1e-12)


@pytest.mark.parametrize("pair", [embedding_pair, residual_pair])
@pytest.mark.parametrize("rows", [1, K])
def test_skip_gradient_reaches_the_last_rows_only(pair, rows):
    made, rng = pair(rows), np.random.default_rng(3)
    stream = "u" if pair is embedding_pair else "res"
    kept = run_forward(made)

    def backward(dres):
        out = {"du": np.full((R, K, D), np.nan), "partial": np.full(made.shapes["partial"], np.nan)}
        dn = np.ones((R, K, D))
        saved = kept[stream], kept["rstd"], kept["weight"]
        NumpyDevice().launch(made.backward, dn, dres, *saved, out["du"], out["partial"])
        return out

    dres = rng.standard_normal((R, rows, D))
    with_skip, without = backward(dres), backward(np.zeros((R, rows, D)))
    difference = with_skip["du"] - without["du"]
    np.testing.assert_allclose(difference[:, -rows:], dres, rtol=1e-12)
    assert (difference[:, :-rows] == 0).all()
    if pair is embedding_pair:
        np.testing.assert_allclose(with_skip["partial"][:, :D], with_skip["du"].sum(axis=1), rtol=1e-12)


def test_window_tail_and_its_transpose():
    """<tail(n), t> + <last(n), l> = <n, tail_bwd(t, l)> for random n, t, l: the definition of an adjoint."""
    rng, device = np.random.default_rng(4), NumpyDevice()
    n, t, of_last = (rng.standard_normal(shape) for shape in ((R, K, D), (R, 4, D), (R, D)))
    tail, last = np.full((R, 4, D), np.nan), np.full((R, D), np.nan)
    device.launch(window_tail.KERNEL, n, tail, last)
    np.testing.assert_array_equal(tail, n[:, -4:])
    np.testing.assert_array_equal(last, n[:, -1])
    dn = np.zeros((R, K, D))
    device.launch(window_tail_bwd.KERNEL, t, of_last, dn)
    assert (tail * t).sum() + (last * of_last).sum() == pytest.approx((n * dn).sum(), rel=1e-12)
    device.launch(window_tail_bwd.KERNEL, t, of_last, dn)
    np.testing.assert_allclose(dn[:, -4:-1], 2 * t[:, :3], rtol=1e-12)  # it adds


def test_column_sum_is_exact_on_integers():
    x, out = np.arange(70.0).reshape(10, 7), np.full(7, np.nan)
    NumpyDevice().launch(column_sum.KERNEL, x, out)
    assert out.tolist() == [sum(range(c, 70, 7)) for c in range(7)]


def test_vectors_are_padded_and_in_order():
    where, size = place({"a": (3, 2), "b": (PAD,), "c": (PAD + 1,)})
    assert where == {"a": slice(0, 6), "b": slice(64, 128), "c": slice(128, 193)} and size == 256


@pytest.mark.parametrize("kept", [1, 3, K])
def test_the_residual_stream_is_kept_for_the_last_rows(kept):
    rng, device = np.random.default_rng(5), NumpyDevice()
    base, delta, weight = rng.standard_normal((R, K, D)), rng.standard_normal((R, K, D)), rng.standard_normal(D)
    res, n, rstd = np.full((R, kept, D), np.nan), np.full((R, K, D), np.nan), np.full((R, K), np.nan)
    device.launch(residual_rmsnorm.KERNEL, base, delta, weight, EPS, res, n, rstd)
    np.testing.assert_array_equal(res, (base + delta)[:, K - kept :])
    np.testing.assert_allclose(n, (base + delta) * rstd[..., None] * weight, rtol=1e-12)
