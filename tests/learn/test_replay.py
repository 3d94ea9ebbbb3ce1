"""Replay as region code: what a sample holds, when learning may start, and what a transition costs in memory."""

import numpy as np
import pytest

from tests.learn.stage import Stage, small_config
from trainer.config import build_config, load_config
from trainer.device import NumpyDevice, allocate
from trainer.learn import replay


def test_a_sample_is_the_transition_that_was_collected():
    cfg = small_config(n_step=2)
    stage, seen = Stage(NumpyDevice(), cfg), 0
    for _ in range(80):
        stage.step()
        if not stage.learning or stage.learn.calls == 0:
            continue
        now = len(stage.past) - 1
        newest = now - 1 - 2  # first step of the youngest transition that was there before this step
        for m, slot in enumerate(stage.store["sample.slots"]):
            block, b = divmod(int(slot), 8)
            t = newest - (newest - block) % 16  # 16 blocks of 8 slots
            past = stage.past
            done = [past[t + i]["env.done"][b] for i in range(2)]
            k = 1 if done[0] else 2
            s = stage.store.ns("sample")
            assert past[t]["env.valid"][b], "a transition that starts at a reset was drawn"
            assert s.action[m] == past[t]["acting.action"][b] and s.n_used[m] == k
            assert s.terminal[m] == (done[k - 1] == 2)
            assert s.rewards[m].tolist() == [past[t]["env.reward"][b], past[t + 1]["env.reward"][b] * (k == 2)]
            assert stage.store["batch.row"][m] == past[t]["env.row"][b] and s.next_row[m] == past[t + k]["env.row"][b]
            np.testing.assert_array_equal(s.next_mask[m], past[t + k]["env.mask"][b])
            np.testing.assert_array_equal(stage.store["next.h_prev"][m], past[t + k]["policy.h"][b])
            np.testing.assert_array_equal(stage.store["next.private"][m], past[t + k]["env.private"][b])
            np.testing.assert_array_equal(stage.store["joint.h_prev"][m], past[t]["policy.h"][b])
            np.testing.assert_array_equal(stage.store["joint.private"][m], past[t]["env.private"][b])
            seen += 1
    assert seen > 300


def test_a_slot_that_was_learnt_from_and_overwritten_ends_up_new():
    stage = Stage(NumpyDevice(), small_config())
    for _ in range(60):
        stage.step()
        if stage.learn.calls:
            start = (int(stage.store["ring.pushed"][0]) - 1 - 3) * 8 % 128
            block = stage.store["replay.priority"][start : start + 8]
            assert set(block.tolist()) <= {float(stage.store["replay.max_priority"][0]), -1.0}


@pytest.mark.parametrize("batch, n_step", [(8, 3), (4, 1), (8, 8)])
def test_learning_may_start_when_replay_holds_ten_batches(batch, n_step):
    stage = Stage(NumpyDevice(), small_config(batch=batch, n_step=n_step, per_capacity=256))
    warm = replay.warm_steps(stage.cfg)
    held = []
    for _ in range(warm):
        stage.step()
        pushed = int(stage.store["ring.pushed"][0])
        held.append(max(0, pushed - n_step) * 8)
    assert held[-1] >= 10 * batch > held[-2]


def test_a_transition_stays_small():
    """Two hidden states of 128 floats are most of it; a window of observations alone would be 32 x 56 floats."""
    cfg = load_config("small", ["env.n_backtests=64", "learn.batch=64", "learn.per_capacity=4096"])
    store = allocate(NumpyDevice(), replay.replay_fields(cfg))
    assert store.nbytes("replay.") / 4096 < 2 * (128 + 8) * 4 + 64 < 32 * 56 * 4 / 5


def test_every_array_of_the_batch_is_scratch_and_all_else_is_checkpointed():
    cfg = build_config({"profile": "custom"})
    assert {f.kind for f in replay.batch_fields(cfg)} == {"scratch"}
    assert {f.kind for f in replay.replay_fields(cfg)} == {"state"}
