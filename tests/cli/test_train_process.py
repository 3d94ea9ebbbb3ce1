"""Faults that a training process meets, with the real command line: kills, signals, rivals, bad files, full disks."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.processes import STEPS, Trainer
from trainer.learn.checkpoint import list_checkpoints


def straight(done: Trainer) -> str:
    """End state of the undisturbed run, from the second line of DONE."""
    return (done.fold / "DONE").read_text().splitlines()[1]


# -- kills and signals --


def test_done_names_the_state_of_the_last_checkpoint(done):
    assert done.newest().name == f"checkpoint-{STEPS}.bin"
    assert done.state() == straight(done)


def test_killed_and_started_again_ends_in_the_same_state(done, fresh):
    killed = fresh.start_training().wait_for_step(50).send(signal.SIGKILL).end()
    assert killed.code == -signal.SIGKILL
    assert 40 <= int(fresh.newest().stem.split("-")[1]) < STEPS
    fresh.train().succeeds("resumed")
    assert fresh.state() == straight(done)
    starts = [line for line in fresh.ledger() if line["event"] == "start"]
    assert [line["attempt"] for line in starts] == [0, 1] and starts[1]["resumed_step"] >= 40


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_loses_no_step(done, fresh, number):
    ended = fresh.start_training().wait_for_step(45).send(number).end()
    ended.fails(75, number.name, f"of {STEPS}", "run the same command again")
    saved = int(fresh.newest().stem.split("-")[1])
    end = fresh.ledger()[-1]
    assert (end["event"], end["why"], end["exit_code"]) == ("end", "interrupted", 75)
    assert end["last_step"] == saved >= 45 and f"saved at step {saved}" in ended.err
    fresh.train().succeeds("resumed", f"step={saved}")
    assert fresh.state() == straight(done)


def test_ctrl_c_while_judging_keeps_the_training(done, fresh):
    running = fresh.start("train", "--fold", "0").wait_for_line("trained").send(signal.SIGINT)
    _, err = running.process.communicate()
    assert running.process.returncode == 75 and "Traceback" not in err
    assert "interrupted; what was saved is kept" in err
    assert not (fresh.fold / "DONE").exists() and fresh.state() == straight(done)
    fresh.run("train", "--fold", "0").succeeds("resumed", f"step={STEPS}", "judged")
    assert straight(fresh) == straight(done)


def test_what_a_kill_left_of_a_write_is_cleared(fresh):
    fresh.fold.mkdir()
    torn = fresh.fold / ".checkpoint-20.bin.123.tmp"
    torn.write_bytes(b"FOXH")
    fresh.train("--n-steps", "5").succeeds()
    assert not torn.exists()


def test_a_kill_before_the_first_checkpoint_starts_over(done, fresh):
    fresh.start_training().wait_for_step(5).send(signal.SIGKILL).end()
    for path in list_checkpoints(fresh.fold):  # there is none, unless the signal was late
        path.unlink()
    fresh.train().succeeds()
    assert fresh.state() == straight(done)


def test_a_second_process_on_the_fold_is_refused(done, fresh):
    first = fresh.start_training().wait_for_step(10).send(signal.SIGSTOP)
    try:
        second = fresh.train()
    finally:
        first.send(signal.SIGCONT)
    second.fails(2, "fold0", f"process {first.process.pid}", "is working in it", "wait for it to end")
    assert first.end().code == 0
    assert fresh.state() == straight(done)


# -- done, longer, elsewhere --


def test_a_done_fold_is_left_alone(trained):
    before = {p.name: p.read_bytes() for p in trained.fold.iterdir()}
    trained.run("train", "--fold", "0", "--outputs", str(trained.root / "out")).succeeds("already done, nothing to do")
    after = {p.name: p.read_bytes() for p in trained.fold.iterdir()}
    assert after == before
    assert float((trained.root / "out" / "hold-pct").read_text()) >= 0


def test_more_steps_go_on_where_the_fold_ended(fresh, trained):
    trained.train("--n-steps", str(STEPS + 30)).succeeds("resumed", f"step={STEPS}")
    fresh.train("--n-steps", str(STEPS + 30)).succeeds()
    assert trained.newest().name == f"checkpoint-{STEPS + 30}.bin"
    assert trained.state() == fresh.state()


def test_evaluate_judges_the_newest_checkpoint_again(trained):
    before = json.loads((trained.fold / "fold_result.json").read_text())
    trained.run("evaluate", "--fold", "0").succeeds("fold 0: wr")
    after = json.loads((trained.fold / "fold_result.json").read_text())
    for timed in ("training",):
        before.pop(timed), after.pop(timed)
    assert after == before


def test_evaluate_without_a_checkpoint_says_so(fresh):
    fresh.run("evaluate", "--fold", "0").fails(2, "fold 0", "no checkpoint", "train it first")


# -- checkpoints that can't be used --


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def versioned(path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 4, 7)
    path.write_bytes(data)


def foreign(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + path.read_bytes()[4:])


SPOILT = {
    truncated: ("truncated",),
    emptied: ("truncated", "not even a header"),
    flipped: ("damaged", "CRC32C"),
    versioned: ("format version 7", "reads version 1"),
    foreign: ("not a foxhunt checkpoint",),
}


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda f: f.__name__)
def test_a_spoilt_file_is_refused_by_name(trained, spoil):
    path = trained.root / "spoilt.bin"
    path.write_bytes(trained.newest().read_bytes())
    spoil(path)
    before = sorted(p.name for p in trained.fold.iterdir())
    ended = trained.train("--n-steps", "150", "--resume", str(path))
    ended.fails(2, "spoilt.bin", *SPOILT[spoil])
    assert sorted(p.name for p in trained.fold.iterdir()) == before
    trained.run("inspect", str(path)).fails(2, "spoilt.bin", *SPOILT[spoil])


def test_a_missing_file_is_refused(trained):
    trained.train("--n-steps", "150", "--resume", "nowhere.bin").fails(2, "nowhere.bin", "no such file")
    trained.run("inspect", "nowhere.bin").fails(2, "nowhere.bin", "no such file")


def test_a_checkpoint_of_another_config_is_refused(trained, fresh):
    other = Trainer(fresh.root, fresh.cache, "other")
    changed = ("--set", "learn.gamma=0.9")
    other.run("precompute", "--data", "synthetic:rows=3000", "--folds", "1", *changed).succeeds("fxcache hit")
    ended = other.train(*changed, "--resume", str(trained.newest()))
    ended.fails(2, trained.newest().name, "another config", "learn.gamma was 0.95, now 0.9")


def test_a_checkpoint_of_other_data_is_refused(trained, fresh):
    other = Trainer(fresh.root, fresh.cache, "other")
    other.run("precompute", "--data", "synthetic:rows=3001", "--folds", "1").succeeds()
    ended = other.train("--resume", str(trained.newest()))
    ended.fails(2, trained.newest().name, "another data set", "give the data it was made from")


def test_resume_auto_falls_back_to_the_checkpoint_before(done, fresh):
    fresh.start_training().wait_for_step(65).send(signal.SIGKILL).end()
    newest, before = list_checkpoints(fresh.fold)[:2]
    flipped(newest)
    ended = fresh.train().succeeds("checkpoint skipped, trying the one before", newest.name, "damaged", "resumed")
    assert str(before) in ended.err
    assert fresh.state() == straight(done)


def test_resume_none_starts_over(trained, done):
    ended = trained.train("--n-steps", str(STEPS + 1), "--resume", "none").succeeds()
    assert "resumed" not in ended.err
    metrics = (trained.fold / "metrics-1.jsonl").read_text().splitlines()
    assert json.loads(metrics[0])["step"] == 5


# -- full and unwritable folders --


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A tmpfs on `folder`; skips where this user may not mount."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    except OSError as error:
        pytest.skip(f"no mount command: {error}")
    if made.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {made.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_limit_on_file_size_keeps_the_old_checkpoint(fresh):
    fresh.train("--n-steps", "20").succeeds()
    kept = fresh.newest().read_bytes()
    ended = fresh.start_training("--n-steps", "2000", limit_bytes=len(kept) // 2).end()
    ended.fails(75, "3 writes in a row failed", "File too large", "run the same command again")
    assert ended.err.count("checkpoint not written; the older ones are kept") == 3
    assert [p.name for p in list_checkpoints(fresh.fold)] == ["checkpoint-20.bin"]
    assert fresh.newest().read_bytes() == kept
    assert not list(fresh.fold.glob(".*.tmp"))


def fill_up(folder: Path) -> Path:
    """Writes a file that takes what room there is."""
    filler = folder / "filler"
    with suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def test_a_disk_that_fills_up_keeps_the_old_checkpoint(done, fresh):
    with mounted(fresh.fold, "size=2m"):
        running = fresh.start_training("--n-steps", "100000").wait_for_step(45)
        filler = fill_up(fresh.fold)
        ended = running.end()
        ended.fails(75, "3 writes in a row failed", "No space left on device", "free space", "same command again")
        kept = fresh.newest()
        fresh.run("inspect", str(kept)).succeeds("CRC32C right")
        fresh.train().fails(75, str(fresh.fold), "No space left on device", "free some space")
        filler.unlink()
        fresh.train("--n-steps", "200").succeeds("resumed", f"step={kept.stem.split('-')[1]}")
        attempts = [line["why"] for line in fresh.ledger() if line["event"] == "end"]
    assert attempts[-1] == "done"


def test_a_file_where_the_runs_folder_should_be(fresh, prepared):
    wrong = Trainer(fresh.root / "wrong", prepared.cache)
    wrong.runs.write_text("not a folder")
    wrong.run("precompute", "--data", "synthetic:rows=3000", "--folds", "1").fails(2, "--runs", str(wrong.runs))
    wrong.train().fails(2, str(wrong.runs))


def test_a_file_where_the_fold_folder_should_be(fresh):
    fresh.fold.write_text("in the way\n")
    fresh.train().fails(2, str(fresh.fold), "a file stands where a folder must be", "move it away")


def test_a_folder_that_may_not_be_written(fresh):
    with mounted(fresh.fold, "ro") if os.geteuid() == 0 else unwritable(fresh.fold):
        fresh.train().fails(2, str(fresh.fold), "can't write there", "give --runs a folder that this user may write")


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True)
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o755)


# -- words on the command line --


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fold", "7"], ("--fold 7", "folds 0 to 0")),
        (["--fold", "-1"], ("--fold", "greater than or equal to 0")),
        (["--fold", "0", "--n-step", "50"], ("No such option: --n-step", "--n-steps")),
        (["--fold", "0", "--set", "learn.gama=0.9"], ("learn.gama", "did you mean 'learn.gamma'")),
        (["--fold", "0", "--set", "learn.gamma=2"], ("learn.gamma", "less than 1", "2")),
        (["--fold", "0", "--set", "gamma"], ("--set gamma", "section.key=value")),
        (["--fold", "0", "--set", "learn.gamma=0.9"], ("already in use by another study", "learn.gamma was 0.95")),
        (["--fold", "0", "--run-id", "a/b"], ("--run-id 'a/b'", "no slash")),
        (["--fold", "0", "--run-id", "nobody"], ("--run-id nobody", "no such run", "runs here: run")),
        (["--fold", "0", "--config", "cpu-dem"], ("cpu-dem", "did you mean 'cpu-demo'")),
    ],
    ids=lambda x: "_".join(x) if isinstance(x, list) else "",
)
def test_a_mistake_on_the_command_line(prepared, words, said):
    prepared.run("train", *words).fails(2, *said)
    assert not prepared.fold.exists() or not any(prepared.fold.iterdir())


@pytest.mark.parametrize("metrics_every", [10, 1000])
def test_weights_that_overflow_stop_the_run(fresh, metrics_every):
    """At the step that went bad, measured often or never: no checkpoint with bad weights takes a good one's place."""
    other = Trainer(fresh.root, fresh.cache, "burst")
    wild = ("--set", "learn.lr=1e30;learn.frozen=['all']")
    other.run("precompute", "--data", "synthetic:rows=3000", "--folds", "1", *wild).succeeds()
    ended = other.train(*wild, "--set", f"run.checkpoint_every=10;run.metrics_every={metrics_every}")
    ended.fails(1, "fold 0, step 19: opt.grad is not finite", "last good checkpoint", "lower learn.lr")
    assert other.newest().name == "checkpoint-10.bin"  # learning starts at step 17
    other.run("inspect", str(other.newest())).succeeds("CRC32C right")
    assert other.ledger()[-1]["exit_code"] == 1
