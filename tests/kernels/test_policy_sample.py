"""Acting: frequencies against mu (chi-square), masked actions, the ends of the running sum, and the diagnostics."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats
from scipy.special import softmax

from kernels import policy_sample as module
from kernels.philox import Purpose, counter, uniform
from kernels.policy_sample import KERNEL
from trainer.device import NumpyDevice

A, Z, W = 11, 21, 256
OUTPUTS = {
    "action": np.int32,
    "log_mu": None,
    "value": None,
    "entropy_frac": None,
    "greedy": np.int32,
    "q_greedy": np.int32,
}


def run(out, mask, step=0, seed=7, eps=0.02) -> dict[str, np.ndarray]:
    results = {name: np.full(len(out), -9, dtype or out.dtype) for name, dtype in OUTPUTS.items()}
    NumpyDevice().launch(KERNEL, out, mask, np.array([step]), seed, eps, *results.values())
    return results


def head(rng, rows, spread=2.0, dtype=np.float64):
    out = (rng.normal(size=(rows, W)) * spread).astype(dtype)
    mask = (rng.random((rows, A)) < 0.6).astype(np.uint8)
    mask[:, 2] = 1
    return out, mask


def reference_mu(out, mask, eps):
    """scipy's softmax over each row's valid actions, mixed with the floor."""
    mu = np.zeros((len(out), A))
    for row, (logits, valid) in enumerate(zip(out[:, 231:242].astype(float), mask != 0)):
        mu[row, valid] = (1 - eps) * softmax(logits[valid]) + eps / valid.sum()
    return mu


def test_frequencies_follow_mu():
    rng = np.random.default_rng(0)
    out, mask = head(rng, 1, spread=1.0)
    mask[0] = [1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1]
    draws = 20_000
    many = run(np.repeat(out, draws, axis=0), np.repeat(mask, draws, axis=0), eps=0.1)["action"]
    counts = np.bincount(many, minlength=A)
    mu = reference_mu(out, mask, 0.1)[0]
    assert (counts[mask[0] == 0] == 0).all()
    assert stats.chisquare(counts[mu > 0], mu[mu > 0] * draws).pvalue > 1e-3
    assert stats.chisquare(counts[mu > 0], np.roll(mu[mu > 0], 1) * draws).pvalue < 1e-9, "the test can fail"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_mu_value_and_greedy_choices(dtype):
    rng = np.random.default_rng(1)
    out, mask = head(rng, 65, dtype=dtype)
    got = run(out, mask)
    mu, rows = reference_mu(out, mask, 0.02), np.arange(65)
    np.testing.assert_allclose(np.exp(got["log_mu"]), mu[rows, got["action"]], rtol=1e-5)
    np.testing.assert_array_equal(got["value"], out[:, 242])
    np.testing.assert_array_equal(got["greedy"], np.where(mask, out[:, 231:242], -np.inf).argmax(axis=1))
    atoms = np.linspace(-10, 10, Z)
    q = softmax(out[:, :231].reshape(65, A, Z).astype(float), axis=-1) @ atoms
    np.testing.assert_array_equal(got["q_greedy"], np.where(mask, q, -np.inf).argmax(axis=1))


def test_entropy_fraction_from_none_to_uniform():
    out, mask = np.zeros((3, W)), np.ones((3, A), np.uint8)
    out[1, 231:242] = np.linspace(0, 3, A)
    mask[2] = np.eye(A)[2]
    got = run(out, mask)["entropy_frac"]
    want = stats.entropy(softmax(out[1, 231:242])) / np.log(A)
    np.testing.assert_allclose(got, [1.0, want, 0.0], atol=1e-12)
    assert run(out, mask)["action"][2] == 2 and run(out, mask)["log_mu"][2] == pytest.approx(0.0)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**62),
    spread=st.sampled_from([0.0, 1.0, 30.0, 300.0]),
    eps=st.sampled_from([0.0, 0.02, 0.99]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_never_an_invalid_action(rows, seed, step, spread, eps, dtype):
    rng = np.random.default_rng(seed)
    out, mask = head(rng, rows, spread, dtype)
    got = run(out, mask, step, seed, eps)
    for name in ("action", "greedy", "q_greedy"):
        assert (mask[np.arange(rows), got[name]] == 1).all(), name
    assert np.isfinite(got["log_mu"]).all() and (got["log_mu"] <= 1e-6).all()
    assert ((got["entropy_frac"] >= -1e-6) & (got["entropy_frac"] <= 1 + 1e-5)).all()


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-24])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends_of_the_running_sum(monkeypatch, u, dtype):
    """The largest uniform number must find the last action with mass, also where rounding leaves the sum above one."""
    rng = np.random.default_rng(2)
    out, mask = head(rng, 5000, spread=1.0, dtype=dtype)
    mask[:, 10] = 0
    monkeypatch.setattr(module, "uniform", lambda words, real: np.full(len(words), u, real))
    action = run(out, mask, eps=0.0)["action"]
    assert (mask[np.arange(5000), action] == 1).all()
    first, last = mask.argmax(axis=1), A - 1 - mask[:, ::-1].argmax(axis=1)
    if u == 0:
        np.testing.assert_array_equal(action, first)
    elif u > 0.9:
        np.testing.assert_array_equal(action, last)


def test_draws_are_a_function_of_seed_step_and_row():
    rng = np.random.default_rng(3)
    out, mask = head(rng, 64)
    base = run(out, mask, step=5, seed=1)["action"]
    np.testing.assert_array_equal(run(out, mask, step=5, seed=1)["action"], base)
    np.testing.assert_array_equal(run(out[:10].copy(), mask[:10].copy(), step=5, seed=1)["action"], base[:10])
    for other in ({"step": 6}, {"seed": 2}, {"step": 5 + 2**32}):
        assert (run(out, mask, **({"step": 5, "seed": 1} | other))["action"] != base).any(), other
    u = uniform(counter(np.array([5]), np.arange(64, dtype=np.uint32), Purpose.ACTION, 1)[0], np.float64)
    cumulative = np.cumsum(reference_mu(out, mask, 0.02), axis=1)
    np.testing.assert_array_equal(base, (cumulative <= u[:, None]).sum(axis=1))
