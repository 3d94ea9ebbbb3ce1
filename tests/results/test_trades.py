"""Round trips against a lot-by-lot reference, and the identities that an evaluation must keep."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.results.study import account, make_run
from trainer.errors import FoxhuntError
from trainer.results.eval_run import ENDS, Fills, build_trades, fills_from_path

PATHS = st.lists(st.tuples(st.sampled_from([-2, -1, 0, 1, 2]), st.integers(-6, 6)), min_size=1, max_size=40)


def lane_of(steps):
    target, moves = map(np.array, zip(*[*steps, (0, 0)]))
    return account(2_000 + np.cumsum(moves), target, np.full(len(target), 2), np.zeros(len(target)))


def slow_trades(fills):
    """(entry, exit, side, lots, net) of each round trip, one lot at a time."""
    done, position, trip = [], 0, None
    for at, lots, notional, fee in zip(*(a.tolist() for a in (fills.at, fills.lots, fills.notional, fills.fee))):
        side, n = np.sign(lots), abs(lots)
        for _ in range(n):
            if position == 0:
                trip = [at, at, side, 0, 0]
            trip[3] += side == trip[2]
            trip[4] -= (side * abs(notional) + fee) / n
            position += side
            if position == 0:
                trip[1] = at
                done.append(tuple(trip))
    return done


@settings(max_examples=80, deadline=None)
@given(PATHS)
def test_trades_equal_those_counted_lot_by_lot(steps):
    lane = lane_of(steps)
    t = build_trades(lane.fills)
    got = list(zip(t.entry_at.tolist(), t.exit_at.tolist(), t.side.tolist(), t.lots.tolist(), t.net.tolist()))
    assert got == slow_trades(lane.fills)
    assert t.net.sum() == lane.equity[-1]
    assert t.fees.sum() == lane.fee_paid[-1] and t.spread.sum() == lane.spread_paid[-1]
    assert t.gross.sum() == lane.gross[-1]


@settings(max_examples=40, deadline=None)
@given(PATHS)
def test_fills_come_back_out_of_the_path(steps):
    lane = lane_of(steps)
    mid = np.array([m for _, m in [*steps, (0, 0)]]).cumsum() + 2_000
    cash = lane.equity - lane.position * mid * 500
    reason = np.zeros(len(mid), np.int8)
    reason[-1] = 2
    again = fills_from_path(lane.position, cash, lane.fee_paid, lane.spread_paid, reason)
    for part in dataclasses.fields(Fills):
        np.testing.assert_array_equal(getattr(again, part.name), getattr(lane.fills, part.name))


def test_a_flip_ends_one_trip_and_starts_the_next_at_one_price():
    # buys 1 at 100, sells 3 at 110 (a flip to -2), buys 2 at 105
    f = Fills(
        *map(np.array, ([0, 4, 9], [1, -3, 2], [100_000, -330_000, 210_000], [100, 300, 200], [500, 1500, 1000])),
        np.array([0, 0, 1], np.int8),
    )
    t = build_trades(f)
    assert t.net.tolist() == [10_000 - 200, 10_000 - 400]
    assert t.side.tolist() == [1, -1] and t.lots.tolist() == [1, 2]
    assert t.entry_price.tolist() == [100.0, 110.0] and t.exit_price.tolist() == [110.0, 105.0]
    assert [ENDS[i] for i in t.ended] == ["flip", "trailing stop"]
    assert t.entry_at.tolist() == [0, 4] and t.exit_at.tolist() == [4, 9]


def test_a_flip_of_odd_money_loses_no_unit():
    f = Fills(*map(np.array, ([0, 1, 2], [1, -3, 2], [101, -331, 211], [1, 2, 1], [1, 2, 3])), np.zeros(3, np.int8))
    t = build_trades(f)
    assert t.net.sum() == -(101 - 331 + 211) - 4 and t.fees.sum() == 4 and t.spread.sum() == 6


def test_adding_and_halving_stay_in_one_trip():
    f = Fills(
        *map(np.array, ([0, 2, 5, 7], [1, 1, -1, -1], [100_000, 102_000, -104_000, -101_000], [0] * 4, [0] * 4)),
        np.array([0, 0, 0, 2], np.int8),
    )
    t = build_trades(f)
    assert len(t) == 1 and t.lots[0] == 2 and t.net[0] == 3_000
    assert (t.entry_price[0], t.exit_price[0], ENDS[t.ended[0]]) == (101.0, 102.5, "session end")


def test_no_fills_are_no_trades():
    empty = np.zeros(0, np.int64)
    assert len(build_trades(Fills(empty, empty, empty, empty, empty, empty.astype(np.int8)))) == 0


def test_two_fills_in_one_step_are_refused():
    zeros = np.zeros(4, np.int64)
    cash = np.array([0, 0, -1200, -1200])
    with pytest.raises(FoxhuntError, match="decision 2: two fills in one step"):
        fills_from_path(zeros, cash, np.array([0, 0, 200, 200]), zeros, zeros)


def _with(run, **parts):
    return dataclasses.replace(run, policy=dataclasses.replace(run.policy, **parts))


@pytest.mark.parametrize(
    "spoil,message",
    [
        (lambda r: _with(r, equity=r.policy.equity[:-1]), "equity has 299 of 300 decisions"),
        (lambda r: _with(r, equity=r.policy.equity + 1), "cash of the fills and equity differ"),
        (lambda r: _with(r, fee_paid=r.policy.fee_paid + 1), "fees of fills and path differ at decision 0"),
        (lambda r: _with(r, spread_paid=r.policy.spread_paid * 2), "spread costs of fills and path differ"),
        (lambda r: _with(r, position=r.policy.position * 0 + 1), "lots and position of fills and path differ"),
        (lambda r: dataclasses.replace(r, ts=r.ts[::-1].copy()), "times go back"),
    ],
)
def test_a_broken_account_is_a_bug_and_never_a_figure(spoil, message):
    run = make_run(0, n=300)
    run.check()
    with pytest.raises(FoxhuntError, match=message) as caught:
        spoil(run).check()
    assert caught.value.exit_code == 1


def test_an_open_position_at_the_end_is_a_bug():
    lane = lane_of([(1, 0)])
    f = lane.fills
    opened = Fills(*(getattr(f, x.name)[:1] for x in dataclasses.fields(Fills)))
    run = make_run(0, n=300)
    two = dataclasses.replace(
        run,
        ts=run.ts[:1],
        policy=dataclasses.replace(
            lane,
            **{k: getattr(lane, k)[:1] for k in ("equity", "fee_paid", "spread_paid", "position", "action", "ordered")},
            fills=opened,
        ),
        baselines={},
    )
    with pytest.raises(FoxhuntError, match="ends with 1 lots open"):
        two.check()
