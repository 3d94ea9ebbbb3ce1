"""Starts, autoreset, lanes with given starts, and actions with their masks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from kernels.env_step import NO_ORDER
from tests.conftest import shared_data
from tests.env.books import UNDEF, WINDOW, build, random_market, small_config
from tests.env.test_against_slow import replay_and_compare
from trainer.device.base import NumpyDevice
from trainer.device.recording import RecordingDevice
from trainer.env import actions
from trainer.env.fields import MIN_ROWS, env_fields, start_rows
from trainer.env.market import session_bounds
from trainer.errors import DataError


def test_start_rows_leave_room_on_both_sides():
    first, last = session_bounds(np.repeat([0, 1, 2], [30, 5, 40]))
    legal = start_rows(first, last, (10, 70), k=4)
    assert legal.tolist() == [*range(13, 29 - MIN_ROWS + 1), *range(38, 69 - MIN_ROWS + 1)]


def test_no_room_is_an_error_that_says_how_much_is_needed():
    first, last = session_bounds(np.repeat([0, 1], [11, 11]))
    with pytest.raises(DataError, match="rows 0 to 21: no session in it has the 12 rows"):
        start_rows(first, last, (0, 22), k=4)


def test_random_starts_are_uniform():
    env, arrays, store = build(random_market(1, rows=120, sessions=2), small_config(), B=512)
    legal = start_rows(arrays["first"], arrays["last"], (0, 120), WINDOW)
    counts = np.zeros(120, int)
    for _ in range(40):
        env.reset_all()
        store["clock.step"][0] += 1
        np.add.at(counts, env.row, 1)
    assert set(np.flatnonzero(counts)) <= set(legal)
    assert chisquare(counts[legal]).pvalue > 1e-4


def test_starts_depend_on_seed_step_and_lane_only():
    cfg = small_config()
    a, _, store = build(random_market(1), cfg, B=32)
    b, _, _ = build(random_market(1), cfg, B=16)
    a.reset_all(), b.reset_all()
    assert (a.row[:16] == b.row).all()
    first = a.row.copy()
    store["clock.step"][0] = 1
    a.reset_all()
    assert (a.row != first).mean() > 0.8


def test_autoreset_happens_on_the_step_after_the_final_one():
    env, _, _ = build(random_market(2, sessions=1), small_config(episode_len=8, latency_rows=1), B=1)
    env.reset_all()
    assert env.valid[0] == 0 and env.done[0] == 0 and env.episode_row[0] == 0
    env.step(np.array([6], np.int32))
    assert env.ordered[0] == 1 and env.position[0] == 2
    for i in range(2, 9):
        assert env.done[0] == 0
        env.step(env.hold)
        assert env.episode_row[0] == i and env.valid[0] == 1
    assert env.done[0] == 1 and env.position[0] == 0 and env.closed[0] == 1
    final = env.row[0]
    env.step(np.array([6], np.int32))  # ignored
    assert env.valid[0] == 0 and env.reward[0] == 0 and env.ordered[0] == 0 and env.action_done[0] == 2
    assert env.done[0] == 0 and env.equity[0] == 0 and env.row[0] != final


def test_given_starts_run_once_and_then_stand():
    env, _, _ = build(random_market(4, sessions=1), small_config(), B=3, training=False)
    env.step(env.hold)
    assert (env.valid == 0).all() and (env.done == 1).all()  # parked from the beginning
    env.reset_to([10, 50, -1], [20, 1000, 0])
    assert env.row[:2].tolist() == [10, 50] and env.done.tolist() == [0, 0, 1]
    assert env.end_row[:2].tolist() == [20, 399]
    for _ in range(10):
        env.step(np.array([5, 1, 6], np.int32))
    assert env.row.tolist()[:2] == [20, 60] and env.done.tolist() == [1, 0, 1]
    equity = env.equity[0]
    for _ in range(5):
        env.step(np.array([5, 2, 6], np.int32))
        assert env.valid.tolist() == [0, 1, 0] and env.reward[0] == 0
    assert env.row[0] == 20 and env.equity[0] == equity != 0
    env.reset_to([30, 30, 30], [40, 40, 40])
    assert env.row.tolist() == [30, 30, 30] and not env.equity.any() and not env.position.any()
    env.step(np.array([6, 6, 6], np.int32))
    env.reset_to([50, 50, -1], [60, 60, 60])  # from the middle of an episode
    assert env.done.tolist() == [0, 0, 1] and env.mask[:, 2].all()
    for state in (env.position, env.target, env.equity, env.cash, env.reward, env.hold_rows):
        assert not state.any()


def test_reset_all_from_the_middle_of_an_episode():
    env, _, store = build(random_market(4), small_config(latency_rows=1), B=8)
    env.reset_all()
    for action in (6, 2, 0):
        env.step(np.full(8, action, np.int32))
        store["clock.step"][0] += 1
    assert env.position.all() and env.equity.any()
    env.reset_all()
    for state in (env.position, env.target, env.equity, env.cash, env.reward, env.hold_rows, env.done, env.valid):
        assert not state.any()


def test_evaluation_lanes_outlive_episode_length_and_drawdown():
    cfg = small_config(episode_len=8, drawdown_ticks=1)
    env, _, _ = build(random_market(4, sessions=1), cfg, B=1, training=False)
    env.reset_to([10], [390])
    for _ in range(379):
        env.step(np.array([6], np.int32))
        assert env.done[0] == 0
    assert env.peak[0] - env.equity[0] > 1000 and env.private[0, 7] == 1
    env.step(env.hold)
    assert env.done[0] == 1


def test_a_start_without_a_row_after_it_is_refused():
    env, _, _ = build(random_market(4, sessions=1), small_config(), B=2, training=False)
    with pytest.raises(ValueError, match="lane 1: start row 20 has no row after it"):
        env.reset_to([10, 20], [20, 20])


def test_fields_start_safe():
    """Before the first step every lane stands on a row with a whole window and may only hold."""
    fields = {f.name: f for f in env_fields(small_config(), 4, np.array([9, 12], np.int32), 50)}
    assert fields["env.row"].init == 9 and fields["env.done"].init == 1
    assert fields["env.mask"].init.sum(axis=1).tolist() == [1, 1, 1, 1]
    assert fields["env.fee"].kind == "data" and fields["env.cash"].kind == "state"


def test_action_table():
    cfg = small_config(lots_small=2, lots_large=5).env
    assert actions.target_table(cfg).tolist() == [-5, -2, NO_ORDER, 0, 0, 2, 5, NO_ORDER, NO_ORDER, 2, -2]
    assert actions.POSITION_ORDERS == {0, 1, 3, 4, 5, 6, 9, 10}
    assert actions.NAMES[0] == "short-large" and actions.NAMES[10] == "half-flat-short" and len(actions.NAMES) == 11


def test_real_order_flow_equals_the_slow_backtest():
    """Two minutes of E-mini S&P quotes, every event a row: many rows share a timestamp, fills come rows later."""
    databento = pytest.importorskip("databento")
    path = shared_data("nautilus/databento/futures_mbp-1_2024-07-01T23-58_2024-07-02T00-02.dbn.zst")
    rows = databento.DBNStore.from_file(path).to_ndarray()
    tick = 250_000_000  # 0.25 points in the file's 1e-9
    market = random_market(0, rows=len(rows), levels=1, sessions=1)
    market.ts = np.maximum.accumulate(rows["ts_event"].astype(np.int64))
    for side in ("bid", "ask"):
        assert not (rows[f"{side}_px_00"] % tick).any()
        setattr(market, f"{side}_px", (rows[f"{side}_px_00"] // tick).astype(np.int32)[:, None])
        setattr(market, f"{side}_sz", rows[f"{side}_sz_00"].astype(np.int32)[:, None])
    assert (market.bid_px != UNDEF).all() and (market.bid_px < market.ask_px).all()
    seen = replay_and_compare(market, small_config(trail_ticks=(1, 2, 3)), B=12, steps=250, seed=1, masked_share=0.1)
    assert seen["trades"] > 100 and seen["late"] > 500


def test_recorded_steps_equal_eager_ones():
    """Nothing of a step is decided on the host: the tape of one step replays every other, resets included."""
    stores = []
    for device in (NumpyDevice(), RecordingDevice()):
        env, _, store = build(random_market(6), small_config(episode_len=8), B=8, device=device)
        action = device.empty((8,), np.int32)
        region = device.region(lambda env=env, action=action: env.step(action), "env")
        history = []
        for i in range(23):
            device.fill(action, np.random.default_rng(i).integers(0, 11, 8))
            device.fill(store["clock.step"], i)
            region()
            history.append({name: np.array(array) for name, array in store.items("state")})
        stores.append(history)
    for step, (eager, recorded) in enumerate(zip(*stores)):
        for name, array in eager.items():
            assert np.array_equal(array, recorded[name]), (step, name)
