"""How a study on a cluster looks: what each fold's line says, that it fits, that a terminal is drawn over in place."""

import io
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.workflows.cluster_objects import LABELS, Study, main_dead, running, unschedulable
from workflows import status, study_screen
from workflows.status import PodLog
from workflows.study_screen import LiveScreen, PlainLines, duration, fold_block, lines

NOW = 20000.0


def busy() -> status.Study:
    """One fold of each kind: trains in its third attempt, waits for a GPU, main dead."""
    study = Study(began=12000, **{"n-steps": "25000"})
    study.task("resolve", [{"phase": "Succeeded"}], "Succeeded")
    killed = [
        {"phase": "Error", "message": "pod deleted", "host": "a", "seconds": 190},
        {"phase": "Failed", "code": 77},
    ]
    study.task("train", [*killed, {"host": "gpu-b", "pod": running(13000)}], fold=0)
    study.task("train", [{"phase": "Pending", "pod": unschedulable()}], fold=1)
    study.task("train", [{"host": "gpu-b", "pod": main_dead(NOW - 40)}], fold=2)
    metrics = {"step": 15250, "attempt": 2, "sps": 151.3, "l_q": 2.345, "wr": 0.5}
    log = PodLog(NOW - 3, metrics, 15250, None, "training", NOW - 3, checkpoint_step=15000, checkpoint_time=NOW - 42)
    return status.build(study.tree, study.pods, {next(iter(study.pods)): log}, now=NOW)


def text(study: status.Study, **more) -> str:
    return "\n".join(line for _, line in lines(study, now=NOW, **more))


def test_everything_that_a_person_asks_is_on_it():
    shown = text(busy(), footer="3 API calls")
    assert re.search(r"fold 0 - 12-25 23:30 +━{7}╌{5} +15250/25000 +151.3/s +1m04s +42s +3 +gpu-b", shown)
    assert "attempt 1 on a ended after 3m10s: pod deleted" in shown
    assert "attempt 2 ended after 1m00s: out of memory, state saved (exit 77)" in shown
    assert "waits: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu." in shown
    assert "! main container dead for 40 s (exit 137), but the pod keeps running" in shown
    assert "type: kubectl delete pod alpha-rl-demo-x7k2p-train-" in shown
    assert "Running 2h13m" in shown and "✓ resolve" in shown and shown.endswith("3 API calls")
    assert "l_q" not in shown and "l_q 2.35  wr 0.5" in text(busy(), width=160)


def test_what_a_done_fold_shows():
    study = Study(phase="Succeeded").task(
        "train", [{"phase": "Succeeded"}], "Succeeded", 0, {"wr": "0.6", "hold-pct": "44"}
    )
    (style, line), *rest = fold_block(status.build(study.tree, now=NOW).folds[0])
    assert (
        style == "green"
        and line.startswith("✓ fold 0")
        and "1000/1000" in line
        and line.endswith("wr 0.6  hold_pct 44")
    )
    assert not rest


def test_between_attempts_and_at_the_end():
    study = Study().task("train", [{"phase": "Failed", "code": 75}], fold=0, message="Backoff for 20 seconds")
    assert "attempt 2 follows: Backoff for 20 seconds" in text(status.build(study.tree, now=NOW))
    failed = Study(phase="Failed").task("train", [{"phase": "Failed", "code": 1}], "Failed", 0)
    assert text(status.build(failed.end("Failed", "child failed").tree, now=NOW)).count("failed") >= 2


def test_what_the_controller_itself_refuses_is_shown():
    study = Study().task("train", [{"pod": running()}], "Error", 0, message="task 'x' errored: displayName must match")
    task = status.build(study.tree, study.pods, now=NOW).folds[0]
    assert "    task 'x' errored: displayName must match" in [line for _, line in fold_block(task)]
    assert "errored: displayName" in study_screen.plain_line(task)


def many(folds: int) -> status.Study:
    LONG = [f"fold {n} - 12-25 23:30" for n in range(folds)]
    study = Study(folds=str(folds))
    old, LABELS[:] = LABELS[:], LONG
    try:
        for n in range(folds):
            kind = n % 3
            attempt = [{"phase": "Succeeded"}, {"phase": "Pending", "pod": unschedulable()}, {"pod": running(NOW - 9)}][
                kind
            ]
            study.task("train", [attempt], "Succeeded" if kind == 0 else "Running", n)
    finally:
        LABELS[:] = old
    return status.build(study.tree, study.pods, now=NOW)


def test_a_hundred_folds_fit_a_small_terminal():
    shown = lines(many(100), 100, 24, NOW, "footer")
    assert len(shown) <= 24
    words = "\n".join(line for _, line in shown)
    assert "✓ 34 folds done" in words and "… 33 folds waiting: 0/2 nodes" in words
    assert re.search(r"and \d+ more folds at work", words) and words.endswith("footer")
    assert len(lines(many(100), 100, 500, NOW)) == 3 + 100 + 33, "with room every fold has its line"


def test_trouble_comes_first_where_room_is_short():
    shown = text(busy(), height=9)
    assert "main container dead" in shown and "attempt 1 on a" not in shown


@settings(deadline=None, max_examples=40)
@given(st.integers(40, 200), st.integers(8, 60))
def test_lines_never_leave_the_screen(width, height):
    for study in (busy(), many(7)):
        shown = lines(study, width, height, NOW, "x" * 300)
        assert all(len(line) <= width for _, line in shown)
        assert len(shown) <= max(height, 8)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, ""), (0.4, "0s"), (59.9, "59s"), (60, "1m00s"), (3599, "59m59s"), (7500, "2h05m"), (356400, "4d03h")],
)
def test_durations(seconds, shown):
    assert duration(seconds) == shown


def test_plain_lines_only_at_changes(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(study_screen.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    plain = PlainLines(out)
    plain.show(busy(), "")
    first = out.getvalue()
    assert first.count("\n") == 7, first
    assert "train-1      pending    fold 1 - 12-26 02:10  because 0/2 nodes are available" in first
    assert "ETA 1m04s  saved 42s ago  l_q 2.35  wr 0.5" in first
    plain.show(busy(), "")
    assert out.getvalue() == first, "nothing new, nothing said"
    clock[0] += 31
    plain.show(busy(), "")
    assert out.getvalue().removeprefix(first).startswith("train-0      running") and out.getvalue().count("\n") == 8


def test_a_terminal_is_drawn_over_in_place(monkeypatch):
    """No line is scrolled away and the screen isn't cleared between frames: that would flicker."""
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=100, height=40, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    study = busy()
    with LiveScreen() as screen:
        screen.show(study, "frame 1")
        terminal.truncate(0)
        screen.show(study, "frame 2")
        second = terminal.getvalue()
    assert "frame 2" in second and "\x1b[2J" not in second and "\x1b[H" not in second
    height = len(lines(study, 100, 39, time.time(), "frame 2"))
    assert second.count("\x1b[1A") == height, "it goes up over its own lines"
    assert second.count("\n") == height
