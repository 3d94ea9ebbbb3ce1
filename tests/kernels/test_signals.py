"""What the environment's step says about trading."""

import numpy as np
import pytest

from kernels.isv import SIZE, SLOTS
from kernels.signals import DECAY, N_SUMS, signals


class Meter:
    def __init__(self, real=np.float64):
        self.isv, self.sums = np.zeros(SIZE, real), np.zeros(N_SUMS, real)
        self.trades, self.step, self.real = np.zeros(1, np.int64), np.zeros(1, np.int64), real

    def __call__(self, valid, reward=0.0, ordered=0, closed=0, pnl=0, rows=0):
        """Scalars or lists, one entry a backtest."""
        n = np.broadcast(valid, reward, ordered, closed, pnl, rows).shape or (1,)

        def lane(x, dtype):
            return np.ascontiguousarray(np.broadcast_to(np.asarray(x, dtype), n))

        signals(
            *(lane(valid, np.int8), lane(reward, self.real), lane(ordered, np.int8), lane(closed, np.int8)),
            *(lane(pnl, np.int64), lane(rows, np.int32), self.sums, self.trades, self.step, self.isv),
        )

    def __getitem__(self, name):
        return self.isv[SLOTS[name]]


def test_one_step():
    meter = Meter()
    meter([1, 1, 1, 0], [1.0, 2.0, 0.0, 50.0], [1, 0, 0, 0], [1, 1, 0, 0], [5, -5, 9, 9], [4, 8, 99, 99])
    assert meter["hold_rows"] == 6 and meter["wr"] == 0.5 and meter["trades"] == 2
    assert meter["hold_pct"] == pytest.approx(200 / 3)  # two of three valid steps; a reset is no decision
    assert meter["reward_mean"] == pytest.approx(1.0)
    assert meter.step[0] == 1


def test_a_trade_that_breaks_even_is_a_loss():
    meter = Meter()
    meter(1, closed=[1, 1, 1], pnl=[0, 1, -1], rows=3)
    assert meter["wr"] == pytest.approx(1 / 3)


def test_the_mean_weighs_each_trade_by_its_age():
    meter, rng = Meter(), np.random.default_rng(0)
    history = []
    for t in range(300):
        closed, rows, pnl = rng.random(8) < 0.3, rng.integers(1, 30, 8), rng.integers(-9, 9, 8)
        history += [(t, r, p) for c, r, p in zip(closed, rows, pnl) if c]
        meter(np.ones(8), closed=closed, rows=rows, pnl=pnl)
    weight = np.array([DECAY ** (299 - t) for t, _, _ in history])
    rows, wins = np.array([r for _, r, _ in history]), np.array([p > 0 for _, _, p in history])
    assert meter["hold_rows"] == pytest.approx((weight * rows).sum() / weight.sum())
    assert meter["wr"] == pytest.approx((weight * wins).sum() / weight.sum())
    assert meter["trades"] == meter.trades[0] == len(history)


def test_without_trades_hold_rows_is_absent_and_wr_keeps_its_last_value():
    meter = Meter()
    meter(1, closed=1, pnl=1, rows=7)
    assert meter["hold_rows"] == 7
    for _ in range(3):
        meter(1)
    assert meter["hold_rows"] == 0 and meter["wr"] == 1 and meter["hold_pct"] == 100


def test_a_step_of_resets_alone_changes_no_ratio():
    meter = Meter()
    meter([1, 1], [3.0, 1.0], [1, 0])
    meter([0, 0], [9.0, 9.0])
    assert meter["reward_mean"] == pytest.approx(2.0) and meter["hold_pct"] == pytest.approx(50.0)
    assert meter.step[0] == 2


def test_nothing_is_divided_by_nothing():
    meter = Meter(np.float32)
    meter([0, 0])
    assert (meter.isv == 0).all()
