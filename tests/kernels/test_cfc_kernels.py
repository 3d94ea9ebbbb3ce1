"""The CfC cell's kernels: gradients, constant columns, and where no gradient may go."""

import numpy as np
import pytest

from kernels import cfc_gate, cfc_gate_bwd, cfc_input, lecun_tanh, lecun_tanh_bwd
from tests.kernels.net_pairs import (
    Pair,
    check_gradients,
    output_weights,
    run_backward,
    run_forward,
)
from trainer.device.base import NumpyDevice

R, H, U = 4, 5, 6


def gate_pair() -> Pair:
    rng = np.random.default_rng(0)
    inputs = {"maps": rng.standard_normal((R, 4 * H)), "ts": rng.uniform(0.1, 3, R)}
    shapes = {"gates": (R, 3 * H), "h": (R, H), "head": (R, H + 4), "dmaps": (R, 4 * H)}

    def grads(out):
        return {"maps": out["dmaps"]}

    return Pair(cfc_gate.KERNEL, cfc_gate_bwd.KERNEL, inputs, shapes, {"head": "dhead"}, grads, {})


def tanh_pair() -> Pair:
    inputs = {"u": np.random.default_rng(1).standard_normal((R, U))}
    shapes = {"v": (R, U + 4), "du": (R, U)}
    return Pair(lecun_tanh.KERNEL, lecun_tanh_bwd.KERNEL, inputs, shapes, {"v": "dv"}, lambda out: {"u": out["du"]}, {})


@pytest.mark.parametrize("pair", [gate_pair, tanh_pair])
def test_gradients(pair):
    check_gradients(pair())


def test_constant_columns():
    gate, tanh = run_forward(gate_pair()), run_forward(tanh_pair())
    np.testing.assert_array_equal(gate["head"][:, :H], gate["h"])
    for padded in (gate["head"], tanh["v"]):
        np.testing.assert_array_equal(padded[:, -4:], np.tile([1.0, 0, 0, 0], (R, 1)))


@pytest.mark.parametrize("pair", [gate_pair, tanh_pair])
def test_gradient_of_constants_is_not_read(pair):
    """The GEMM above leaves numbers in those columns; they belong to a 1 and three 0 that nothing may move."""
    made = pair()
    weights, kept = output_weights(made), run_forward(made)
    clean = run_backward(made, kept, weights)[1]
    for name in weights:
        weights[name][:, -4:] = np.nan
    for name, got in run_backward(made, kept, weights)[1].items():
        np.testing.assert_array_equal(got, clean[name])


def test_time_gate_by_hand():
    """ts = 0 leaves sigmoid(b); a large positive a ts selects f2, a large negative one f1."""
    pair = gate_pair()
    pair.inputs["maps"] = np.repeat([[0.5, -0.3, 50.0, 0.0]], R, axis=0).repeat(H, axis=1)
    pair.inputs["ts"] = np.array([0.0, 2.0, -2.0, 1.0])
    h = run_forward(pair)["h"][:, 0]
    f1, f2 = np.tanh(0.5), np.tanh(-0.3)
    np.testing.assert_allclose(h, [(f1 + f2) / 2, f2, f1, f2], rtol=1e-12)


def test_saturated_gates_stay_finite_in_float32():
    pair = gate_pair()
    pair.inputs["maps"] *= 1e4
    with np.errstate(all="raise", under="ignore"):
        kept = run_forward(pair, np.float32)
        _, out = run_backward(pair, kept, output_weights(pair), np.float32)
    assert np.isfinite(kept["h"]).all() and np.isfinite(out["dmaps"]).all()


def test_input_row():
    rng = np.random.default_rng(2)
    enc, private, h_prev = rng.random((R, 3)), rng.random((R, 8)), rng.random((R, H))
    cat = np.full((R, 3 + 8 + H + 4), np.nan)
    NumpyDevice().launch(cfc_input.KERNEL, enc, private, h_prev, cat)
    np.testing.assert_array_equal(cat, np.c_[enc, private, h_prev, np.ones(R), np.zeros((R, 3))])
