"""The other commands as a user runs them: precompute over bad input, inspect, identity, gate, report, verify-resume."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.cli.processes import REPO, STEPS, Trainer
from tests.conftest import shared_data

ESU4 = "nautilus/databento/futures_mbp-1_2024-07-01T23-58_2024-07-02T00-02.dbn.zst"
TWO = "nautilus/databento/futures_ohlcv-1m_2024-07-01T23-40_2024-07-02T00-10.dbn.zst"


@pytest.fixture
def empty(tmp_path) -> Trainer:
    return Trainer(tmp_path / "empty", tmp_path / "cache")


def left_nothing(trainer: Trainer) -> bool:
    return not any(path.is_file() for path in trainer.runs.rglob("*"))


# -- precompute --


def test_precompute_refuses_a_missing_file(empty):
    empty.run("precompute", "--data", "nowhere.csv").fails(2, "nowhere.csv")
    assert left_nothing(empty)


def test_precompute_refuses_an_empty_file(empty):
    path = empty.root / "empty.csv"
    path.touch()
    empty.run("precompute", "--data", str(path)).fails(2, str(path), "empty")
    assert left_nothing(empty)


def test_precompute_refuses_what_is_no_market_file(empty):
    path = empty.root / "notes.csv"
    path.write_text("name,colour\nrose,red\n")
    empty.run("precompute", "--data", str(path)).fails(2, str(path), "name, colour")
    assert left_nothing(empty)


def test_precompute_lists_the_instruments_of_a_file_with_two(empty):
    path = str(shared_data(TWO))
    empty.run("precompute", "--data", path).fails(2, "ESU4", "NQU4", "symbol")
    assert left_nothing(empty)


def test_four_minutes_are_too_few_until_the_advice_is_taken(empty):
    path = str(shared_data(ESU4))
    longer = ("--set", "net.window=32", "--set", "env.episode_len=128")
    ended = empty.run("precompute", "--data", path, *longer).fails(2, "too few rows", "3 folds need at least")
    assert left_nothing(empty)
    advice = re.search(r"shorten the study: (.*) fits", ended.err)
    assert advice is not None, ended.err
    empty.run("precompute", "--data", path, *longer, *advice[1].split()).succeeds("fold 0: train rows")


@pytest.mark.parametrize("folds", ["0", "200"])
def test_a_number_of_folds_out_of_range(empty, folds):
    empty.run("precompute", "--data", "synthetic:rows=3000", "--folds", folds).fails(2, "folds", folds)
    assert left_nothing(empty)


def test_a_run_id_belongs_to_one_study(prepared):
    folder = prepared.runs / "alpha-rl-runs" / "run"
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    ended = prepared.run("precompute", "--data", "synthetic:rows=3001", "--folds", "1")
    ended.fails(2, "--run-id run", "another study", "data was synthetic:rows=3000", "now synthetic:rows=3001")
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_only_folds_hands_on_a_part_and_keeps_the_list(empty):
    data, out = "synthetic:rows=6000", empty.root / "out"
    empty.run("precompute", "--data", data, "--folds", "2", "--only-folds", "1", "--outputs", str(out)).succeeds()
    assert [item["fold"] for item in json.loads((out / "folds").read_text())] == [1]
    assert len(json.loads((empty.runs / "alpha-rl-runs" / "run" / "folds.json").read_text())) == 2


@pytest.mark.parametrize("only", ["7", "x"])
def test_only_folds_that_do_not_exist(empty, only):
    data = "synthetic:rows=6000"
    ended = empty.run("precompute", "--data", data, "--folds", "2", "--only-folds", only)
    ended.fails(2, f"--only-folds {only}", "0 to 1")


def test_no_thread_of_a_library_turns_an_end_into_an_abort(empty):
    """What runs while the interpreter is taken apart (here: an exit handler) has no say in the exit code."""
    path = empty.root / "header.csv"
    path.write_text("timestamp,bid,ask\n")
    argv = ["trainer", "precompute", "--run-id", "r", "--runs", str(empty.runs), "--data", str(path)]
    code = (
        f"import atexit, os, runpy, sys\nsys.argv = {argv!r}\n"
        "atexit.register(os.abort)\n"
        "runpy.run_module('trainer', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 2, done.stderr
    assert "error: " in done.stderr


# -- inspect, identity --


def test_inspect_prints_step_settings_and_arrays(done):
    ended = done.run("inspect", str(done.newest()))
    ended.succeeds(f"step {STEPS}", "CRC32C right", "config.learn.gamma = 0.95", "opt.param", "replay.priority")
    found = done.inspect(done.newest())
    assert found["step"] == STEPS and found["meta"]["data.digest"]
    assert found["arrays"]["opt.param"]["dtype"] == "float32"


def test_identity_is_one_line_that_only_results_move(empty):
    def digest(*words: str) -> dict:
        ended = empty.run("identity", "--config", str(empty.profile), *words).succeeds()
        assert ended.out.count("\n") == 1
        return json.loads(ended.out)

    plain = digest()
    assert set(plain) == {"config_digest", "profile", "folds"}
    assert digest("--set", "run.n_steps=7;run.device=cpu")["config_digest"] == plain["config_digest"]
    assert digest("--set", "env.fee_ticks=0.2")["config_digest"] != plain["config_digest"]
    empty.run("identity", "--set", "env.fee_tick=1").fails(2, "did you mean 'env.fee_ticks'")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("synthetic:signal=7", "signal=7 is not a number from 0 to 1"),
        ("synthetic:sginal=0.5", "did you mean 'signal'"),
        ("/feature-cache/a.dbn,synthetic:signal=0.5", "joins no other input"),
        ("s3://", "not an S3 address"),
        ("/feature-cache/a.dbn,s3://bucket", "s3://bucket: not an S3 address"),
    ],
)
def test_identity_refuses_data_that_can_not_be_read(empty, data, says):
    empty.run("identity", "--data", data).fails(2, says)


# -- gate and report --


def test_gate_and_report_of_a_study_that_barely_learnt(trained):
    place = ["--run-id", "run", "--runs", str(trained.runs)]
    ended = trained.run("gate", *place, "--outputs", str(trained.root / "out"))
    ended.fails(3)
    assert (trained.root / "out" / "verdict").read_text() == "failed"
    trained.run("report", *place).succeeds("report.html")
    assert (trained.runs / "alpha-rl-runs" / "run" / "report.html").stat().st_size > 10_000


def test_gate_of_an_untrained_study_fails_and_names_the_fold(fresh):
    ended = fresh.run("gate", "--run-id", "run", "--runs", str(fresh.runs))
    assert ended.code == 3 and "Traceback" not in ended.err
    assert "fold" in ended.out + ended.err


def test_what_a_pod_prints_outlives_it(empty):
    """Both streams, what went well and what did not; a folder that can't be written changes nothing."""
    folder = empty.runs / "alpha-rl-runs" / "run"
    words = ("precompute", "--data", "synthetic:rows=3000", "--folds", "1")
    empty.run(*words[:2], "nowhere.csv", FOXHUNT_POD="x-precompute-1").fails(2, "nowhere.csv")
    assert "error: nowhere.csv" in (folder / "logs" / "x-precompute-1.txt").read_text()
    ended = empty.run(*words, FOXHUNT_POD="x-precompute-2").succeeds()
    kept = (folder / "logs" / "x-precompute-2.txt").read_text()
    assert sorted(kept.splitlines()) == sorted((ended.out + ended.err).splitlines()) and "fold 0: train rows" in kept
    place = ["--run-id", "run", "--runs", str(empty.runs)]
    ended = empty.run("gate", *place, FOXHUNT_POD="x-gate-1")
    assert (folder / "logs" / "x-gate-1.txt").read_text().splitlines()[:1] == ended.out.splitlines()[:1]
    empty.run("report", *place, FOXHUNT_POD="x-report-1").succeeds("report.html")
    assert "report.html" in (folder / "logs" / "x-report-1.txt").read_text()
    (folder / "logs" / "x-report-2.txt").mkdir()
    empty.run("report", *place, FOXHUNT_POD="x-report-2").succeeds("report.html")
    empty.run(*words).succeeds()
    assert len(list((folder / "logs").iterdir())) == 5, "nothing is kept outside of a pod"


# -- the proof for users, and help --


def test_verify_resume_kills_and_compares(empty):
    ended = empty.run("verify-resume", "--kills", "2", "--steps", "60", "--config", str(empty.profile), "--seed", "3")
    ended.succeeds("identical: every array")
    assert ended.out.count("kill -9 at about step") + ended.out.count("had ended before") == 2
    assert len(set(re.findall(r"state ([0-9a-f]{64})", ended.out))) == 1


def test_verify_resume_hands_on_a_mistake_in_the_settings(empty):
    ended = empty.run("verify-resume", "--set", "learn.gama=1")
    ended.fails(2, "learn.gama", "did you mean 'learn.gamma'")


COMMANDS = ["precompute", "train", "evaluate", "gate", "report", "inspect", "verify-resume", "bench", "identity"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_quick_and_shows_an_example(command):
    """What takes long to import is not imported for it; `make bench` measures the seconds."""
    argv = [sys.executable, "-X", "importtime", "-m", "trainer", command, "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=REPO)
    assert f"python -m trainer {command}" in " ".join(done.stdout.split("Example:")[1].split())
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert "typer" in imported and not imported & {"numpy", "numba", "polars", "structlog", "rich", "trainer.config"}
