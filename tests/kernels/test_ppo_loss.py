"""Rollout losses: JAX in float64, finite differences, each clip by hand, and rows that must not count."""

import jax
import numpy as np
import pytest
from loss_oracles import EPS, VALUE_CLIP, WEIGHTS, A, Batch, W, bus, jax_ppo

from kernels.isv import SLOTS
from kernels.ppo_loss import KERNEL
from trainer.device import NumpyDevice

FIGURES = ("l_pi", "l_v", "l_aux", "entropy", "approx_kl", "clip_frac", "value_mean")


def run(batch: Batch, isv=None, out=None):
    """-> d_out [2M, W] (NaN where not written), isv."""
    isv = bus(batch.dtype) if isv is None else isv
    d_out = np.full((2 * batch.m, W), np.nan, batch.dtype)
    NumpyDevice().launch(KERNEL, *batch.ppo_args(isv, d_out, out))
    return d_out, isv


def total(isv, entropy_coef=0.03):
    l_pi, l_v, l_aux, entropy = (isv[SLOTS[k]] for k in ("l_pi", "l_v", "l_aux", "entropy"))
    policy = WEIGHTS["policy"] * (l_pi - entropy_coef * entropy)
    return policy + WEIGHTS["value"] * l_v + WEIGHTS["aux"] * l_aux


@pytest.mark.parametrize(("m", "seed", "spread", "clip", "coef"), [(1, 0, 1.0, 0.2, 0.03), (45, 2, 3.0, 0.1, 0.3)])
def test_value_and_gradient_equal_jax(m, seed, spread, clip, coef):
    batch = Batch(m, seed, spread=spread)
    d_out, isv = run(batch, bus(ppo_clip=clip, entropy_coef=coef))
    (loss, figures), grad = jax.jit(jax.value_and_grad(lambda o: jax_ppo(o, batch, clip, coef), has_aux=True))(
        batch.out
    )
    assert total(isv, coef) == pytest.approx(float(loss), rel=1e-12)
    for name in FIGURES:
        assert isv[SLOTS[name]] == pytest.approx(float(figures[name]), rel=1e-10, abs=1e-13), name
    np.testing.assert_allclose(d_out[m:], grad[m:], rtol=1e-9, atol=1e-14)
    assert np.isnan(d_out[:m]).all(), "the replay rows belong to the other loss"
    if m > 1:
        assert 0 < isv[SLOTS["clip_frac"]] < 1, "the batch must meet both sides of the clip"


def test_gradient_equals_finite_differences_for_each_head():
    batch = Batch(20, 3)
    d_out, _ = run(batch)
    rng = np.random.default_rng(4)
    for columns in (slice(231, 242), slice(242, 243), slice(243, 246)):
        for _ in range(5):
            direction = np.zeros_like(batch.out)
            direction[20:, columns] = rng.normal(size=direction[20:, columns].shape)
            high, low = (total(run(batch, out=batch.out + sign * 1e-6 * direction)[1]) for sign in (1, -1))
            assert (high - low) / 2e-6 == pytest.approx((d_out[20:] * direction[20:]).sum(), rel=1e-5)


def test_columns_of_no_loss_get_exactly_zero():
    batch = Batch(30, 5)
    d_out, _ = run(batch)
    rows = d_out[30:]
    assert (rows[:, :231] == 0).all() and (rows[:, 246:] == 0).all()
    assert (rows[:, 231:242][batch.mask == 0] == 0).all(), "an invalid action receives no gradient"
    assert (rows[batch.valid == 0] == 0).all()
    unlabelled = batch.aux_label < 0
    assert unlabelled.any() and (rows[unlabelled, 243:246] == 0).all()
    assert (rows[0, 231:242] == 0).all(), "one valid action leaves nothing to learn"


def test_rows_that_do_not_count_may_hold_anything():
    batch = Batch(24, 6)
    want = run(batch)
    dead = batch.valid == 0
    for name in ("log_mu_old", "advantage", "returns", "value_old"):
        batch.arrays[name][dead] = np.nan
    batch.arrays["action"][dead] = 4
    batch.arrays["aux_label"][dead] = 2
    got = run(batch)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


def test_no_valid_row_and_no_label_give_zero_and_not_nan():
    batch = Batch(5, 7)
    batch.arrays["valid"][:] = 0
    d_out, isv = run(batch)
    assert (d_out[5:] == 0).all()
    assert all(isv[SLOTS[name]] == 0 for name in (*FIGURES, "entropy_frac"))
    batch.arrays["valid"][:] = 1
    batch.arrays["aux_label"][:] = -1
    d_out, isv = run(batch)
    assert isv[SLOTS["l_aux"]] == 0 and (d_out[5:, 243:246] == 0).all() and (d_out[5:, 242] != 0).any()


def one_row(logits=(0.0, 0.0), ratio=1.0, advantage=1.0, value=0.0, value_old=0.0, returns=0.0) -> Batch:
    """Actions 2 and 5 are valid, 5 was taken; `ratio` is mu_new / mu_old of it."""
    batch = Batch(1, 8)
    mask = np.zeros((1, A), np.uint8)
    mask[0, [2, 5]] = 1
    out = np.zeros((2, W))
    out[1, [231 + 2, 231 + 5]] = logits
    out[1, 242] = value
    pi = np.exp(logits[1]) / np.exp(logits).sum()
    batch.arrays |= {
        "out": out,
        "mask": mask,
        "action": np.array([5], np.int32),
        "valid": np.ones(1, np.int8),
        "log_mu_old": np.log([((1 - EPS) * pi + EPS / 2) / ratio]),
        "advantage": np.array([advantage]),
        "value_old": np.array([value_old]),
        "returns": np.array([returns]),
        "aux_label": np.array([-1], np.int8),
    }
    return batch


@pytest.mark.parametrize(
    ("ratio", "advantage", "l_pi", "moves"),
    [
        (1.0, 2.0, -2.0, True),
        (1.5, 2.0, -2.4, False),  # already pushed far enough: held
        (1.5, -2.0, 3.0, True),  # pushed the wrong way: pulled back with full force
        (0.5, 2.0, -1.0, True),
        (0.5, -2.0, 1.6, False),
    ],
)
def test_policy_clip_by_hand(ratio, advantage, l_pi, moves):
    batch = one_row(logits=(0.0, np.log(3.0)), ratio=ratio, advantage=advantage)
    d_out, isv = run(batch, bus(entropy_coef=0.0))
    assert isv[SLOTS["l_pi"]] == pytest.approx(l_pi)
    mu, pi = (1 - EPS) * 0.75 + EPS / 2, 0.75
    want = -advantage * ratio * (1 - EPS) * pi * (1 - pi) / mu if moves else 0.0
    np.testing.assert_allclose(d_out[1, [231 + 5, 231 + 2]], [want, -want], atol=1e-14)
    assert isv[SLOTS["clip_frac"]] == (0.0 if ratio == 1.0 else 1.0)
    assert isv[SLOTS["approx_kl"]] == pytest.approx(ratio - 1 - np.log(ratio), abs=1e-14)


@pytest.mark.parametrize(
    ("value", "value_old", "returns", "loss", "slope"),
    [
        (0.1, 0.0, 1.0, 0.9**2 / 2, -0.9),  # within the clip
        (0.5, 0.0, 1.0, 0.8**2 / 2, 0.0),  # moved further than the clip towards R: the clipped error is larger, held
        (-0.5, 0.0, 1.0, 1.5**2 / 2, -1.5),  # moved away from R: pulled back
    ],
)
def test_value_clip_by_hand(value, value_old, returns, loss, slope):
    assert VALUE_CLIP == 0.2
    d_out, isv = run(one_row(value=value, value_old=value_old, returns=returns))
    assert isv[SLOTS["l_v"]] == pytest.approx(loss)
    assert d_out[1, 242] == pytest.approx(WEIGHTS["value"] * slope, abs=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_row_inside_the_value_clip_is_held(dtype):
    """Inside, both errors are one number; if they differed by rounding, some rows would stop learning."""
    m, rng = 2000, np.random.default_rng(10)
    batch = Batch(m, 9, dtype=dtype)
    batch.out[m:, 242] = rng.normal(size=m) * 0.05
    value = batch.out[m:, 242]
    batch.arrays |= {
        "value_old": (value + rng.uniform(-0.15, 0.15, m)).astype(dtype),
        "returns": (value + rng.choice([-1, 1], m) * rng.uniform(0.01, 0.3, m)).astype(dtype),
        "valid": np.ones(m, np.int8),
    }
    slope = run(batch)[0][m:, 242]
    np.testing.assert_allclose(slope, WEIGHTS["value"] * (value - batch.returns) / m, rtol=1e-5)


def test_entropy_of_uniform_policy_is_log_n_and_has_no_slope():
    d_out, isv = run(one_row(advantage=0.0), bus(entropy_coef=1.0))
    assert isv[SLOTS["entropy"]] == pytest.approx(np.log(2)) and isv[SLOTS["entropy_frac"]] == pytest.approx(1.0)
    np.testing.assert_allclose(d_out[1, 231:242], 0, atol=1e-16)
    d_out, isv = run(one_row(logits=(0.0, 3.0), advantage=0.0), bus(entropy_coef=1.0))
    assert isv[SLOTS["entropy_frac"]] < 0.3
    assert d_out[1, 231 + 5] > 0 > d_out[1, 231 + 2], "descent lowers the likely action's logit"


def test_extreme_logits_stay_finite():
    d_out, isv = run(one_row(logits=(-400.0, 400.0)))
    assert np.isfinite(d_out[1]).all() and isv[SLOTS["entropy"]] == pytest.approx(0.0, abs=1e-12)
    batch = one_row(logits=(400.0, -400.0))  # the action taken has no probability left but the floor's
    d_out, isv = run(batch)
    assert np.isfinite(d_out[1]).all() and np.isfinite([isv[SLOTS[k]] for k in FIGURES]).all()
