"""Metrics of several attempts read as one series, nothing doubled; progress goes where the workflow looks."""

import json

from trainer.learn.ledger import Ledger
from trainer.learn.metrics import MetricsWriter, read_metrics


def attempt(folder, resumed, steps, total=100):
    ledger = Ledger(folder)
    ledger.start(resumed)
    writer = MetricsWriter(folder, ledger.attempt, total, fold=0)
    for step in steps:
        writer.write(step, {"l_q": float(step), "attempt_no": ledger.attempt})
    writer.close()


def test_lines_past_the_resumed_step_are_superseded(tmp_path, capsys):
    attempt(tmp_path, 0, [10, 20, 30, 40])
    attempt(tmp_path, 20, [30, 40, 50])
    attempt(tmp_path, 50, [60])
    series = read_metrics(tmp_path)
    assert [line["step"] for line in series] == [10, 20, 30, 40, 50, 60]
    assert [line["attempt_no"] for line in series] == [0, 0, 1, 1, 1, 2]
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 8 and json.loads(out[0])["fold"] == 0


def test_nan_is_null_and_progress_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(tmp_path / "progress"))
    writer = MetricsWriter(tmp_path, 0, 100, fold=1, quiet=True)
    writer.write(7, {"wr": float("nan"), "l_q": float("inf"), "steps": 3})
    assert (tmp_path / "progress").read_text() == "7/100\n"
    (line,) = read_metrics(tmp_path)
    assert line["wr"] is None and line["l_q"] is None and line["steps"] == 3
