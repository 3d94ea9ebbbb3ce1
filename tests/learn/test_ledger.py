"""The ledger says why each attempt ended, spends nothing on interruptions, and stops a crash loop."""

import pytest

from trainer.errors import CrashLoop
from trainer.learn.ledger import LEDGER, Ledger, classify, read_attempts


def die(folder, step, monkeypatch, code="139"):
    ledger = Ledger(folder)
    ledger.start(step)
    monkeypatch.setenv("FOXHUNT_LAST_EXIT_CODE", code)


@pytest.mark.parametrize(
    ("code", "status", "message", "why"),
    [
        (75, "Failed", "", "interrupted"),
        (77, "Failed", "", "out of memory"),
        (-1, "Error", "pod deleted", "interrupted"),
        (-1, "Failed", "The node had condition: [DiskPressure], Evicted", "interrupted"),
        (-1, "Failed", "Pod was terminated in response to imminent node shutdown.", "interrupted"),
        (-1, "Error", "wait: Error (exit code 64)", "interrupted"),
        (-1, "Error", "Pod failed before main container starts due to ImagePullBackOff", "interrupted"),
        (0, "Error", "pod deleted", "interrupted"),
        (0, "Failed", "", "killed"),
        (137, "Failed", "main: OOMKilled (exit code 137)", "out of memory"),
        (137, "Failed", "main: Error (exit code 137)", "killed"),
        (137, "Failed", "The node was low on resource: memory.", "interrupted"),
        (143, "Failed", "main: Error (exit code 143)", "interrupted"),
        (None, "", "", "killed"),
        (139, "Failed", "main: Error (exit code 139): segmentation fault in node 7 of the graph", "crashed"),
        (1, "Failed", "", "crashed"),
    ],
)
def test_classify(code, status, message, why):
    assert classify(code, status, message) == why


def test_three_deaths_without_progress_are_a_crash_loop(tmp_path, monkeypatch):
    for _ in range(3):
        die(tmp_path, 500, monkeypatch)
    with pytest.raises(CrashLoop, match="3 attempts in a row died after step 500") as error:
        Ledger(tmp_path).start(500)
    assert error.value.exit_code == 76
    again = Ledger(tmp_path)
    again.start(500)  # a person who runs it again gets a fresh start
    assert again.attempt == 4


def test_a_new_checkpoint_or_an_interruption_resets_the_count(tmp_path, monkeypatch):
    die(tmp_path, 500, monkeypatch)
    die(tmp_path, 500, monkeypatch)
    die(tmp_path, 1000, monkeypatch)
    die(tmp_path, 1000, monkeypatch, code="75")
    die(tmp_path, 1000, monkeypatch)
    die(tmp_path, 1000, monkeypatch)
    Ledger(tmp_path).start(1000)


def test_ends_are_read_back_and_a_torn_line_is_skipped(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.start(0)
    ledger.end(700, "interrupted", 75)
    with open(tmp_path / LEDGER, "ab") as file:
        file.write(b'{"event": "start", "att')
    ledger = Ledger(tmp_path)
    ledger.start(700)
    first, second = read_attempts(tmp_path)
    assert (first.why, first.exit_code, first.last_step) == ("interrupted", 75, 700)
    assert (second.attempt, second.why, second.ended) == (1, "running", None)


def test_memory_that_was_too_small_is_remembered(tmp_path, monkeypatch):
    for code, message, limit in (("137", "main: OOMKilled (exit code 137)", 100), ("75", "", 300), ("77", "", 200)):
        ledger = Ledger(tmp_path)
        ledger.start(0, limit)
        monkeypatch.setenv("FOXHUNT_LAST_EXIT_CODE", code)
        monkeypatch.setenv("FOXHUNT_LAST_STATUS", "Failed")
        monkeypatch.setenv("FOXHUNT_LAST_MESSAGE", message)
    ledger = Ledger(tmp_path)
    assert [a.why for a in ledger.attempts] == ["out of memory", "interrupted", "out of memory"]
    assert ledger.memory_too_small == 200


def test_a_fold_that_runs_out_of_memory_while_it_is_judged(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path)
    ledger.start(0, 100)
    ledger.end(900, "done", 0)
    monkeypatch.setenv("FOXHUNT_LAST_EXIT_CODE", "137")
    monkeypatch.setenv("FOXHUNT_LAST_MESSAGE", "OOMKilled (exit code 137)")
    ledger = Ledger(tmp_path)
    assert (ledger.attempts[0].why, ledger.attempts[0].last_step) == ("out of memory", 900)
    assert ledger.memory_too_small == 100


def test_three_out_of_memory_in_a_row_are_a_crash_loop(tmp_path):
    for _ in range(3):
        ledger = Ledger(tmp_path)
        ledger.start(500, 100)
        ledger.end(500, "out of memory", 77)
    with pytest.raises(CrashLoop, match="3 attempts in a row"):
        Ledger(tmp_path).start(500, 100)
