"""`fetch`: what is on the claim arrives here as it is, whatever its size, or an error says what to do."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workflows.cluster_objects import Study, stamp
from tests.workflows.conftest import Commands
from tests.workflows.fake_kubernetes import FakeKubernetes
from workflows import reader
from workflows.artifacts import artifacts_of
from workflows.errors import WorkflowError
from workflows.reader import cut, overlapping, parse, reader_pod, under_mount


@pytest.fixture
def run(kubernetes: FakeKubernetes) -> Path:
    """A run's folder on the claim, and its workflow."""
    folder = kubernetes.claim / "alpha-rl-runs" / "demo"
    for name, data in {
        "report.html": b"<html>",
        "gate.json": b'{"passed": true}',
        "fold0/fold_result.json": b"{}",
        "fold0/trades.parquet": bytes(range(256)) * 40,
        "fold0/metrics-0.jsonl": b'{"step": 1}\n',
        "fold0/checkpoint-5.bin": b"never fetched",
        "fold1/curve.parquet": b"",
        "logs/alpha-rl-demo-gate-1.txt": b"wr 0.6",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    kubernetes.study(Study(phase="Succeeded"))
    return folder


def same(run: Path, fetched: Path) -> bool:
    files = [path for path in run.rglob("*") if path.is_file() and "checkpoint" not in path.name]
    there = [path for path in fetched.rglob("*") if path.is_file()]
    return len(files) == len(there) and all(
        (fetched / path.relative_to(run)).read_bytes() == path.read_bytes() for path in files
    )


def test_results_arrive_as_they_are(command: Commands, kubernetes: FakeKubernetes, run: Path, tmp_path: Path) -> None:
    done = command("fetch", "demo")
    assert done.returncode == 0, done.stderr
    assert same(run, tmp_path / "fetched" / "demo")
    assert "run demo: 7 files" in done.stdout and "gate:   passed" in done.stdout
    assert "report: fetched/demo/report.html" in done.stdout
    assert not kubernetes.objects["pods"], "the pod that read the claim is gone"
    assert len(kubernetes.created) == 1


def test_more_than_a_log_holds_comes_in_parts(
    command: Commands, kubernetes: FakeKubernetes, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PART_BYTES", 3000)
    done = command("fetch", "demo", "--to", "here", "--json")
    assert done.returncode == 0, done.stderr
    assert same(run, tmp_path / "here")
    assert len(kubernetes.created) == 4, "10 KiB in parts of 3000 bytes"
    assert {json.loads(line)["path"] for line in done.stdout.splitlines()} >= {"here/report.html"}


def test_lines_appended_between_two_parts_do_not_matter(
    command: Commands, kubernetes: FakeKubernetes, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PART_BYTES", 3000)
    kubernetes.on_delete = lambda _: (
        (run / "fold0" / "metrics-0.jsonl").write_bytes(b'{"step": 1}\n{"step": 2}\n') and None
    )
    assert command("fetch", "demo").returncode == 0
    assert (tmp_path / "fetched/demo/fold0/metrics-0.jsonl").read_bytes() == b'{"step": 1}\n'


def test_a_file_replaced_between_two_parts_is_noticed(
    command: Commands, kubernetes: FakeKubernetes, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PART_BYTES", 3000)
    kubernetes.on_delete = lambda _: (run / "fold0" / "trades.parquet").write_bytes(bytes(10240)) and None
    done = command("fetch", "demo")
    assert done.returncode == 1 and "fold0/trades.parquet: changed on the claim while it was read" in done.stderr
    assert not (tmp_path / "fetched").exists(), "nothing half is left here"


def test_the_pod_is_one_that_a_restricted_namespace_admits(
    kubernetes: FakeKubernetes, command: Commands, run: Path
) -> None:
    command("fetch", "demo")
    (pod,) = kubernetes.created
    spec, main = pod["spec"], pod["spec"]["containers"][0]
    assert (
        spec["securityContext"]["runAsNonRoot"]
        and spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    )
    assert main["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert main["volumeMounts"][0]["readOnly"] and not spec["automountServiceAccountToken"]
    assert main["image"] == "foxhunt:1" and spec["activeDeadlineSeconds"] <= 600
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == "feature-cache"
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "Workflow", "goes with its workflow, whatever happens here"


def test_the_user_and_pull_secrets_of_the_template_are_kept() -> None:
    study = Study()
    stored = {"securityContext": {"runAsUser": 4711}, "imagePullSecrets": [{"name": "registry"}]}
    study.tree["status"]["storedWorkflowTemplateSpec"] = stored
    spec = reader_pod(study.tree, {})["spec"]
    assert spec["securityContext"] == {"runAsUser": 4711} and spec["imagePullSecrets"] == [{"name": "registry"}]


def test_pods_left_behind_are_removed_later(command: Commands, kubernetes: FakeKubernetes, run: Path) -> None:
    for name, age in (("old", 3600), ("new", 5)):
        labels = {"app.kubernetes.io/name": "foxhunt-reader"}
        made = stamp(time.time() - age)
        kubernetes.put("pods", {"metadata": {"name": name, "labels": labels, "creationTimestamp": made}, "status": {}})
    command("fetch", "demo")
    assert list(kubernetes.objects["pods"]) == ["new"]


def test_no_results_yet(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(Study())
    done = command("fetch", "demo")
    assert done.returncode == 1 and "No such file or directory" in done.stderr and "written there yet?" in done.stderr
    (kubernetes.claim / "alpha-rl-runs" / "demo").mkdir(parents=True)
    done = command("fetch", "demo")
    assert done.returncode == 2 and "run demo: no results yet" in done.stderr


def test_a_reader_that_is_refused_says_so(command: Commands, kubernetes: FakeKubernetes, run: Path) -> None:
    kubernetes.denied[("POST", "/pods")] = 403
    done = command("fetch", "demo")
    assert done.returncode == 2 and "forbids it" in done.stderr


def test_a_reader_that_does_not_start_says_why(
    command: Commands, kubernetes: FakeKubernetes, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_START_WITHIN", 0.3)
    monkeypatch.setattr(kubernetes, "run_pod", lambda pod: None)
    done = command("fetch", "demo")
    assert done.returncode == 1 and "the reader pod has not run" in done.stderr
    assert not kubernetes.objects["pods"]


def test_a_run_on_this_machine(command: Commands, tmp_path: Path) -> None:
    command("submit", "--folds", "1", "--run-id", "r", "--backend", "local")
    done = command("fetch", "r", "--to", "out")
    assert done.returncode == 0 and (tmp_path / "out" / "report.html").exists()


def lines_of_part(files: list[Any], data: bytes) -> list[str]:
    import base64
    import zlib

    packed = zlib.compress(data)
    end = hashlib.sha256(packed).hexdigest()
    return [json.dumps({"files": files}), "=" + base64.b64encode(packed).decode(), json.dumps({"end": end})]


def test_a_log_that_lost_a_line_is_not_believed() -> None:
    lines = lines_of_part([["a", 3, "x"]], b"abc")
    assert parse(lines).data == b"abc"
    for missing in range(3):
        with pytest.raises(WorkflowError, match="incomplete"):
            parse([line for number, line in enumerate(lines) if number != missing])
    with pytest.raises(WorkflowError, match="claim: /x: Permission denied"):
        parse([json.dumps({"error": "/claim/x: Permission denied"})])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 30))
def test_parts_put_together_are_the_files(contents: list[bytes], size: int) -> None:
    files = [(f"f{n}", len(data), hashlib.sha256(data).hexdigest()) for n, data in enumerate(contents)]
    by_name, whole = {f"f{n}": data for n, data in enumerate(contents)}, b"".join(contents)
    got = b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "PART_BYTES", size)
        while len(got) < len(whole):
            part, start = overlapping(files, len(got))
            row = b"".join(by_name[name] for name, _, _ in part)
            got += row[start : start + size]
    assert cut(files, got) == by_name


@pytest.mark.parametrize(
    ("runs", "under"),
    [("/feature-cache", ""), ("/feature-cache/", ""), ("/feature-cache/a/b", "/a/b"), ("x", "/x")],
)
def test_where_runs_lie_on_the_claim(runs: str, under: str) -> None:
    assert under_mount(runs) == under


def with_artifacts() -> Study:
    study = Study(phase="Succeeded").task("report", [{"phase": "Succeeded"}], "Succeeded")
    study.task("train", [{"phase": "Failed", "code": 75}, {"phase": "Succeeded"}], "Succeeded", fold=1)
    repository = {"bucket": "foxhunt", "endpoint": "10.0.0.1:7070", "insecure": True}
    study.tree["status"]["artifactRepositoryRef"] = {"artifactRepository": {"s3": repository}}
    for node in study.nodes.values():
        files = {"report": "/feature-cache/alpha-rl-runs/demo/report.html", "train": "/outputs/fold_result.json"}
        if node.get("templateName") in files:
            key = f"{study.name}/{node['id']}/x"
            one = {"name": "x", "path": files[node["templateName"]], "s3": {"key": key}}
            node.setdefault("outputs", {})["artifacts"] = [one, {"name": "main-logs", "s3": {"key": "log"}}]
    return study


def test_artifacts_are_those_of_the_tasks_not_of_failed_attempts() -> None:
    study = with_artifacts()
    found = {one.path: one for one in artifacts_of(study.tree)}
    assert set(found) == {"report.html", "fold1/fold_result.json"}
    assert found["report.html"].endpoint == "http://10.0.0.1:7070" and found["report.html"].bucket == "foxhunt"
    retry = next(n for n in study.nodes.values() if n["type"] == "Retry" and n["templateName"] == "train")
    assert retry["id"] in found["fold1/fold_result.json"].key
    assert artifacts_of(Study().tree) == []


def test_artifacts_where_the_claim_can_not_be_read(
    command: Commands, kubernetes: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes.study(with_artifacts())
    kubernetes.denied[("POST", "/pods")] = 403
    asked = bucket(monkeypatch)
    done = command("fetch", "demo")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fetched/demo/report.html").read_bytes().startswith(b"object alpha-rl")
    assert "claim not readable, artifacts instead" in done.stderr
    assert asked == ["http://10.0.0.1:7070"] * 2
    assert command("fetch", "demo", "--source", "claim").returncode == 2


def bucket(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """boto3 in front of a bucket whose objects hold their keys; the endpoints it was asked for."""
    import io

    import boto3

    asked: list[str] = []

    class Client:
        def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
            assert Bucket == "foxhunt"
            return {"Body": io.BytesIO(f"object {Key}".encode())}

    def client(service: str, endpoint_url: str) -> Client:
        asked.append(endpoint_url)
        return Client()

    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(boto3, "client", client)
    return asked


def test_no_artifacts_and_no_credentials(
    command: Commands, kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes.study(Study())
    assert "no artifacts on S3" in command("fetch", "demo", "--source", "s3").stderr
    kubernetes.study(with_artifacts())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/no/such/file")
    done = command("fetch", "demo", "--source", "s3")
    assert done.returncode == 2 and "set AWS_ACCESS_KEY_ID" in done.stderr


@pytest.mark.parametrize(("status", "code"), [(403, 2), (404, 2), (503, 1), (429, 1)])
def test_a_bucket_that_refuses_and_one_that_fails(
    command: Commands, kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    import boto3
    from botocore.exceptions import ClientError

    class Client:
        def get_object(self, **_: str) -> None:
            raise ClientError({"Error": {"Code": "X"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")

    monkeypatch.setattr(boto3, "client", lambda *_, **__: Client())
    kubernetes.study(with_artifacts())
    done = command("fetch", "demo", "--source", "s3")
    assert done.returncode == code and "s3://foxhunt/" in done.stderr and "AWS_SECRET_ACCESS_KEY" in done.stderr
