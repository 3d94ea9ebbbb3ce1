"""The environment's step by examples worked out by hand, and what a translation to one thread a lane relies on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kernels.env_step import KERNEL
from tests.env.books import UNDEF, build, random_market, small_config

LONG_LARGE, LONG_SMALL, SHORT_LARGE, SHORT_SMALL, HOLD = 6, 5, 0, 1, 2
FEE = 100


def flat_market(rows: int = 12, bid: list[int] | None = None, **sides: list) -> SimpleNamespace:
    """Best bid 100 and ask 101 on every row unless told otherwise; two further levels, five lots on each."""
    best = np.array(bid or [100] * rows)
    market = random_market(0, rows=len(best), levels=3, sessions=1)
    market.bid_px = (best[:, None] - np.arange(3)).astype(np.int32)
    market.ask_px = (best[:, None] + 1 + np.arange(3)).astype(np.int32)
    market.bid_sz = np.full((len(best), 3), 5, np.int32)
    market.ask_sz = np.full((len(best), 3), 5, np.int32)
    for name, level_values in sides.items():
        getattr(market, name)[...] = level_values
    market.ts = np.arange(len(best)) * 1_000_000_000
    return market


def one_lane(market, **env):
    """A lane that stands on row 0 and runs to the market's end; no penalties."""
    cfg = small_config(**({"inventory_penalty": 0.0, "message_cost": 0.0} | env))
    environment, _, _ = build(market, cfg, B=1, training=False)
    environment.reset_to([0], [len(market.ts) - 1])
    return environment


def act(env, *actions: int) -> None:
    for action in actions:
        env.step(np.array([action], np.int32))


def test_one_lot_pays_half_the_spread_and_the_fee():
    env = one_lane(flat_market())
    act(env, LONG_SMALL)
    assert env.position[0] == 1 and env.cash[0] == -101_000 - FEE
    assert env.equity[0] == -500 - FEE and env.reward[0] == pytest.approx(-0.6)
    assert (env.spread_paid[0], env.fee_paid[0], env.filled[0]) == (500, FEE, 1)


def test_the_order_fills_on_the_later_book_not_on_the_one_that_was_seen():
    env = one_lane(flat_market(bid=[100, 130, 130, 130, 130, 130]))
    act(env, LONG_SMALL)
    assert env.cash[0] == -131_000 - FEE and env.equity[0] == -500 - FEE


def test_an_order_larger_than_the_displayed_size_walks_the_levels():
    env = one_lane(flat_market(ask_sz=[1, 2, 5]), lots_large=6)
    act(env, LONG_LARGE)
    assert env.cash[0] == -(101 + 2 * 102 + 3 * 103) * 1000 - 6 * FEE


def test_what_is_left_beyond_the_last_known_level_fills_one_tick_beyond_it():
    env = one_lane(flat_market(bid_sz=[1, 1, 1]), lots_large=6)
    act(env, SHORT_LARGE)
    assert env.cash[0] == (100 + 99 + 98 + 3 * 97) * 1000 - 6 * FEE
    gone = one_lane(flat_market(bid_px=[100, UNDEF, UNDEF], bid_sz=[1, 0, 0]), lots_large=6)
    act(gone, SHORT_LARGE)
    assert gone.cash[0] == (100 + 5 * 99) * 1000 - 6 * FEE


def test_an_unknown_size_is_unlimited():
    env = one_lane(flat_market(ask_sz=[1, 0, 1]), lots_large=6)
    act(env, LONG_LARGE)
    assert env.cash[0] == -(101 + 5 * 102) * 1000 - 6 * FEE


def test_a_flip_closes_and_opens_and_pays_for_both():
    env = one_lane(flat_market(bid_sz=[1, 2, 9]))
    act(env, LONG_LARGE, SHORT_LARGE)
    assert env.position[0] == -2 and env.filled[0] == -4 and env.fee_paid[0] == 4 * FEE
    # The two lots that close the long fill first, at 100 and 99; the short opens at 99 and 98.
    assert env.closed[0] == 1 and env.closed_lots[0] == 2 and env.closed_rows[0] == 1
    assert env.closed_pnl[0] == (100 + 99 - 2 * 101) * 1000 - 4 * FEE
    assert env.cash[0] == env.closed_pnl[0] + (99 + 98) * 1000 - 2 * FEE


def test_half_flat_ends_no_round_trip():
    env = one_lane(flat_market())
    act(env, LONG_LARGE, 9)
    assert env.position[0] == 1 and env.closed[0] == 0 and env.filled[0] == -1
    act(env, 3)
    assert env.position[0] == 0 and env.closed[0] == 1 and env.closed_lots[0] == 1
    assert env.closed_rows[0] == 2 and env.closed_pnl[0] == env.equity[0] == -2000 - 4 * FEE


def test_the_stop_follows_the_best_bid_and_exits_a_row_after_it_was_hit():
    #                           open  +    best  -2   -4: hit  exit at 95
    env = one_lane(flat_market(bid=[100, 100, 103, 106, 104, 102, 95, 95, 95]))
    act(env, LONG_SMALL, 7, 7, 7)  # 16, then 8, then 4 ticks
    assert env.trail[0] == 0 and env.row[0] == 4 and env.position[0] == 1 and env.target[0] == 1
    act(env, HOLD)
    assert env.position[0] == 1 and env.target[0] == 0  # seen at the close of row 5: the order goes out
    assert env.mask[0].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    act(env, SHORT_LARGE)  # can't: an order is on its way
    assert env.action_done[0] == HOLD and env.ordered[0] == 0
    assert env.position[0] == 0 and env.closed[0] == 1 and env.closed_pnl[0] == (95 - 101) * 1000 - 2 * FEE


def test_a_new_position_starts_without_a_stop_and_adding_keeps_it():
    env = one_lane(flat_market())
    act(env, SHORT_SMALL, 7)
    assert env.trail[0] == 2
    act(env, SHORT_LARGE)
    assert env.position[0] == -2 and env.trail[0] == 2
    act(env, LONG_SMALL)
    assert env.position[0] == 1 and env.trail[0] == 3


def test_penalty_and_message_cost():
    env = one_lane(flat_market(), inventory_penalty=0.3, message_cost=0.2, fee_ticks=0.0)
    act(env, LONG_LARGE)
    assert env.reward[0] == pytest.approx(-2 * 0.5 - 0.2)
    act(env, HOLD)
    assert env.reward[0] == pytest.approx(-0.3 * 4)
    act(env, 7)
    assert env.reward[0] == pytest.approx(-0.3 * 4 - 0.2)
    act(env, 4)  # masked: a hold, which costs no message
    assert env.action_done[0] == HOLD and env.reward[0] == pytest.approx(-0.3 * 4)


@pytest.mark.parametrize(
    ("actions", "valid"),
    [
        ((), {0, 1, 2, 5, 6}),
        ((LONG_LARGE,), {0, 1, 2, 3, 5, 7, 9}),
        ((LONG_SMALL,), {0, 1, 2, 3, 6, 7}),
        ((SHORT_LARGE,), {1, 2, 4, 5, 6, 7, 10}),
        ((SHORT_SMALL, 7), {0, 2, 4, 5, 6, 7, 8}),
        ((SHORT_SMALL, 7, 7, 7), {0, 2, 4, 5, 6, 8}),
    ],
)
def test_masks(actions, valid):
    env = one_lane(flat_market())
    act(env, *actions)
    assert set(np.flatnonzero(env.mask[0])) == valid


def test_no_second_order_while_one_is_on_its_way():
    env = one_lane(flat_market(), latency_rows=3)
    act(env, LONG_SMALL)
    assert env.position[0] == 0 and env.target[0] == 1 and set(np.flatnonzero(env.mask[0])) == {HOLD}
    act(env, SHORT_SMALL)
    assert env.action_done[0] == HOLD
    act(env, HOLD)
    assert env.row[0] == 3 and env.position[0] == 1


def test_a_final_row_closes_instead_of_opening():
    env = one_lane(flat_market(rows=9))
    act(env, *[HOLD] * 7, LONG_LARGE)  # due on the last row: dropped
    assert env.done[0] == 1 and env.filled[0] == 0 and env.equity[0] == 0 and env.target[0] == 0


def test_drawdown_closes_at_the_touch_with_costs():
    env = one_lane(flat_market(bid=[100, 100, 100, 90, 90, 90, 90]), drawdown_ticks=10)
    env.drawdown[...] = 10_000
    act(env, LONG_SMALL, HOLD)
    assert env.done[0] == 0
    act(env, HOLD)
    assert env.done[0] == 2 and env.position[0] == 0
    assert env.equity[0] == env.closed_pnl[0] == (90 - 101) * 1000 - 2 * FEE


def test_lanes_are_independent():
    """Many lanes in one launch equal each lane in a launch of its own: one thread can run one lane."""
    market, cfg = random_market(21, sessions=1), small_config()
    rng = np.random.default_rng(0)
    starts, ends = rng.integers(10, 200, 33), rng.integers(210, 390, 33)
    actions = rng.integers(0, 11, (150, 33)).astype(np.int32)
    together, _, _ = build(market, cfg, B=33, training=False)
    alone = [build(market, cfg, B=1, training=False)[0] for _ in range(3)]
    picked = (0, 17, 32)
    together.reset_to(starts, ends)
    for env, b in zip(alone, picked):
        env.reset_to(starts[b : b + 1], ends[b : b + 1])
    written = [arg.name for arg in KERNEL.args if arg.role in ("inout", "out")]
    for action in actions:
        together.step(action)
        for env, b in zip(alone, picked):
            env.step(action[b : b + 1].copy())
            for name in written:
                assert np.array_equal(getattr(env, name)[0], getattr(together, name)[b]), name
