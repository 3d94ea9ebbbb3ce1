"""Rollouts as region code: what is served, when the boundary is due, and a change of T."""

import numpy as np
import pytest

from kernels.isv import SLOTS
from tests.learn.stage import Stage, small_config
from trainer.device import NumpyDevice
from trainer.device.recording import RecordingDevice
from trainer.learn import rollout


def test_recorded_regions_equal_eager_ones_at_every_step():
    """59 steps pass three boundaries and a change of T. Compared at each: an even count can hide a swap."""
    eager, recorded = (Stage(d(), small_config(rollout_len=16)) for d in (NumpyDevice, RecordingDevice))
    for number in range(59):
        for stage in (eager, recorded):
            if number == 20:
                stage.store["isv"][SLOTS["rollout_len"]] = 32
            stage.step()
        for name, array in eager.store.items():
            np.testing.assert_array_equal(array, np.asarray(recorded.store[name]), err_msg=f"{name} at step {number}")
    assert recorded.learn.graph is not None and eager.boundary.length == 32


@pytest.mark.parametrize("batch", [8, 4])
def test_each_row_of_a_rollout_is_served_at_most_once_with_its_own_values(batch):
    stage = Stage(NumpyDevice(), small_config(batch=batch))
    served = []
    for _ in range(60):
        stage.step()
        if stage.learning and len(stage.past) > 33:
            first = (len(stage.past) - 2) // 16 * 16 - 16  # step of row 0 of the rollout that is being served
            index = stage.store["served.index"] % (rollout.TM * 8)
            t, b = index // 8, index % 8
            served += [(first, int(x), int(y)) for x, y in zip(t, b)]
            for name in ("action", "log_mu", "value"):
                want = [stage.past[first + x][f"acting.{name}"][y] for x, y in zip(t, b)]
                np.testing.assert_array_equal(stage.store[f"served.{name}"], want)
            want = [stage.past[first + x]["env.row"][y] for x, y in zip(t, b)]
            np.testing.assert_array_equal(stage.store["batch.row"][batch:], want)
            np.testing.assert_array_equal(stage.store["served.aux_label"], np.array(want) % 4 - 1)
            want = [stage.past[first + x]["policy.h"][y].astype(np.float32) for x, y in zip(t, b)]
            np.testing.assert_array_equal(stage.store["joint.h_prev"][batch:], want)
    assert len(served) == len(set(served))
    epochs = {f: sum(x[0] == f for x in served) for f, *_ in served}
    assert max(epochs.values()) == 16 * batch  # 16 steps a rollout: all of it when M = B, half when M = B / 2


def test_boundaries_come_every_t_steps_and_follow_a_new_length():
    stage, due = Stage(NumpyDevice(), small_config()), []
    for number in range(1, 120):
        if number == 40:
            stage.store["isv"][SLOTS["rollout_len"]] = 32
        stage.step()
        if stage.boundary.filled == 1:
            due.append(number)
    # The rollout that closes at step 49 was begun with T = 16; the next ones have 32 rows.
    assert due == [1, 17, 33, 49, 81, 113]


def test_the_host_finds_its_count_again_after_a_resume():
    stage = Stage(NumpyDevice(), small_config())
    for _ in range(22):
        stage.step()
    again = rollout.Boundary(stage.device, stage.store)
    assert (again.filled, again.length, again.finished) == (6, 16, True)


def test_the_bootstrap_is_the_value_of_the_next_step():
    stage = Stage(NumpyDevice(), small_config())
    for _ in range(17):
        stage.step()
    np.testing.assert_array_equal(stage.store["rollout.bootstrap"], stage.past[16]["acting.value"])
    np.testing.assert_array_equal(stage.store["rollout.value"][0, :16], [p["acting.value"] for p in stage.past[:16]])
