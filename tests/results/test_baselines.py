"""The decision rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.env_step import NO_ORDER, Action, _write_mask
from kernels.philox import Purpose, counter, uniform
from trainer.config import EnvConfig
from trainer.env.actions import target_table
from trainer.results.baselines import BASELINES, BLOCK, Rules, imbalance, random_order_rate

ORDERS = {0, 1, 3, 4, 5, 6, 9, 10}


def act(name, position=0, signal=0.0, mask=None, rate=0.5, step=0, lots=(1, 2)):
    """The action of a lane that stands on row 31, whose imbalance is `signal`."""
    mask = np.ones((1, 11), np.uint8) if mask is None else mask
    rules = Rules([name], np.array([0.0, signal]), 30, rate, 7, lots)
    return Action(int(rules.actions(step, mask, np.array([position], np.int32), np.array([31], np.int32))[0]))


def test_flat_never_trades_and_leaves_a_position():
    assert act("flat") == Action.HOLD
    assert act("flat", position=2) == Action.FLAT_FROM_LONG
    assert act("flat", position=-1) == Action.FLAT_FROM_SHORT


def test_buy_and_hold_buys_once():
    assert act("buy and hold") == Action.LONG_SMALL
    assert act("buy and hold", position=1) == Action.HOLD


def test_imbalance_rule_follows_the_signal_and_holds_between():
    assert act("imbalance", 0, 0.21) == Action.LONG_LARGE
    assert act("imbalance", 0, -0.21) == Action.SHORT_LARGE
    assert act("imbalance", 0, 0.2) == Action.HOLD
    assert act("imbalance", 2, 0.9) == Action.HOLD
    assert act("imbalance", 2, 0.0) == Action.HOLD
    assert act("imbalance", 2, -0.5) == Action.SHORT_LARGE
    assert act("imbalance", 0, 0.5, lots=(3, 7)) == Action.LONG_LARGE


def test_a_masked_action_is_a_hold():
    mask = np.zeros((1, 11), np.uint8)
    mask[0, Action.HOLD] = 1
    for name in BASELINES:
        assert act(name, 0, 0.9, mask=mask, rate=1.0) == Action.HOLD


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=11, max_size=11), st.integers(0, 1000))
def test_random_orders_are_valid_ones(valid, step):
    mask = np.array([valid], np.uint8)
    mask[0, Action.HOLD] = 1
    chosen = act("random", mask=mask, rate=1.0, step=step)
    allowed = {a for a in ORDERS if mask[0, a]}
    assert chosen in allowed if allowed else chosen == Action.HOLD
    assert act("random", mask=mask, rate=0.0, step=step) == Action.HOLD


def test_random_orders_at_the_given_rate_each_as_likely_and_repeatably():
    mask = np.zeros((4000, 11), np.uint8)
    mask[:, [0, 2, 3, 6, 7]] = 1
    rules = Rules(["random"] * 4000, np.zeros(1), 0, 0.3, 7, (1, 2))
    now = 12, mask, np.ones(4000, np.int32), np.zeros(4000, np.int32)
    a = rules.actions(*now)
    counts = np.bincount(a, minlength=11)
    assert counts[[1, 4, 5, 7, 8, 9, 10]].sum() == 0
    assert abs(counts[2] / 4000 - 0.7) < 0.03
    assert np.all(np.abs(counts[[0, 3, 6]] / 4000 - 0.1) < 0.02)
    np.testing.assert_array_equal(a, rules.actions(*now))
    assert (a != rules.actions(13, *now[1:])).any()


def test_random_draws_do_not_depend_on_where_a_block_of_steps_begins():
    """Step by step, also across blocks and backwards: the numbers are those of (seed, step, lane)."""
    mask, names = np.ones((3, 11), np.uint8), ["random", "flat", "random"]
    state = mask, np.zeros(3, np.int32), np.zeros(3, np.int32)
    steps = [*range(BLOCK - 3, BLOCK + 3), 2, 2**33]
    forth, back = Rules(names, np.zeros(1), 0, 0.5, 7, (1, 2)), Rules(names, np.zeros(1), 0, 0.5, 7, (1, 2))
    a = [forth.actions(step, *state).tolist() for step in steps]
    assert a == [back.actions(step, *state).tolist() for step in reversed(steps)][::-1]
    for step, (first, _, third) in zip(steps, a):
        words = counter(np.array([step]), np.array([0, 2]), Purpose.BASELINE, 7)
        wants, pick = uniform(words[0], np.float64) < 0.5, (uniform(words[1], np.float64) * 8).astype(int)
        assert [first, third] == np.where(wants, np.array(sorted(ORDERS))[pick], Action.HOLD).tolist()


def test_lanes_are_decided_side_by_side():
    mask = np.ones((4, 11), np.uint8)
    rules = Rules(BASELINES, np.array([0.9]), 0, 0.0, 0, (1, 2))
    a = rules.actions(0, mask, np.array([1, 0, 0, 0], np.int32), np.zeros(4, np.int32))
    assert dict(zip(BASELINES, a.tolist())) == {"flat": 3, "random": 2, "buy and hold": 5, "imbalance": 6}


def test_imbalance_reads_five_levels_and_is_zero_without_sizes():
    bid, ask = np.ones((3, 10), np.int32), np.ones((3, 10), np.int32)
    bid[0, :5] = 3
    bid[1, 5:] = 50
    bid[2], ask[2] = 0, 0
    assert imbalance(bid, ask).tolist() == [0.5, 0.0, 0.0]
    assert imbalance(bid[:1, :1], ask[:1, :1]).tolist() == [0.5]
    big = np.full((1, 10), 2**31 - 1, np.int32)
    assert imbalance(big, big).tolist() == [0.0]


@pytest.mark.parametrize("lots", [(1, 2), (1, 3), (2, 4)])
def test_random_trades_as_many_lots_as_it_was_told(lots):
    """Steps 400 lanes of the rule with the environment's masks and counts what they trade."""
    env = EnvConfig(lots_small=lots[0], lots_large=lots[1])
    targets = target_table(env)
    rate = random_order_rate(90_000, 100_000, env)
    position, traded, b = np.zeros(400, np.int32), 0, 400
    rules = Rules(["random"] * b, np.zeros(1), 0, rate, 1, lots)
    for step in range(250):
        mask = np.zeros((b, 11), np.uint8)
        _write_mask(mask, position, position, np.full(b, 3), targets, lots[1])
        action = rules.actions(step, mask, position, np.zeros(b, np.int32))
        wanted = np.where(targets[action] == NO_ORDER, position, targets[action])
        traded += int(np.abs(wanted - position).sum())
        position = wanted
    assert traded / (250 * b) == pytest.approx(0.9, rel=0.02)


def test_order_rate_of_an_idle_policy_is_zero_and_never_above_one():
    env = EnvConfig()
    assert random_order_rate(0, 1000, env) == random_order_rate(0, 0, env) == 0.0
    assert random_order_rate(10**9, 10, env) == 1.0
