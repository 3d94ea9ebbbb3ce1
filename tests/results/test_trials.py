"""The trial counter: distinct run-ids per data digest, whatever is killed or started at once."""

from concurrent.futures import ProcessPoolExecutor

import pytest

from trainer.errors import UsageError
from trainer.results.trials import register_trial, trial_ids

DIGEST = "ab" * 32


def test_counts_distinct_run_ids_of_one_digest(tmp_path):
    assert register_trial(tmp_path, DIGEST, "a") == 1
    assert register_trial(tmp_path, DIGEST, "b") == 2
    assert register_trial(tmp_path, DIGEST, "a") == 2
    assert register_trial(tmp_path, "cd" * 32, "a") == 1
    assert trial_ids(tmp_path, DIGEST) == ["a", "b"]
    assert (tmp_path / "trials" / f"{DIGEST}.jsonl").read_text().count("\n") == 2


def test_a_torn_line_is_not_a_trial_and_spoils_none(tmp_path):
    register_trial(tmp_path, DIGEST, "a")
    path = tmp_path / "trials" / f"{DIGEST}.jsonl"
    with path.open("a") as file:
        file.write('{"run_id": "to')
    assert register_trial(tmp_path, DIGEST, "b") == 2
    assert trial_ids(tmp_path, DIGEST) == ["a", "b"]


def _register(args):
    return register_trial(*args)


def test_processes_at_once_lose_no_trial(tmp_path):
    jobs = [(tmp_path, DIGEST, f"run-{i % 20}") for i in range(60)]
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(_register, jobs, chunksize=5))
    assert sorted(trial_ids(tmp_path, DIGEST)) == sorted(f"run-{i}" for i in range(20))


def test_unusable_folder_and_digest_are_usage_errors(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"can't note the trial: .*\nchoose a writable folder with --runs"):
        register_trial(tmp_path / "file", DIGEST, "a")
    with pytest.raises(UsageError, match="not a plain name"):
        register_trial(tmp_path, "../up", "a")
