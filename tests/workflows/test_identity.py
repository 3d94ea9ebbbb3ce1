import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows import identity, resolve
from workflows.cli import invoke
from workflows.errors import UsageError
from workflows.screen import PlainScreen, last_metrics
from workflows.summary import failed_pods


def test_data_is_known_by_address_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("1234")
    (tmp_path / "b.csv").write_text("12")
    absolute = identity.data_identity(str(tmp_path / "a.csv"))
    assert absolute == f"{tmp_path / 'a.csv'}:4"
    monkeypatch.chdir(tmp_path)
    assert identity.data_identity("a.csv") == absolute
    assert identity.data_identity("*.csv") == identity.data_identity("a.csv,b.csv") == identity.data_identity(".")
    (tmp_path / "a.csv").write_text("12345")
    assert identity.data_identity("a.csv") != absolute
    for uri in ("synthetic", "synthetic:signal=0", "s3://bucket/key"):
        assert identity.data_identity(uri) == uri
    for missing in ("none.csv", "none*.csv"):
        with pytest.raises(UsageError, match="no such file"):
            identity.data_identity(missing)


def test_a_folder_and_a_pattern_are_their_files_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "days").mkdir()
    with pytest.raises(UsageError, match="--data days: the folder is empty"):
        identity.local_files("days")
    for name in ("b.csv", "a.csv"):
        (tmp_path / "days" / name).write_text("12")
    assert identity.local_files("days") == identity.local_files("days/*.csv") == "days/a.csv,days/b.csv"
    assert identity.local_files("days/b.csv,days/a.csv") == "days/b.csv,days/a.csv", "the order given is kept"
    assert identity.local_files("synthetic:rows=9,seed=1") == "synthetic:rows=9,seed=1"


def test_code_is_the_images_commit_or_the_checkouts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert identity.code_identity() == "0123456789abcdef"
    monkeypatch.delenv("FOXHUNT_COMMIT")
    root = Path(identity.__file__).parents[1]
    git = ["git", "-C", str(root)]
    try:
        changed = subprocess.check_output([*git, "status", "--porcelain", "--", "trainer", "kernels"], text=True)
        head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        changed, head = "not a checkout", ""
    found = identity.code_identity()
    assert found.startswith("tree-") if changed else found == head
    monkeypatch.setenv("PATH", str(tmp_path))  # no git at all
    assert identity.code_identity().startswith("tree-")
    assert len(identity.code_identity()) == len("tree-") + 64


def test_run_id_follows_its_three_parts() -> None:
    one = identity.derive_run_id("code", "config", "data")
    assert one == identity.derive_run_id("code", "config", "data")
    others = [("c", "config", "data"), ("code", "c", "data"), ("code", "config", "d")]
    assert len({one, *(identity.derive_run_id(*parts) for parts in others)}) == 4
    assert identity.check_run_id(one) == one


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="ab9._-/ \\:é\n", max_size=70))
def test_run_ids_are_safe_names(name: str) -> None:
    """What passes is a single path component and a label's value."""
    try:
        identity.check_run_id(name)
    except UsageError:
        return
    assert Path(name).name == name and name not in (".", "..") and len(name) <= 63 and name.isascii()
    assert name[0].isalnum() and name[-1].isalnum()


def test_overrides_are_joined() -> None:
    assert identity.join_overrides("", "", "", "3", "") == "folds.folds=3"
    joined = identity.join_overrides("10", "64", "4096", "2", " a.b=1; ;c.d=[1, 2] ")
    assert joined == "a.b=1;c.d=[1, 2];folds.folds=2;env.n_backtests=64;learn.per_capacity=4096;run.n_steps=10"


def run_resolve(tmp_path: Path, *args: str) -> int:
    return invoke(resolve.main, [*args, "--outputs", str(tmp_path / "out")], "resolve")


def test_resolve_writes_what_later_tasks_read(tmp_path: Path) -> None:
    assert run_resolve(tmp_path, "--data", "synthetic", "--config", "c", "--n-steps", "5") == 0
    found = {p.name: p.read_text() for p in (tmp_path / "out").iterdir()}
    assert found["data"] == "synthetic" and found["set"] == "folds.folds=3;run.n_steps=5"
    digest = json.loads(json.dumps("digest of c folds.folds=3;run.n_steps=5"))
    assert found["run-id"] == identity.derive_run_id("0123456789abcdef", digest, "synthetic")


def test_resolve_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FOXHUNT_BRANCH", "main")
    assert run_resolve(tmp_path, "--data", "synthetic", "--git-branch", "main") == 0
    assert run_resolve(tmp_path, "--data", "synthetic", "--git-branch", "other") == 2
    assert "--git-branch other: this code was built from main" in capsys.readouterr().err
    assert run_resolve(tmp_path) == 2
    assert "FOXHUNT_DEFAULT_DATA is not set" in capsys.readouterr().err
    assert run_resolve(tmp_path, "--data", "synthetic", "--folds", "many") == 2
    assert run_resolve(tmp_path, "--data", "synthetic", "--folds", "101") == 2
    monkeypatch.setenv("FOXHUNT_DEFAULT_DATA", "s3://bucket/es")
    assert run_resolve(tmp_path) == 0
    assert (tmp_path / "out" / "data").read_text() == "s3://bucket/es"


def test_a_broken_trainer_is_a_bug_not_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOXHUNT_TRAINER", "false")
    with pytest.raises(Exception, match="ended with 1") as error:
        identity.config_identity("synthetic", "c", "")
    assert error.value.exit_code == 1  # type: ignore[attr-defined]


def test_summary_lists_failures_once() -> None:
    one = {"displayName": "fold 1", "phase": "Failed", "message": "exit code 1"}
    assert failed_pods(json.dumps([one, one])) == ["  fold 1: Failed exit code 1"]
    assert failed_pods("null") == failed_pods("") == failed_pods(json.dumps("null")) == []
    assert failed_pods("not json") == ["failures: not json"]


def test_metrics_line_skips_what_is_not_ours(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text('$ cmd\n{"step": 1, "wr": 0.1}\n{"step": 2, "wr": 0.2}\n{"other": 1}\n{broken\nplain\n[1]\n')
    assert last_metrics(str(log)) == {"step": 2, "wr": 0.2}
    assert last_metrics(str(tmp_path / "none")) == {}


def test_plain_screen_says_changes_only(capsys: pytest.CaptureFixture[str]) -> None:
    from workflows.nodes import RUNNING, SUCCEEDED, Node

    view = PlainScreen()
    node = Node("train-0", "train", "fold 0", RUNNING)
    view.show(node)
    view.show(node)
    node.phase = SUCCEEDED
    view.show(node)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["running", "succeeded"]


def test_gpus_are_those_that_cuda_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from workflows import hardware

    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-ab")
    assert hardware.gpus() == ["2", "GPU-ab"]
    assert hardware.hardware().endswith(", 2 GPUs")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hardware.gpus() == [] and "GPU" not in hardware.hardware()
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert hardware.gpus() == [], "without cupy the trainer can't use it"


def test_a_backoff_that_is_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from workflows.study import backoff_scale

    monkeypatch.setenv("FOXHUNT_LOCAL_BACKOFF", "soon")
    with pytest.raises(UsageError, match="FOXHUNT_LOCAL_BACKOFF=soon: not a number"):
        backoff_scale()
