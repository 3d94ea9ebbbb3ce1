"""The loop around a recipe that only counts: what is saved, told and stopped when, however slow the writer is."""

import os
import signal
import threading

import numpy as np
import pytest

from trainer.config import RunConfig
from trainer.errors import FoxhuntError, Interrupted
from trainer.learn import checkpoint as ck
from trainer.learn.loop import train
from trainer.learn.metrics import read_metrics
from trainer.learn.validation import LAG

PATIENCE_S = 60


class Counter:
    """State: the step, twice. `at` maps a step to what happens at its end; `told` keeps what the loop asked for."""

    def __init__(self, at=None, bad_from=None):
        self.state = {"clock.step": np.zeros(1, np.int64), "opt.param": np.zeros(4)}
        self.at, self.bad_from = at or {}, bad_from
        self.told, self.under_way = [], None

    @property
    def step_count(self):
        return int(self.state["clock.step"][0])

    @property
    def env_steps(self):
        return 64

    def step(self):
        for array in self.state.values():
            array += 1
        self.at.get(self.step_count, lambda: None)()

    def freeze(self):
        self.told.append(("freeze", self.step_count))
        kept = {name: array.copy() for name, array in self.state.items()}
        return lambda: kept

    def restore(self, arrays):
        for name, array in self.state.items():
            array[...] = arrays[name]

    def metrics(self, lag=0):
        return {"counted": self.step_count - lag}

    def went_bad(self, lag=0):
        return self.bad_from is not None and self.step_count - lag >= self.bad_from

    def begin_validation(self, lag):
        self.told.append(("begin", self.step_count, lag))
        self.under_way = self.step_count, self.step_count + lag

    def validated(self, last=False):
        if self.under_way is None or not (last or self.step_count >= self.under_way[1]):
            return {}
        begun, self.under_way = self.under_way[0], None
        return {"val_step": begun, "val_taken": self.step_count}

    def first_bad_array(self, arrays=None):
        param = (arrays or self.state)["opt.param"]
        return None if np.isfinite(param).all() else "opt.param"


def run(recipe, folder, steps=20, **settings):
    defaults = {"checkpoint_every": 10, "metrics_every": 5, "validate_every": 0}
    cfg = RunConfig(n_steps=steps, **(defaults | settings))
    return train(lambda: recipe, cfg, folder, 0, {}, quiet=True)[1]


def saved(folder):
    return [ck.read_checkpoint(path) for path in reversed(ck.list_checkpoints(folder))]


@pytest.fixture
def gate(monkeypatch):
    """Writes wait until it is opened."""
    opened, write = threading.Event(), ck.write_checkpoint

    def gated(*values):
        assert opened.wait(PATIENCE_S), "nobody opened the gate"
        write(*values)

    monkeypatch.setattr(ck, "write_checkpoint", gated)
    return opened


def test_training_goes_on_while_a_checkpoint_of_its_boundary_is_written(tmp_path, gate):
    recipe = Counter({17: gate.set})
    run(recipe, tmp_path)  # would end at the gate if step 17 had to wait for the write of step 10
    for found in saved(tmp_path):
        assert found.arrays["clock.step"][0] == found.step
        assert (found.arrays["opt.param"] == found.step).all()
    assert [found.step for found in saved(tmp_path)] == [10, 20]


def test_a_second_save_waits_for_the_first(tmp_path, monkeypatch):
    """So its snapshot is taken only when nobody reads the one before any more."""
    recipe, write = Counter(), ck.write_checkpoint

    def told(path, step, *rest):
        write(path, step, *rest)
        recipe.told.append(("written", step))

    monkeypatch.setattr(ck, "write_checkpoint", told)
    run(recipe, tmp_path, checkpoint_every=2)
    assert recipe.told == [(what, step) for step in range(2, 21, 2) for what in ("freeze", "written")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_for_the_write_under_way_and_saves(tmp_path, gate, number):
    recipe = Counter({13: lambda: os.kill(os.getpid(), number), 14: pytest.fail})
    threading.Timer(0.2, gate.set).start()
    with pytest.raises(Interrupted, match=f"{signal.Signals(number).name}: saved at step 13 of 20"):
        run(recipe, tmp_path)
    assert [found.step for found in saved(tmp_path)] == [10, 13]
    again = Counter()
    run(again, tmp_path)
    assert again.step_count == 20 and [line["step"] for line in read_metrics(tmp_path)] == [5, 10, 15, 20]


@pytest.mark.parametrize("error", [Interrupted("the lease is lost"), RuntimeError("the card is gone")])
def test_what_fails_in_the_background_ends_the_run(tmp_path, monkeypatch, error):
    failed = threading.Event()

    def failing(*_):
        failed.set()
        raise error

    monkeypatch.setattr(ck, "write_checkpoint", failing)
    recipe = Counter({n: lambda: failed.wait(PATIENCE_S) for n in range(11, 100)})
    with pytest.raises(type(error), match=str(error)):
        run(recipe, tmp_path, steps=100_000, checkpoint_every=10_000_000, checkpoint_minutes=1e-9)
    assert recipe.step_count < 100_000


def test_bad_weights_are_never_written(tmp_path):
    """Found by the writer's thread alone: no gradient told of them."""
    recipe = Counter()

    def spoil():
        recipe.state["opt.param"][2] = np.nan

    recipe.at[15] = spoil
    with pytest.raises(FoxhuntError, match=r"fold 0, step 20: opt.param is not finite"):
        run(recipe, tmp_path, steps=40)
    assert [found.step for found in saved(tmp_path)] == [10]


def test_a_bad_gradient_stops_the_run_one_step_later(tmp_path):
    recipe = Counter(bad_from=13)
    with pytest.raises(FoxhuntError, match=r"fold 0, step 13: opt.grad is not finite"):
        run(recipe, tmp_path)
    assert recipe.step_count == 14 and [found.step for found in saved(tmp_path)] == [10]
    assert [line["step"] for line in read_metrics(tmp_path)] == [5, 10]


def test_a_line_tells_of_its_own_step(tmp_path):
    run(Counter(), tmp_path, steps=23)
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 23]
    assert [line["counted"] for line in lines] == [5, 10, 15, 20, 23]
    assert all(line["env_steps_per_s"] == pytest.approx(64 * line["sps"], rel=1e-2) for line in lines)


def test_a_line_is_written_when_the_run_is_stopped_at_its_step(tmp_path):
    recipe = Counter({15: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    with pytest.raises(Interrupted):
        run(recipe, tmp_path)
    assert [line["step"] for line in read_metrics(tmp_path)] == [5, 10, 15]
    run(Counter(), tmp_path)
    assert [(line["step"], line["attempt"]) for line in read_metrics(tmp_path)] == [(5, 0), (10, 0), (15, 0), (20, 1)]


def test_a_line_that_a_kill_took_is_written_by_the_next_attempt(tmp_path):
    run(Counter(), tmp_path, steps=10)
    path = tmp_path / "metrics-0.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    run(Counter(), tmp_path)
    lines = read_metrics(tmp_path)
    assert [(line["step"], line["counted"], line["attempt"]) for line in lines] == [
        (5, 5, 0), (10, 10, 1), (15, 15, 1), (20, 20, 1)
    ]  # fmt: skip


def test_validation_begins_at_its_cadence_and_its_result_is_told_in_the_next_line(tmp_path):
    recipe = Counter()
    run(recipe, tmp_path, validate_every=8, steps=27)
    assert [told for told in recipe.told if told[0] == "begin"] == [("begin", step, 8) for step in (8, 16, 24)]
    told = {
        line["step"]: (line["val_step"], line["val_taken"]) for line in read_metrics(tmp_path) if "val_step" in line
    }
    assert told == {20: (8, 16), 25: (16, 24), 27: (24, 27)}  # the last one is taken before its time: the run ends


def test_a_result_is_due_a_fixed_number_of_steps_later_where_validations_are_rare(tmp_path):
    recipe = Counter()
    run(recipe, tmp_path, validate_every=2 * LAG, steps=5 * LAG)
    assert [told for told in recipe.told if told[0] == "begin"] == [("begin", 2 * LAG, LAG), ("begin", 4 * LAG, LAG)]
    assert [line["val_taken"] for line in read_metrics(tmp_path) if "val_step" in line] == [3 * LAG, 5 * LAG]
