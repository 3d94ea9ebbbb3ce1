"""A fixed rule on the synthetic market earns what an independent simulation of the same rules and costs found."""

from __future__ import annotations

import numpy as np
import pytest

from tests.env.books import small_config
from trainer.data.market import synthetic_market
from trainer.device.base import NumpyDevice
from trainer.device.fields import Field, allocate
from trainer.env.environment import Environment
from trainer.env.fields import env_fields
from trainer.env.market import market_fields

LANES, ROWS = 20, 500


def follow_imbalance(signal: float) -> tuple[float, float, float]:
    """Two lots on the heavier side: net and costs in ticks per 10,000 rows, and the share of winning round trips."""
    market = synthetic_market(f"synthetic:signal={signal},rows={LANES * ROWS + 100},seed=3")
    cfg, device = small_config(), NumpyDevice()
    fields = market_fields(market, cfg, market.normalisation((0, len(market))))
    store = allocate(device, [*fields, *env_fields(cfg, LANES), Field("clock.step", (1,), "int64")])
    env = Environment(device, cfg, store)
    start = 50 + ROWS * np.arange(LANES)
    env.reset_to(start, start + ROWS)
    bid, ask = (np.asarray(size)[:, :5].sum(axis=1) for size in (market.bid_sz, market.ask_sz))
    tilt = (bid - ask) / (bid + ask)
    wins = trips = costs = 0
    for _ in range(ROWS):
        seen = tilt[env.row]
        env.step(np.select([seen > 0.2, seen < -0.2], [6, 0], 2).astype(np.int32))
        wins += int(((env.closed == 1) & (env.closed_pnl > 0)).sum())
        trips += int(env.closed.sum())
        costs += int((env.fee_paid + env.spread_paid).sum())
    scale = 10_000 / (LANES * ROWS) / 1000
    return int(env.equity.sum()) * scale, costs * scale, wins / trips


def test_with_a_signal_the_rule_earns_its_known_profit():
    net, _, win_rate = follow_imbalance(0.75)
    assert net == pytest.approx(22_650, abs=2_000)
    assert 0.62 <= win_rate <= 0.69


def test_on_a_martingale_it_loses_its_costs():
    net, costs, _ = follow_imbalance(0.0)
    # Two lots over 10,000 rows of jumps with variance 6: a standard deviation of 490 ticks.
    assert costs > 5_000 and net == pytest.approx(-costs, abs=2_000)
