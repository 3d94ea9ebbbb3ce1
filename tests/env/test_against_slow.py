"""The vectorised kernel against the plain-Python backtest: equal to the last unit over random action sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.env.books import as_book, build, random_market, small_config
from tests.env.slow_backtest import Backtest, Outcome, Settings

OUTPUTS = (
    *("valid", "ordered", "action_done", "closed", "closed_pnl", "closed_rows", "closed_lots"),
    *("filled", "fee_paid", "spread_paid"),
)


def settings_of(cfg: Any) -> Settings:
    env = cfg.env
    return Settings(
        env.lots_small,
        env.lots_large,
        round(env.fee_ticks * 1000),
        env.trail_ticks,
        env.inventory_penalty,
        env.message_cost,
        round(env.drawdown_ticks * 1000),
        env.episode_len,
    )


def replay_and_compare(market: Any, cfg: Any, B: int, steps: int, seed: int, masked_share: float) -> dict[str, int]:
    """Runs both and compares every output and state after every step. Returns how often things happened."""
    env, arrays, store = build(market, cfg, B)
    book, rules = as_book(arrays), settings_of(cfg)
    rng = np.random.default_rng(seed)
    lanes: list[Backtest | None] = [None] * B
    seen = dict.fromkeys(("trades", "truncated", "drawdown", "stops", "flips", "late"), 0)
    for _ in range(steps):
        action = random_actions(rng, env.mask, masked_share)
        env.step(action)
        store["clock.step"][0] += 1
        for b in range(B):
            slow = lanes[b]
            if slow is None or slow.done:
                start = int(env.row[b])
                slow = lanes[b] = Backtest(book, rules, start, int(arrays["last"][start]))
                expected = Outcome(valid=False)
            else:
                had_order = slow.order is not None
                expected = slow.step(int(action[b]))
                seen["stops"] += not expected.ordered and not had_order and slow.order is not None
                seen["flips"] += expected.closed and slow.position != 0
                seen["late"] += had_order
            compare(env, b, slow, expected)
            seen["trades"] += expected.closed
            seen["truncated"] += slow.done == 1
            seen["drawdown"] += slow.done == 2
    return seen


def random_actions(rng: np.random.Generator, mask: np.ndarray, masked_share: float) -> np.ndarray:
    """Valid actions, mostly hold and the trail's; with probability `masked_share` any of the eleven."""
    weight = np.array([1, 1, 8, 1, 1, 1, 1, 4, 2, 1, 1])
    action = np.argmax(rng.random(mask.shape) ** (1 / weight) * mask, axis=1)
    anything = rng.random(len(mask)) < masked_share
    return np.where(anything, rng.integers(0, 11, len(mask)), action).astype(np.int32)


def compare(env: Any, b: int, slow: Backtest, expected: Outcome) -> None:
    got = {name: int(getattr(env, name)[b]) for name in OUTPUTS}
    assert got == {name: int(getattr(expected, name)) for name in OUTPUTS}
    state = {name: int(getattr(env, name)[b]) for name in ("row", "position", "cash", "equity", "peak", "done")}
    assert state == {
        "row": slow.row,
        "position": slow.position,
        "cash": slow.cash,
        "equity": slow.equity(),
        "peak": slow.peak,
        "done": slow.done,
    }
    assert abs(env.reward[b] - expected.reward) < 1e-9
    assert set(np.flatnonzero(env.mask[b])) == slow.valid_actions()
    assert np.abs(env.private[b] - slow.private()).max() < 1e-12
    assert np.abs(env.private[b]).max() <= 1


def test_many_sessions_thin_books_and_late_fills():
    seen = replay_and_compare(random_market(1), small_config(episode_len=32), B=16, steps=300, seed=2, masked_share=0.3)
    assert seen["trades"] > 300 and seen["truncated"] > 100 and seen["flips"] > 50
    assert seen["stops"] > 10 and seen["late"] > 1000


def test_drawdown_ends():
    cfg = small_config(drawdown_ticks=30, episode_len=64, latency_rows=1)
    seen = replay_and_compare(random_market(3, move=3.0), cfg, B=16, steps=250, seed=4, masked_share=0.0)
    assert seen["drawdown"] > 50 and seen["truncated"] > 5


def test_tight_stops():
    cfg = small_config(trail_ticks=(1, 2, 5), latency_ms=0.0)
    seen = replay_and_compare(random_market(5), cfg, B=16, steps=300, seed=6, masked_share=0.1)
    assert seen["stops"] > 50


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    levels=st.integers(1, 5),
    sessions=st.integers(1, 4),
    depth=st.integers(0, 6),
    latency=st.sampled_from([{"latency_ms": 0.0}, {"latency_ms": 5.0}, {"latency_ms": 40.0}, {"latency_rows": 3}]),
    lots=st.sampled_from([(1, 2), (2, 5), (3, 4)]),
    fee=st.sampled_from([0.0, 0.1, 1.234]),
    drawdown=st.sampled_from([5.0, 60.0, 500.0]),
    base=st.sampled_from([-20, 5000, 10_000_000]),
)
def test_any_market_any_settings(seed, levels, sessions, depth, latency, lots, fee, drawdown, base):
    market = random_market(seed, rows=250, levels=levels, sessions=sessions, depth=depth, base=base)
    small, large = lots
    cfg = small_config(
        lots_small=small, lots_large=large, fee_ticks=fee, drawdown_ticks=drawdown, episode_len=24, **latency
    )
    replay_and_compare(market, cfg, B=5, steps=60, seed=seed, masked_share=0.2)
