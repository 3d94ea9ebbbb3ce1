"""A pod is heard of at least at its interval, a terminal never; metric lines count."""

import json
import time

import pytest

from trainer.learn.heartbeat import Heartbeat


@pytest.fixture
def in_pod(monkeypatch, tmp_path):
    monkeypatch.setenv("FOXHUNT_POD", "pod")
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(tmp_path / "progress"))
    return tmp_path / "progress"


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_silent_pod_is_heard_of_with_step_and_age(in_pod, capsys):
    with Heartbeat(2, 100, every_s=0.05) as heartbeat:
        heartbeat.at(7, 3)
        heartbeat.phase = "training"
        time.sleep(0.3)
    heard = lines(capsys)
    assert len(heard) >= 3
    assert {k: heard[-1][k] for k in ("fold", "heartbeat", "step", "total", "attempt")} == {
        "fold": 2,
        "heartbeat": "training",
        "step": 7,
        "total": 100,
        "attempt": 3,
    }
    assert heard[-1]["step_age_s"] >= 0.1 and heard[-1]["time"] > 1e9
    assert in_pod.read_text() == "7/100\n"


def test_lines_that_are_printed_anyway_are_enough(in_pod, capsys):
    with Heartbeat(0, 10, every_s=0.5) as heartbeat:
        for _ in range(20):
            heartbeat.spoke()
            time.sleep(0.05)
    assert lines(capsys) == []


def test_outside_of_a_pod_it_is_silent(monkeypatch, capsys):
    monkeypatch.delenv("FOXHUNT_POD", raising=False)
    with Heartbeat(0, 10, every_s=0.01):
        time.sleep(0.05)
    assert lines(capsys) == []
