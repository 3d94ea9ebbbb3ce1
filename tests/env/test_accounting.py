"""Accounting identities that must hold whatever the policy does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.env.books import build, random_market, small_config

HOLD = 2


def run(env: Any, store: Any, steps: int, policy: Any) -> list[SimpleNamespace]:
    """Steps `env`; returns a copy of what each step wrote. policy(env, step) -> int32 [B]."""
    names = (
        *("reward", "valid", "row", "position", "cash", "equity", "done", "mask", "private"),
        *("closed", "closed_pnl", "closed_rows", "filled", "fee_paid", "spread_paid", "ordered", "action_done"),
    )
    history = []
    for i in range(steps):
        env.step(policy(env, i))
        store["clock.step"][0] += 1
        history.append(SimpleNamespace(**{n: getattr(env, n).copy() for n in names}))
    return history


def random_policy(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return lambda env, i: rng.integers(0, 11, len(env.row)).astype(np.int32)


def fixed_actions(seed: int, steps: int, B: int = 1) -> np.ndarray:
    """[steps, B]: the same actions in every lane, mostly holds."""
    rng = np.random.default_rng(seed)
    one = np.where(rng.random(steps) < 0.5, HOLD, rng.integers(0, 11, steps))
    return np.repeat(one[:, None], B, axis=1).astype(np.int32)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_flat_earns_exactly_nothing(seed):
    env, _, store = build(random_market(seed), small_config(episode_len=16), B=8)
    for step in run(env, store, 60, lambda env, i: env.hold):
        assert not step.reward.any() and not step.equity.any() and not step.closed.any() and not step.ordered.any()
        assert (step.done != 2).all()


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10_000))
def test_every_unit_of_money_is_accounted_for(seed):
    market = random_market(seed)
    env, arrays, store = build(market, small_config(drawdown_ticks=40, episode_len=30), B=8)
    mid = market.bid_px[:, 0].astype(np.int64) + market.ask_px[:, 0]
    cash, earned = np.zeros(8, np.int64), np.zeros(8, np.int64)
    for step in run(env, store, 120, random_policy(seed)):
        started = step.valid == 0
        cash[started], earned[started] = 0, 0
        price = mid[step.row] * 500
        assert (step.spread_paid >= 0).all() and (step.fee_paid == 100 * abs(step.filled)).all()
        cash += -step.filled * price - step.fee_paid - step.spread_paid
        earned += step.closed_pnl
        assert (step.cash == cash).all()
        assert (step.equity == cash + step.position * price).all()
        flat = step.position == 0
        assert (step.equity[flat] == earned[flat]).all()  # all of a flat lane's money was made by closed round trips
        assert flat[step.done != 0].all()
        assert (step.row <= arrays["last"][step.row]).all()


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10_000))
def test_rewards_add_up_to_equity_less_penalties(seed):
    cfg = small_config(episode_len=30)
    env, _, store = build(random_market(seed), cfg, B=4)
    total, position = np.zeros(4), np.zeros(4, np.int64)
    for step in run(env, store, 90, random_policy(seed)):
        started = step.valid == 0
        assert not step.reward[started].any()
        total[started] = 0
        messages = (step.action_done != HOLD) & (step.valid == 1)
        total += step.reward + 0.3 * np.where(started, 0, position) ** 2 + 0.2 * messages
        position = step.position.astype(np.int64)
        np.testing.assert_allclose(total, step.equity / 1000, atol=1e-6)


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10_000), fees=st.lists(st.integers(0, 5000), min_size=5, max_size=5))
def test_higher_fees_never_earn_more(seed, fees):
    cfg = small_config()
    market = random_market(seed, sessions=1)
    env, _, store = build(market, cfg, B=5, training=False)
    env.fee[...] = sorted(fees)
    env.reset_to([10] * 5, [300] * 5)
    actions = fixed_actions(seed, 291, 5)
    lots = np.zeros(5, np.int64)
    for step in run(env, store, 291, lambda env, i: actions[i]):
        lots += abs(step.filled)
        assert (lots == lots[0]).all()  # fees change the money, never the trades
        assert (np.diff(step.equity) == -np.diff(sorted(fees)) * lots[0]).all()


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_cost_levels_from_one_pass(seed):
    """Net profit at no, single and double costs follows from the fees and spreads paid: prices are what they are."""
    env, _, store = build(random_market(seed, sessions=1), small_config(), B=1, training=False)
    env.reset_to([10], [300])
    actions = fixed_actions(seed, 291)
    mid = store["market.mid2"].astype(np.int64) * 500
    held, gross, costs = 0, 0, 0
    for step in run(env, store, 291, lambda env, i: actions[i]):
        if step.valid[0]:
            gross += held * int(mid[step.row[0]] - mid[step.row[0] - 1])
        held = int(step.position[0])
        costs += int(step.fee_paid[0] + step.spread_paid[0])
    assert int(env.equity[0]) == gross - costs


def test_random_trading_loses_its_costs():
    """On a martingale the gross profit of random trading is noise; the net is minus turnover times cost."""
    env, _, store = build(random_market(7, rows=20_000, sessions=1, depth=50), small_config(), B=256)
    history = run(env, store, 500, random_policy(8))
    costs = sum(step.fee_paid + step.spread_paid for step in history) / 1000
    net = sum(np.where(step.done != 0, step.equity, 0) for step in history) / 1000 + history[-1].equity / 1000
    net -= np.where(history[-1].done != 0, history[-1].equity, 0) / 1000
    gross = net + costs
    lots = sum(abs(step.filled) for step in history).mean()
    assert abs(gross.mean()) < 4 * gross.std() / np.sqrt(len(gross))
    assert net.mean() < -0.8 * costs.mean()
    # Spreads are 1, 2 or 3 ticks, so half of one is 1 on average; the fee is 0.1; walking the book adds a little.
    assert 1.1 <= costs.mean() / lots < 1.4


def test_buy_and_hold_earns_the_move_less_two_sides():
    market = random_market(9, sessions=1, depth=0)
    env, _, store = build(market, small_config(latency_rows=1, message_cost=0.0), B=1, training=False)
    env.reset_to([20], [120])
    run(env, store, 1, lambda env, i: np.array([6], np.int32))
    run(env, store, 99, lambda env, i: env.hold)
    assert env.done[0] == 1 and env.closed[0] == 1 and env.closed_rows[0] == 99
    expected = 2 * 1000 * (int(market.bid_px[120, 0]) - int(market.ask_px[21, 0])) - 4 * 100
    assert env.closed_pnl[0] == env.equity[0] == expected
    assert env.closed_lots[0] == 2


@pytest.mark.parametrize("action", range(11))
def test_float32_run_has_the_same_integers(action):
    market, cfg = random_market(11), small_config(episode_len=20)
    runs = []
    for real in (np.float32, np.float64):
        env, _, store = build(market, cfg, B=6, real=real)
        rng = np.random.default_rng(action)
        policy = lambda env, i, rng=rng: np.where(rng.random(6) < 0.5, action, rng.integers(0, 11, 6)).astype(np.int32)  # noqa: E731
        runs.append(run(env, store, 60, policy))
    for narrow, wide in zip(*runs):
        assert (narrow.cash == wide.cash).all() and (narrow.mask == wide.mask).all()
        assert narrow.reward.dtype == np.float32 and wide.reward.dtype == np.float64
        np.testing.assert_allclose(narrow.reward, wide.reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(narrow.private, wide.private, rtol=1e-5, atol=1e-6)
