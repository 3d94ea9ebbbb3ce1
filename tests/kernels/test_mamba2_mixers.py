"""Mamba-2 mixers: gradients in float64, the last row against all rows, extreme inputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import mamba2_last, mamba2_last_bwd, mamba2_mixer, mamba2_mixer_bwd
from kernels.vectors import mixer_vectors, place
from tests.kernels.net_pairs import (
    EPS,
    Pair,
    check_gradients,
    output_weights,
    run_backward,
    run_forward,
    vectors,
)

# (windows, K, N, heads, head size); K = 4 is the shortest window, 64 the longest chunk.
SIZES = [(3, 7, 5, 2, 6), (2, 4, 3, 1, 8), (1, 64, 4, 4, 4), (5, 16, 16, 1, 64)]
NAMES = {  # of the vector parameters: in the arena -> in the kernels
    "conv.weight": "conv_weight",
    "conv.bias": "conv_bias",
    "dt_bias": "dt_bias",
    "A_log": "a_log",
    "D": "d_skip",
    "gate_norm.weight": "norm_weight",
}


def parameters(rng, n, heads, p):
    shapes = mixer_vectors(2 * n + heads * p, heads, heads * p)
    out = {NAMES[k]: rng.uniform(-0.7, 0.7, s) for k, s in shapes.items()}
    out["a_log"] = rng.uniform(-1, 1, heads)
    return shapes, out


def all_rows(r, k, n, heads, p, seed=0, more=0) -> Pair:
    """`more`: columns of y behind the mixer's own."""
    rng = np.random.default_rng(seed)
    shapes, inputs = parameters(rng, n, heads, p)
    inner, width = heads * p, 2 * heads * p + 2 * n + heads
    inputs["zcbxdt"] = rng.standard_normal((r, k, width))

    def grads(out):
        tensors = vectors(out["partial"], shapes)
        return {"zcbxdt": out["dzcbxdt"]} | {NAMES[k]: v for k, v in tensors.items()}

    outs = {"dzcbxdt": (r, k, width), "partial": (r, place(shapes)[1]), "row_dot": (r, k)}
    before = {"y": rng.standard_normal((r, k, inner + more))}
    return Pair(mamba2_mixer.KERNEL, mamba2_mixer_bwd.KERNEL, inputs, outs, {"y": "dy"}, grads, before)


def last_row(r, k, n, heads, p, seed=0) -> Pair:
    rng = np.random.default_rng(seed)
    shapes, inputs = parameters(rng, n, heads, p)
    inner, width = heads * p, heads * p + n + heads
    inputs |= {
        "bxdt": rng.standard_normal((r, k, width)),
        "c": rng.standard_normal((r, 4, n)),
        "z": rng.standard_normal((r, inner)),
    }

    def grads(out):
        tensors = vectors(out["partial"], shapes)
        own = {"bxdt": out["dbxdt"], "c": out["dc"], "z": out["dz"]}
        return own | {NAMES[k]: v for k, v in tensors.items()}

    outs = {"y": (r, inner), "partial": (r, place(shapes)[1])}
    outs |= {"dbxdt": (r, k, width), "dc": (r, 4, n), "dz": (r, inner)}
    return Pair(mamba2_last.KERNEL, mamba2_last_bwd.KERNEL, inputs, outs, {"y": "dy"}, grads, {})


@pytest.mark.parametrize("make", [all_rows, last_row])
@pytest.mark.parametrize("size", SIZES)
def test_gradients(make, size):
    check_gradients(make(*size))


def both(r, k, n, heads, p, seed) -> tuple[Pair, Pair]:
    """The same in_proj output and parameters for both kernels."""
    full = all_rows(r, k, n, heads, p, seed)
    last, x, inner = last_row(r, k, n, heads, p, seed), full.inputs["zcbxdt"], heads * p
    last.inputs |= {name: full.inputs[name] for name in NAMES.values()}
    last.inputs["z"] = x[:, -1, :inner].copy()
    last.inputs["c"] = x[:, -4:, inner : inner + n].copy()
    last.inputs["bxdt"] = x[:, :, inner + n :].copy()
    return full, last


@settings(max_examples=25, deadline=None)
@given(
    r=st.integers(1, 4),
    k=st.integers(4, 64),
    n=st.integers(1, 9),
    heads=st.integers(1, 4),
    p=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_last_row_equals_the_full_mixer(r, k, n, heads, p, seed):
    full, last = both(r, k, n, heads, p, seed)
    all_kept, last_kept = run_forward(full), run_forward(last)
    np.testing.assert_allclose(last_kept["y"], all_kept["y"][:, -1], rtol=1e-9, atol=1e-12)
    dy = output_weights(last)
    spread = np.zeros_like(all_kept["y"])
    spread[:, -1] = dy["y"]
    want, _ = run_backward(full, all_kept, {"y": spread})
    got, _ = run_backward(last, last_kept, dy)
    inner, dx = heads * p, want.pop("zcbxdt")
    np.testing.assert_allclose(got.pop("z"), dx[:, -1, :inner], rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(got.pop("c"), dx[:, -4:, inner : inner + n], rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(got.pop("bxdt"), dx[:, :, inner + n :], rtol=1e-8, atol=1e-11)
    assert (dx[:, :-1, :inner] == 0).all() and (dx[:, :-4, inner : inner + n] == 0).all()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-8, atol=1e-11, err_msg=name)


def test_row_dot_is_the_gradient_of_a_factor_of_the_row():
    pair = all_rows(2, 7, 3, 2, 5)
    weights = output_weights(pair)
    _, out = run_backward(pair, run_forward(pair), weights)
    x, numeric = pair.inputs["zcbxdt"].copy(), np.zeros((2, 7))
    for row in np.ndindex(2, 7):
        for sign in (1, -1):
            pair.inputs["zcbxdt"] = x.copy()
            pair.inputs["zcbxdt"][row] *= 1 + sign * EPS
            numeric[row] += sign * (run_forward(pair)["y"] * weights["y"]).sum() / (2 * EPS)
    np.testing.assert_allclose(out["row_dot"], numeric, rtol=1e-5, atol=1e-7)


def test_columns_behind_the_mixers_keep_their_values():
    wide, inner = all_rows(2, 9, 4, 2, 5, more=3), 10
    y = run_forward(wide)["y"]
    np.testing.assert_allclose(y[..., :inner], run_forward(all_rows(2, 9, 4, 2, 5))["y"], rtol=1e-12)
    np.testing.assert_array_equal(y[..., inner:], wide.extra["y"][..., inner:])


def test_rows_never_see_the_future():
    pair = all_rows(2, 9, 4, 2, 5)
    before = run_forward(pair)["y"]
    pair.inputs["zcbxdt"][:, 5:] += 3
    after = run_forward(pair)["y"]
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).all()


@pytest.mark.parametrize("make", [all_rows, last_row])
@pytest.mark.parametrize("scale", [0.0, 100.0])
def test_extreme_inputs_stay_finite_in_float32(make, scale):
    """in_proj reads rows of unit RMS, so its outputs are far below 100; nothing overflows on the way there."""
    pair = make(2, 16, 4, 2, 4)
    for name in set(pair.inputs) - set(NAMES.values()):
        pair.inputs[name] *= scale
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        kept = run_forward(pair, np.float32)
        _, out = run_backward(pair, kept, output_weights(pair), np.float32)
    assert np.isfinite(kept["y"]).all() and all(np.isfinite(v).all() for v in out.values())


def test_gate_multiplies_before_the_norm():
    """A gate that scales a whole row by a constant drops out of the norm; after the norm it would not."""
    pair = last_row(2, 5, 3, 1, 8)
    pair.inputs["z"][...] = 3.0
    small = run_forward(pair)["y"]
    pair.inputs["z"][...] = 6.0
    np.testing.assert_allclose(run_forward(pair)["y"], small, rtol=1e-3)
