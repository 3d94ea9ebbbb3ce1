"""GAE against a plain loop over one environment at a time, with truncation, drawdown ends and resets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gae import gae
from kernels.isv import SIZE, SLOTS


def episodes(rng, rows, b, p_end):
    """valid and done as NEXT_STEP autoreset makes them: after a done row comes a reset row."""
    valid, done = np.ones((rows, b), np.int8), np.zeros((rows, b), np.int8)
    over = rng.random(b) < 0.3  # the row before this rollout may have ended an episode
    for t in range(rows):
        valid[t] = ~over
        ends = ~over & (rng.random(b) < p_end)
        done[t] = np.where(ends, rng.integers(1, 3, b), 0)
        over = ends
    return valid, done


def run(reward, value, valid, done, bootstrap, gamma=0.9, scale=0.5, lam=0.8, active=1, longest=None, real=np.float64):
    rows, b = reward.shape
    shape = (2, longest or rows, b)

    def buffers(x, dtype):
        full = np.full(shape, 77, dtype)  # what lies outside must not matter
        full[1 - active, :rows] = x
        return full

    isv = np.zeros(SIZE, real)
    isv[SLOTS["gamma"]], isv[SLOTS["reward_scale"]] = gamma, scale
    length = np.array([3, 3], np.int32)
    length[1 - active] = rows
    advantage, returns = np.full(shape, np.nan, real), np.full(shape, np.nan, real)
    gae(
        isv,
        *(buffers(reward, real), buffers(value, real), buffers(valid, np.int8), buffers(done, np.int8)),
        *(bootstrap.astype(real), length, np.array([active], np.int64), lam, advantage, returns),
    )
    assert np.isnan(advantage[active]).all() and np.isnan(returns[active]).all()
    assert np.isnan(advantage[1 - active, rows:]).all()
    return advantage[1 - active, :rows], returns[1 - active, :rows]


def one_environment(reward, value, valid, done, bootstrap, gamma, scale, lam):
    """A_t as the sum of (gamma lambda)^k delta_{t+k} up to the end of the episode (equation 16), written forwards."""
    rows = len(reward)
    values = [*value, bootstrap]
    out = []
    for t in range(rows):
        total, k = 0.0, t
        while valid[t] and k < rows:
            bootstrapped = 0.0 if done[k] == 2 else gamma * values[k + 1]
            total += (gamma * lam) ** (k - t) * (scale * reward[k] + bootstrapped - values[k])
            if done[k]:
                break
            k += 1
        out.append(total)
    return out


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 20),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1]),
    st.sampled_from([(0.9, 0.5, 0.8), (0.99, 1.0, 1.0), (0.5, 0.1, 0.0)]),
)
def test_equals_a_loop_over_each_environment(rows, b, p_end, seed, active, settings_):
    rng = np.random.default_rng(seed)
    valid, done = episodes(rng, rows, b, p_end)
    reward, value, bootstrap = rng.normal(size=(rows, b)), rng.normal(size=(rows, b)), rng.normal(size=b)
    got, returns = run(reward, value, valid, done, bootstrap, *settings_, active=active, longest=rows + 2)
    want = np.array(
        [
            one_environment(reward[:, i], value[:, i], valid[:, i], done[:, i], bootstrap[i], *settings_)
            for i in range(b)
        ]
    ).T
    live = valid != 0
    np.testing.assert_allclose(returns[live], (want + value)[live], rtol=1e-10, atol=1e-12)
    assert (got[~live] == 0).all()
    if live.any():
        centred = want[live] - want[live].mean()
        np.testing.assert_allclose(got[live], centred / (centred.std() + 1e-8), rtol=1e-8, atol=1e-6)


def test_advantages_have_mean_0_and_deviation_1_over_the_valid_rows_only():
    rng = np.random.default_rng(0)
    valid, done = episodes(rng, 16, 64, 0.2)
    got, _ = run(
        rng.normal(size=(16, 64)), 5 + rng.normal(size=(16, 64)), valid, done, rng.normal(size=64), real=np.float32
    )
    assert got.dtype == np.float32 and (valid == 0).any()
    assert abs(got[valid != 0].mean()) < 1e-6 and abs(got[valid != 0].std() - 1) < 1e-5


@pytest.mark.parametrize("done, want", [(0, 1 + 0.9 * 10), (1, 1 + 0.9 * 10), (2, 1.0)])
def test_only_a_drawdown_end_has_no_bootstrap(done, want):
    one = np.ones((1, 1))
    _, returns = run(2 * one, 4 * one, one, done * one, np.array([10.0]))
    assert returns[0, 0] == pytest.approx(want)  # reward 2 at scale 0.5


def test_nothing_passes_through_a_reset():
    """Row 1 resets; what comes after it, however large, does not reach row 0, and V(final observation) does."""
    reward, value = np.array([[0.0], [0.0], [1e6]]), np.array([[0.0], [3.0], [0.0]])
    valid, done = np.array([[1], [0], [1]]), np.array([[1], [0], [0]])
    _, returns = run(reward, value, valid, done, np.zeros(1))
    assert returns[0, 0] == pytest.approx(0.9 * 3.0)
    assert returns[1, 0] == 3.0


def test_a_value_function_that_is_right_leaves_no_advantage():
    """Reward 1 for ever at gamma 0.9, scale 0.5: V = 5 everywhere, so every advantage is 0 (and stays so)."""
    fives = np.full((16, 8), 5.0)
    got, returns = run(np.ones((16, 8)), fives, np.ones((16, 8)), np.zeros((16, 8)), np.full(8, 5.0))
    np.testing.assert_allclose(returns, 5.0)
    np.testing.assert_allclose(got, 0.0, atol=1e-6)


def test_a_rollout_of_resets_alone_gives_zeros():
    zeros = np.zeros((4, 3))
    got, _ = run(zeros + 1, zeros + 2, zeros, zeros, np.ones(3))
    assert (got == 0).all()
