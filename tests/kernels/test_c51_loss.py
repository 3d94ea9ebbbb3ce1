"""C51 loss: JAX in float64, Algorithm 1 as printed, finite differences, and what must stay exactly zero."""

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from loss_oracles import V_MAX, V_MIN, WEIGHTS, A, Batch, W, Z, bus, jax_c51, projection_by_scatter

from kernels.c51_loss import KERNEL, project
from kernels.isv import SLOTS
from trainer.device import NumpyDevice

ATOMS = np.linspace(V_MIN, V_MAX, Z)


def run(batch: Batch, isv=None, out=None):
    """-> d_out [2M, W] (NaN where not written), priority, isv."""
    isv = bus(batch.dtype) if isv is None else isv
    d_out, priority = np.full((2 * batch.m, W), np.nan, batch.dtype), np.full(batch.m, np.nan, batch.dtype)
    NumpyDevice().launch(KERNEL, *batch.c51_args(isv, d_out, priority, out))
    return d_out, priority, isv


@pytest.mark.parametrize(("m", "seed", "n", "spread"), [(1, 0, 1, 1.0), (33, 2, 5, 8.0)])
def test_value_and_gradient_equal_jax(m, seed, n, spread):
    batch = Batch(m, seed, n, spread)
    d_out, priority, isv = run(batch)

    def oracle(out):
        return jax_c51(out, batch.next_online, batch.next_target, batch, 0.93, 0.2)

    (loss, ce), grad = jax.jit(jax.value_and_grad(oracle, has_aux=True))(batch.out)
    assert WEIGHTS["q"] * isv[SLOTS["l_q"]] == pytest.approx(float(loss), rel=1e-12)
    np.testing.assert_allclose(priority, ce, rtol=1e-11)
    np.testing.assert_allclose(d_out[:m], grad[:m], rtol=1e-9, atol=1e-14)
    assert np.isnan(d_out[m:]).all(), "the rollout's rows belong to the other loss"


def test_gradient_is_zero_outside_the_action_taken():
    batch = Batch(16, 3)
    d_out, _, _ = run(batch)
    rest = d_out[:16].copy()
    for row, a in enumerate(batch.q_action):
        assert np.any(rest[row, a * Z : (a + 1) * Z] != 0)
        rest[row, a * Z : (a + 1) * Z] = 0
    assert (rest == 0).all()


def test_no_gradient_flows_through_target_or_choice():
    """One linear network gives all three outputs: only with the target held constant does JAX agree with d_out."""
    batch = Batch(12, 4)
    rng = np.random.default_rng(5)
    x, x_next, weight = rng.normal(size=(24, 9)), rng.normal(size=(12, 9)), rng.normal(size=(W, 9))
    batch.arrays |= {"out": x @ weight.T, "next_online": x_next @ weight.T, "next_target": x_next @ weight.T}
    d_out, _, _ = run(batch)

    def gradient(stop):
        def loss(w):
            return jax_c51(x @ w.T, x_next @ w.T, x_next @ w.T, batch, 0.93, 0.2, stop)[0]

        return np.asarray(jax.jit(jax.grad(loss))(weight))

    ours = d_out[:12].T @ x[:12]
    np.testing.assert_allclose(ours, gradient(jax.lax.stop_gradient), rtol=1e-9, atol=1e-13)
    assert np.abs(ours - gradient(lambda t: t)).max() > 1e-2


def test_gradient_equals_finite_differences():
    batch = Batch(10, 6)
    d_out, _, _ = run(batch)
    rng = np.random.default_rng(7)
    for _ in range(5):
        direction = rng.normal(size=batch.out.shape)
        ends = [WEIGHTS["q"] * run(batch, out=batch.out + sign * 1e-5 * direction)[2][SLOTS["l_q"]] for sign in (1, -1)]
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx((d_out[:10] * direction[:10]).sum(), rel=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    gain=st.one_of(st.floats(-30, 30), st.integers(-12, 12).map(float)),
    discount=st.sampled_from([0.0, 0.5, 0.857375, 1.0]),
    seed=st.integers(0, 2**16),
    v_max=st.sampled_from([10.0, 3.0]),
)
def test_projection_equals_algorithm_1_and_keeps_the_mass(gain, discount, seed, v_max):
    probs = np.random.default_rng(seed).dirichlet(np.full(Z, 0.3))
    atoms = np.linspace(V_MIN, v_max, Z)
    got = project(probs[None], gain + discount * atoms[None], atoms)[0]
    np.testing.assert_allclose(got, projection_by_scatter(probs, gain, discount, V_MIN, v_max), atol=1e-13)
    assert got.sum() == pytest.approx(1, abs=1e-12) and (got >= 0).all()
    if abs(gain) + 10 * discount < 3:  # nothing is clipped: the projection keeps the mean
        assert got @ atoms == pytest.approx(probs @ (gain + discount * atoms), abs=1e-12)


def sharp(action_values: dict[int, float], rows: int = 1) -> np.ndarray:
    """Head output [rows, W] whose Z(s, a) puts all mass on the atom of the given value, 0 for the others."""
    out = np.zeros((rows, W))
    logits = out[:, :231].reshape(rows, A, Z)
    for a in range(A):
        logits[:, a, round(action_values.get(a, 0.0)) + 10] = 200.0
    return out


def test_online_network_chooses_among_valid_actions_and_target_network_judges():
    batch = Batch(1, 8, n=3)
    batch.arrays |= {
        "next_online": sharp({4: 9, 6: 5, 1: 2}),
        "next_target": sharp({4: -9, 6: 3, 1: 8}),
        "next_mask": np.array([[0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0]], np.uint8),  # action 4, the best, is not valid
        "rewards": np.array([[10.0, 20.0, 0.0]]),
        "n_used": np.array([2], np.int32),
        "terminal": np.array([0], np.uint8),
        "is_weight": np.ones(1),
    }
    gamma, scale = 0.5, 0.1
    want = scale * (10 + gamma * 20) + gamma**2 * 3  # action 6, worth 3 to the target network
    low = int(np.floor(want)) + 10
    expected = np.zeros(Z)
    expected[low], expected[low + 1] = np.ceil(want) - want, want - np.floor(want)
    d_out, _, _ = run(batch, bus(gamma=gamma, reward_scale=scale))
    a = int(batch.q_action[0])
    p = np.exp(batch.out[0, a * Z : (a + 1) * Z])
    target = p / p.sum() - d_out[0, a * Z : (a + 1) * Z] / WEIGHTS["q"]
    np.testing.assert_allclose(target, expected, atol=1e-12)


@pytest.mark.parametrize(("terminal", "bootstrap"), [(0, 1.0), (1, 0.0)])
def test_drawdown_end_does_not_bootstrap(terminal, bootstrap):
    """Two rows with rewards that differ: the target's standard deviation tells what was added."""
    batch = Batch(2, 9, n=1)
    batch.arrays |= {
        "next_online": sharp({2: 8}, 2),
        "next_target": sharp({2: 8}, 2),
        "next_mask": np.eye(A, dtype=np.uint8)[[2, 2]],
        "rewards": np.array([[5.0], [5.0]]),
        "n_used": np.ones(2, np.int32),
        "terminal": np.array([terminal, 1], np.uint8),
        "is_weight": np.ones(2),
    }
    _, _, isv = run(batch, bus(gamma=0.9, reward_scale=0.2))
    assert isv[SLOTS["target_std"]] == pytest.approx(0.9 * 8 * bootstrap / 2, abs=1e-9)


def test_edge_mass_counts_what_the_support_cuts_off():
    batch = Batch(4, 10, n=1)
    batch.arrays |= {
        "rewards": np.full((4, 1), 1000.0),
        "n_used": np.ones(4, np.int32),
        "terminal": np.ones(4, np.uint8),
    }
    assert run(batch)[2][SLOTS["edge_mass"]] == pytest.approx(1.0)
    batch.arrays["rewards"] = np.zeros((4, 1))
    assert run(batch)[2][SLOTS["edge_mass"]] == pytest.approx(0.0, abs=1e-12)


def test_q_mean_is_the_expected_return_of_the_actions_taken():
    batch = Batch(3, 11)
    batch.arrays["out"] = np.concatenate([sharp({0: 1, 1: 4, 2: -2}, 3), np.zeros((3, W))])
    batch.arrays["q_action"] = np.array([0, 1, 2], np.int32)
    assert run(batch)[2][SLOTS["q_mean"]] == pytest.approx(1.0)
