"""The GPU fails in the middle of a run: what the user is told, what the ledger keeps, and that the run goes on."""

import pytest

from tests.device.test_faults import cuda
from tests.learn.test_loop import Counter, run, saved
from trainer.device import faults
from trainer.device.base import Region
from trainer.errors import DeviceLost, FoxhuntError
from trainer.learn.ledger import read_attempts


@pytest.fixture(autouse=True)
def no_card(monkeypatch):
    monkeypatch.setattr(faults, "_management", lambda: None)
    monkeypatch.setattr(Region, "launched", "collect_and_learn")


def failing(status):
    def fail():
        raise cuda(status)

    return fail


def test_a_lost_card_is_an_interruption_and_the_next_attempt_goes_on(tmp_path):
    with pytest.raises(DeviceLost, match=r"uncorrectable ECC .* last launched: collect_and_learn") as caught:
        run(Counter({13: failing(214)}), tmp_path)
    assert caught.value.exit_code == 75 and caught.value.__cause__.status == 214
    assert [found.step for found in saved(tmp_path)] == [10]
    (attempt,) = read_attempts(tmp_path)
    assert (attempt.why, attempt.exit_code, attempt.explained) == ("interrupted", 75, True)
    assert run(Counter(), tmp_path).step == 20


def test_a_kernels_fault_is_a_failure_with_the_region(tmp_path):
    with pytest.raises(FoxhuntError, match=r"illegal memory access .* last launched: collect_and_learn") as caught:
        run(Counter({13: failing(700)}), tmp_path)
    assert caught.value.exit_code == 1
    (attempt,) = read_attempts(tmp_path)
    assert attempt.exit_code == 1 and attempt.why.startswith("failed: the GPU refused or broke a call")
    assert [found.step for found in saved(tmp_path)] == [10]


def test_a_fault_that_the_writers_thread_meets_ends_the_run_in_the_same_way(tmp_path):
    class Torn(Counter):
        def freeze(self):
            return failing(999) if self.step_count == 10 else super().freeze()

    with pytest.raises(DeviceLost, match="unknown error"):
        run(Torn(), tmp_path)
    assert saved(tmp_path) == [] and read_attempts(tmp_path)[0].exit_code == 75
