"""submit and precompute on a cluster: what is created, what is refused before anything is."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflows.conftest import Commands
from tests.workflows.fake_api import ARGO, CORE, FakeApi, Server, status, write_kubeconfig
from workflows import argo, identity, watch
from workflows.argo import workflow_name
from workflows.errors import UsageError

DATA = ("--data", "s3://market/ESH4.dbn.zst")
RUN_ID = "foxhunt.dev/run-id"


def created(api: FakeApi) -> list[dict[str, Any]]:
    """Workflows that were really made."""
    return [r.body for r in api.asked("POST", "/workflows") if r.query.get("dryRun") != "All"]


def parameters(workflow: dict[str, Any]) -> dict[str, str]:
    return {p["name"]: p["value"] for p in workflow["spec"]["arguments"]["parameters"]}


def test_a_study_is_created(command: Commands, api: FakeApi) -> None:
    done = command("submit", *DATA, "--folds", "4", "--n-steps", "50", "--set", "env.fee_ticks=0.2", "--symbol", "ESH4")
    assert done.returncode == 0, done.stderr
    (workflow,) = created(api)
    assert workflow["spec"].keys() == {"workflowTemplateRef", "arguments"}, "all else is the template's"
    assert workflow["spec"]["workflowTemplateRef"] == {"name": "alpha-rl"}
    given = parameters(workflow)
    assert all(isinstance(value, str) for value in given.values())
    assert (given["data"], given["folds"], given["n-steps"]) == ("s3://market/ESH4.dbn.zst", "4", "50")
    assert given["set"] == "env.fee_ticks=0.2;data.symbol=ESH4"
    assert given["gpu-pool"] == "ci-training-h100", "the template's default"
    labels = workflow["metadata"]["labels"]
    assert labels == {"workflows.argoproj.io/workflow-template": "alpha-rl", RUN_ID: given["run-id"]}
    name = workflow["metadata"]["name"]
    assert re.fullmatch(rf"alpha-rl-{given['run-id']}-[0-9a-f]{{5}}", name)
    assert f"watch it: python -m workflows.watch {name}" in done.stdout
    assert f"stop it:  python -m workflows.stop {name}" in done.stdout
    (sent,) = [r for r in api.asked("POST", "/workflows")]
    assert sent.query["fieldValidation"] == "Strict"


def test_the_run_id_follows_code_config_and_data(command: Commands, api: FakeApi) -> None:
    def run_id(*args: str) -> str:
        return str(json.loads(command("submit", *DATA, "--json", *args).stdout)["run_id"])

    first = run_id()
    for workflow in [path for path in api.objects if "/workflows/" in path]:
        api.objects[workflow]["status"] = {"phase": "Succeeded"}
    assert run_id("--gpu-pool", "other", "--scales-from-zero") == first, (
        "where it runs doesn't matter; an ended workflow is no rival"
    )
    others = [run_id("--set", "a.b=1"), run_id("--data", "s3://market/other"), run_id("--image", "foxhunt:next")]
    assert len({first, *others}) == 4


def test_json_and_given_names(command: Commands, api: FakeApi) -> None:
    api.put(f"{CORE}/persistentvolumeclaims/fast")
    done = command("submit", *DATA, "--json", "--run-id", "My.Run_1", "-p", "memory-mi=32768", "-p", "claim=fast")
    told = json.loads(done.stdout)
    assert told["run_id"] == "My.Run_1" and told["namespace"] == "foxhunt" and told["context"] == "here"
    assert told["workflow"].startswith("alpha-rl-my-run-1-")
    assert (told["parameters"]["memory-mi"], told["parameters"]["claim"]) == ("32768", "fast")


@pytest.mark.parametrize("run_id", ["a", "A" * 63, "x" * 63, "1.2_3-4", "Z..--__9"])
def test_every_run_id_makes_a_name(run_id: str) -> None:
    """A label's value may have what a name may not."""
    identity.check_run_id(run_id)
    for template in ("alpha-rl", "precompute-features"):
        name = workflow_name(template, run_id)
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name) and len(name) <= 63, name


def test_a_dry_run_is_checked_by_the_server_and_makes_nothing(command: Commands, api: FakeApi) -> None:
    done = command("submit", *DATA, "--dry-run")
    assert done.returncode == 0, done.stderr
    workflow = yaml.safe_load(done.stdout.split("---\n")[1].split("...\n")[0])
    assert workflow["kind"] == "Workflow" and parameters(workflow)["data"] == DATA[1]
    assert "the cluster's API server accepts it (dry run); nothing was started" in done.stdout
    (asked,) = api.asked("POST", "/workflows")
    assert asked.query == {"dryRun": "All", "fieldValidation": "Strict"}
    assert not [path for path in api.objects if "/workflows/" in path]
    assert json.loads(command("submit", *DATA, "--dry-run", "--json").stdout)["kind"] == "Workflow"


def test_a_dry_run_without_an_answer(command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kc", f"http://127.0.0.1:{free_port()}")))
    done = command("submit", *DATA, "--dry-run", "--backend", "argo")
    assert done.returncode == 0, done.stderr
    assert "name: alpha-rl-" in done.stdout and "not checked by the cluster: " in done.stdout
    done = command("submit", *DATA, "--backend", "argo")
    assert done.returncode == 2 and "Connection refused" in done.stderr


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_the_servers_objection_is_passed_on(command: Commands, api: FakeApi) -> None:
    said = 'strict decoding error: unknown field "spec.argumentz"'
    api.answers[f"{ARGO}/workflows"] = status(400, "BadRequest", said)
    done = command("submit", *DATA, "--run-id", "x")
    assert done.returncode == 2 and said in done.stderr and "(400)" in done.stderr


BAD = [
    (("--folds", "0"), "--folds 0: from 1 to 100", ""),
    (("-p", "folds=101"), "parameter folds 101: out of range", "say one from 1 to 100"),
    (("-p", "memory-mi=10"), "parameter memory-mi 10: out of range", "say one from 512 to"),
    (("-p", "memory-mi=16Gi"), "parameter memory-mi '16Gi': not a whole number", ""),
    (("-p", "attempt-deadline-s=5"), "attempt-deadline-s 5: out of range", ""),
    (("-p", "memri-mi=1024"), "the template on the cluster has none of that name (did you mean 'memory-mi'?)", ""),
    (("-p", "noequals"), "--parameter noequals: expected name=value", ""),
    (("--gpu-pool", "h 100"), "parameter gpu-pool 'h 100': not the value of a node label", ""),
    (("-p", "claim=Fast_Disk"), "parameter claim 'Fast_Disk': not the name of a persistent volume claim", ""),
    (("-p", "s3-secret=Bad_Name!"), "parameter s3-secret 'Bad_Name!': not the name of a secret", ""),
    (("-p", "s3-secret="), "parameter s3-secret '': not the name of a secret", ""),
    (("-p", "claim=a..b"), "parameter claim 'a..b': not the name of a persistent volume claim", ""),
    (("-p", "runs=/tmp/x"), "runs '/tmp/x': not a folder of the claim", "name /feature-cache or a folder below it"),
    (("-p", "runs=runs"), "runs 'runs': not a folder of the claim", "checkpoints would be lost with their pod"),
    (("-p", "cache=/feature-cache/../tmp"), "'/feature-cache/../tmp': not a folder of the claim", "features would be"),
    (("-p", "cache=/feature-cache2"), "cache '/feature-cache2': not a folder of the claim", ""),
    (("-p", "cpus=many"), "parameter cpus 'many': not a number of CPU cores", ""),
    (("--git-branch", "a b"), "parameter git-branch 'a b': not the name of a branch", ""),
    (("--image", "Not An Image"), "image 'Not An Image': not an image reference", "registry/name:tag"),
    (("--set", "nonsense=1"), "unknown key", ""),
    (("--config", "mine.toml"), "--config mine.toml: a file of this machine", "--set section.key=value"),
    (("--only-folds", "7"), "'7' is not a fold of 3", ""),
    (("--only-folds", " , "), "--only-folds ' , ': names no fold", "say numbers from 0 to 2, or leave it out"),
    (("-p", "only-folds=,"), "--only-folds ',': names no fold", ""),
    (("--run-id", "no/slash"), "--run-id 'no/slash'", ""),
    (("--namespace", "foxhut"), "namespace 'foxhut': not on cluster", "kubectl create namespace foxhut"),
    (("--context", "elsewher"), "--context elsewher: not in", "there: here, elsewhere"),
    (("--runs", "other"), "--runs: only for runs on this machine", "--backend local"),
    (("--jobs", "2"), "--jobs: only for runs on this machine", "--backend local"),
]


@pytest.mark.parametrize(("args", "says", "todo"), BAD, ids=[" ".join(case[0]) for case in BAD])
def test_mistakes_are_refused_before_anything_is_made(
    command: Commands, api: FakeApi, args: tuple[str, ...], says: str, todo: str
) -> None:
    done = command("submit", *DATA, *args)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and says in done.stderr and todo in done.stderr, done.stderr
    assert not api.asked("POST", "/workflows")


def test_nearest_names_of_contexts_and_namespaces(command: Commands, api: FakeApi) -> None:
    assert "(did you mean 'elsewhere'?)" in command("submit", *DATA, "--context", "elsewher").stderr
    assert "(did you mean 'foxhunt'?)" in command("submit", *DATA, "--namespace", "foxhut").stderr


def test_a_cluster_without_the_template(command: Commands, api: FakeApi) -> None:
    tree = api.objects.pop(f"{ARGO}/workflowtemplates/alpha-rl")
    api.objects[f"{ARGO}/workflowtemplates/alpha-r1"] = {**tree, "metadata": {"name": "alpha-r1"}}
    done = command("submit", *DATA)
    assert done.returncode == 2
    assert "WorkflowTemplate 'alpha-rl': not in namespace foxhunt (did you mean 'alpha-r1'?)" in done.stderr
    assert "install it: python -m workflows.render --apply" in done.stderr


def test_a_cluster_without_argo(command: Commands, api: FakeApi) -> None:
    for path in ("workflowtemplates/alpha-rl", "workflowtemplates"):
        api.answers[f"{ARGO}/{path}"] = (404, "404 page not found\n")
    done = command("submit", *DATA)
    assert done.returncode == 2 and "has no Argo Workflows" in done.stderr


def set_default(api: FakeApi, name: str, value: str) -> None:
    given = api.objects[f"{ARGO}/workflowtemplates/alpha-rl"]["spec"]["arguments"]["parameters"]
    next(p for p in given if p["name"] == name)["value"] = value


def test_without_data_the_clusters_own(command: Commands, api: FakeApi) -> None:
    done = command("submit")
    assert done.returncode == 2 and "the template on the cluster has no default data set" in done.stderr
    set_default(api, "data", "synthetic:signal=0.75")
    done = command("submit")
    assert done.returncode == 2 and "GPUs train on it only when asked" in done.stderr
    assert not created(api)
    set_default(api, "data", "s3://market/default")
    assert command("submit").returncode == 0
    assert parameters(created(api)[0])["data"] == "s3://market/default"


def test_synthetic_data_when_asked(command: Commands, api: FakeApi) -> None:
    assert command("submit", "--data", "synthetic:signal=0.75").returncode == 0
    assert parameters(created(api)[0])["data"] == "synthetic:signal=0.75"


@pytest.mark.parametrize(
    "data", ["esh4.dbn.zst", "/home/me/esh4.dbn.zst", "file:///x/esh4.dbn.zst", "./d/esh4.dbn.zst"]
)
def test_a_local_file_is_refused_with_both_ways(command: Commands, api: FakeApi, data: str) -> None:
    done = command("submit", "--data", data)
    assert done.returncode == 2 and "a file of this machine; pods can't read it" in done.stderr
    path = data.removeprefix("file://")
    assert f"aws s3 cp {path} s3://BUCKET/esh4.dbn.zst" in done.stderr
    assert f"kubectl cp {path} foxhunt/POD:/feature-cache/esh4.dbn.zst" in done.stderr
    assert "--data /feature-cache/esh4.dbn.zst" in done.stderr
    assert not api.asked("POST", "/workflows")


def test_what_pods_can_read(command: Commands, api: FakeApi) -> None:
    assert command("submit", "--data", "/feature-cache/a.dbn,s3://b/c", "--run-id", "a").returncode == 0
    assert "pods read s3:// addresses" in command("submit", "--data", "gs://b/c").stderr
    assert "esh4.dbn: a file of this machine" in command("submit", "--data", "s3://b/c,esh4.dbn").stderr
    places = ("-p", "runs=/feature-cache/mine/", "-p", "cache=/feature-cache/a/../b")
    assert command("submit", *DATA, "--run-id", "b", *places).returncode == 0


@pytest.mark.parametrize(
    ("data", "says", "todo"),
    [
        ("s3://", "--data s3://: not an S3 address", "write s3://bucket/key, or s3://bucket/prefix/"),
        ("s3://bucket", "--data s3://bucket: not an S3 address", "write s3://bucket/key"),
        ("s3:///key", "--data s3:///key: not an S3 address", "write s3://bucket/key"),
        ("s3:/bucket/key", "--data s3:/bucket/key: not an S3 address", "write s3://bucket/key"),
        ("/feature-cache/../etc/passwd", "leads out of the claim", "write the path without '..'"),
    ],
)
def test_addresses_that_no_pod_can_read(command: Commands, api: FakeApi, data: str, says: str, todo: str) -> None:
    done = command("submit", "--data", data)
    assert done.returncode == 2 and says in done.stderr and todo in done.stderr
    assert not api.asked("POST", "/workflows")


@pytest.mark.parametrize("backend", ["argo", "local"])
def test_the_trainer_judges_the_address_before_anything_starts(
    command: Commands, api: FakeApi, tmp_path: Path, backend: str
) -> None:
    for data, says in (("synthetic:sginal=0.5", "did you mean 'signal'"), ("s3://b/key", "b/key: not an S3 address")):
        done = command("submit", "--data", data, "--dry-run", "--backend", backend, FOXHUNT_TRAINER="")
        assert done.returncode == 2 and says in done.stderr, done.stderr
    assert not api.asked("POST", "/workflows") and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("phase", ["Running", "Pending", ""])
def test_a_run_in_use_is_refused(command: Commands, api: FakeApi, phase: str) -> None:
    state = {"status": {"phase": phase}} if phase else {}
    api.put(f"{ARGO}/workflows/alpha-rl-mine-00000", metadata={"labels": {RUN_ID: "mine"}}, **state)
    done = command("submit", *DATA, "--run-id", "mine")
    assert done.returncode == 2 and "run mine: workflow alpha-rl-mine-00000 works on it" in done.stderr
    for verb in ("watch", "stop"):
        assert f"python -m workflows.{verb} alpha-rl-mine-00000" in done.stderr
    assert not created(api)
    for ended in ("Succeeded", "Failed", "Error"):
        api.objects[f"{ARGO}/workflows/alpha-rl-mine-00000"]["status"] = {"phase": ended}
        assert command("submit", *DATA, "--run-id", "mine", "--dry-run").returncode == 0


def test_a_run_that_argo_submitted_is_in_use_too(command: Commands, api: FakeApi) -> None:
    """Its run-id is a parameter, or known once its task `resolve` has derived it; there is no label."""
    spec = {"arguments": {"parameters": [{"name": "run-id", "value": "mine"}]}}
    api.put(f"{ARGO}/workflows/alpha-rl-x7k2p", spec=spec, status={"phase": "Running"})
    assert "alpha-rl-x7k2p works on it" in command("submit", *DATA, "--run-id", "mine").stderr
    resolve = {"templateName": "resolve", "outputs": {"parameters": [{"name": "run-id", "value": "derived"}]}}
    api.put(f"{ARGO}/workflows/alpha-rl-9q8dz", spec={}, status={"phase": "Running", "nodes": {"n": resolve}})
    assert "alpha-rl-9q8dz works on it" in command("submit", *DATA, "--run-id", "derived").stderr
    assert not created(api)


def test_hera_is_not_imported_to_submit(api: FakeApi, tmp_path: Path) -> None:
    """It takes a second, and the template is on the cluster."""
    argv = [sys.executable, "-X", "importtime", "-m", "workflows.submit", *DATA, "--run-id", "a"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert "kubernetes" in imported and not imported & {"hera", "hera.workflows", "trainer", "numpy"}


def test_another_namespace_and_context_are_passed_on(command: Commands, api: FakeApi) -> None:
    api.put("/api/v1/namespaces/quant")
    api.put("/api/v1/namespaces/quant/persistentvolumeclaims/feature-cache")
    place = ARGO.replace("foxhunt", "quant")
    api.objects[f"{place}/workflowtemplates/alpha-rl"] = api.objects[f"{ARGO}/workflowtemplates/alpha-rl"]
    done = command("submit", *DATA, "--namespace", "quant", "--context", "elsewhere")
    assert done.returncode == 0, done.stderr
    assert [r.path for r in api.asked("POST")] == [f"{place}/workflows"]
    assert re.search(r"workflows\.watch \S+ --context elsewhere --namespace quant\n", done.stdout)


def test_auto_says_so_and_runs_here(command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kc", f"http://127.0.0.1:{free_port()}")))
    done = command("submit", "--folds", "1", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert re.search(r"backend  local \(cluster \S+ \(context here\) does not answer: Connection ref", done.stdout)


def test_a_silent_cluster_costs_two_seconds(command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:  # takes connections, never answers
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kc", url)))
        command("render", "--check")  # imports are not what is measured
        before = time.monotonic()
        done = command("submit", "--folds", "1", "--dry-run")
        assert "backend  local" in done.stdout and "does not answer" in done.stdout
        assert time.monotonic() - before < 5


def test_a_cluster_that_refuses_us_is_no_reason_to_compute_here(command: Commands, api: FakeApi) -> None:
    api.token = "another"
    done = command("submit", "--folds", "1")
    assert done.returncode == 2 and "refuses the credentials" in done.stderr and "--backend local" in done.stderr


@pytest.mark.parametrize("flag", [("--namespace", "x"), ("--image", "x:1"), ("-p", "a=1"), ("--json",)])
def test_cluster_flags_mean_nothing_here(command: Commands, flag: tuple[str, ...]) -> None:
    done = command("submit", "--backend", "local", *flag)
    assert done.returncode == 2 and "only for runs on a cluster" in done.stderr


def test_a_pool_without_a_node(command: Commands, api: FakeApi) -> None:
    for number, pool in enumerate(("ci-training-h100", "ci-compile-cpu")):
        api.put(f"/api/v1/nodes/n{number}", metadata={"labels": {"pool": pool}})
    done = command("submit", *DATA, "--gpu-pool", "ci-training-h10", "--run-id", "a")
    assert done.returncode == 2 and "(did you mean 'ci-training-h100'?)" in done.stderr
    assert "pools with nodes: ci-compile-cpu, ci-training-h100" in done.stderr and not created(api)
    more = ("--gpu-pool", "ci-training-h10", "--scales-from-zero")
    assert command("submit", *DATA, *more, "--run-id", "b").returncode == 0
    done = command("submit", *DATA, "--gpu-pool", "elsewhere", "--run-id", "c")
    assert done.returncode == 2 and "gpu-pool elsewhere: no node has the label pool=elsewhere\n" in done.stderr
    assert "pools with nodes: ci-compile-cpu, ci-training-h100; for one that scales" in done.stderr
    assert "-zero" in command("submit", *DATA, "-p", "cpu-pool=elsewhere", "--run-id", "c", "--dry-run").stderr
    assert command("submit", *DATA, "--gpu-pool", "ci-training-h100", "--run-id", "d").returncode == 0
    api.denied.add(("list", "nodes"))
    assert command("submit", *DATA, "--gpu-pool", "ci-training-h10", "--run-id", "e").returncode == 0


def test_a_claim_that_is_not_there(command: Commands, api: FakeApi) -> None:
    done = command("submit", *DATA, "-p", "claim=feature-cach", "--dry-run")
    assert done.returncode == 2 and "claim feature-cach: no such claim in namespace foxhunt" in done.stderr
    assert "(did you mean 'feature-cache'?)" in done.stderr and "claims there: feature-cache; name one" in done.stderr
    api.denied.add(("list", "persistentvolumeclaims"))
    assert "claims there: none; name one" in command("submit", *DATA, "-p", "claim=feature-cach").stderr
    assert not api.asked("POST", "/workflows")
    api.denied.add(("get", "persistentvolumeclaims"))
    assert command("submit", *DATA, "-p", "claim=feature-cach").returncode == 0, "it may be there"
    api.denied.clear()
    del api.objects[f"{CORE}/persistentvolumeclaims/feature-cache"]
    assert "parameter claim feature-cache: no such claim" in command("submit", *DATA, "--run-id", "b").stderr


def test_watch_takes_over(command: Commands, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def follow(kube: Any, name: str, as_json: bool) -> int:
        seen.append((kube.namespace, name, as_json))
        return 3

    monkeypatch.setattr(watch, "follow", follow)
    assert command("submit", *DATA, "--watch").returncode == 3
    assert seen == [("foxhunt", created(api)[0]["metadata"]["name"], False)]


def test_ctrl_c_leaves_the_workflow_alone(command: Commands, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(kube: Any, name: str, as_json: bool) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "follow", interrupted)
    done = command("submit", *DATA, "--watch")
    name = created(api)[0]["metadata"]["name"]
    assert done.returncode == 130
    assert f"workflow {name} goes on without this terminal" in done.stderr
    assert f"stop it:  python -m workflows.stop {name}" in done.stderr
    assert not api.asked("DELETE") and not api.asked("PATCH")


def test_precompute_on_the_cluster(command: Commands, api: FakeApi) -> None:
    api.put("/api/v1/nodes/n0", metadata={"labels": {"pool": "cpu-nodes"}})
    done = command("precompute", "ESH4", "--pool", "cpu-nodes", *DATA)
    assert done.returncode == 0, done.stderr
    (workflow,) = created(api)
    assert workflow["spec"]["workflowTemplateRef"] == {"name": "precompute-features"}
    given = parameters(workflow)
    assert (given["set"], given["cpu-pool"]) == ("data.symbol=ESH4", "cpu-nodes")
    assert "gpu-pool" not in given, "no GPU for features"


def test_precompute_here(command: Commands, tmp_path: Path) -> None:
    done = command("precompute", "ESH4", "--data", "synthetic", "--backend", "local")
    assert done.returncode == 0, done.stderr
    assert "precompute   succeeded" in done.stdout
    assert "which file or folder holds ESH4?" in command("precompute", "ESH4", "--backend", "local").stderr


REGISTRY_DIGEST = "sha256:" + "5" * 64


@pytest.fixture
def registry() -> Any:
    """Manifests by path; a HEAD on others is 404."""
    from http.server import BaseHTTPRequestHandler

    there: set[str] = set()
    api = FakeApi()
    with Server(api) as server:
        handler: Any = server.http.RequestHandlerClass
        assert issubclass(handler, BaseHTTPRequestHandler)

        def head(self: Any) -> None:
            found = self.path in there
            self.send_response(200 if found else 404)
            if found:
                self.send_header("Docker-Content-Digest", REGISTRY_DIGEST)
            self.send_header("Content-Length", "0")
            self.end_headers()

        handler.do_HEAD = head
        yield api.url.removeprefix("http://"), there


def test_a_tag_becomes_the_digest_it_names(command: Commands, api: FakeApi, registry: Any) -> None:
    host, there = registry
    there.add("/v2/foxhunt/manifests/stable")
    done = command("submit", *DATA, "--image", f"{host}/foxhunt:stable")
    assert done.returncode == 0, done.stderr
    assert parameters(created(api)[0])["image"] == f"{host}/foxhunt@{REGISTRY_DIGEST}"
    done = command("submit", *DATA, "--image", f"{host}/foxhunt:unstable")
    assert done.returncode == 2 and "its registry has no such tag" in done.stderr


def test_a_branch_becomes_the_image_of_its_commit(
    command: Commands, api: FakeApi, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, there = registry
    commit = "abcdef0123456789abcdef0123456789abcdef01"
    monkeypatch.setattr(identity, "branch_commit", lambda branch: commit if branch == "fast" else "")
    monkeypatch.setattr(identity, "known_branches", lambda: [])
    set_default(api, "image", f"{host}/foxhunt:stable")
    there.update({"/v2/foxhunt/manifests/stable", "/v2/foxhunt/manifests/abcdef012345"})
    done = command("submit", *DATA, "--git-branch", "fast")
    assert "built from fast at abcdef012345" in done.stdout and "from code abcdef012345" in done.stdout
    done = command("submit", *DATA, "--git-branch", "slow")
    assert "what " in done.stdout and "names now" in done.stdout, "unknown here: the pod resolve decides"


def test_a_branch_that_this_checkout_does_not_know(
    command: Commands, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "workflows").mkdir(parents=True)
    monkeypatch.setattr(identity, "__file__", str(here / "workflows" / "identity.py"))
    assert command("submit", *DATA, "--git-branch", "mian", "--dry-run").returncode == 0, "no repository knows nothing"
    made = ["-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--allow-empty", "-m", "x"]
    remote = ["update-ref", "refs/remotes/origin/team/fast", "HEAD"]
    for words in (["init", "-q", "-b", "main"], made, remote):
        subprocess.run(["git", "-C", str(here), *words], check=True)
    for branch in ("main", "team/fast"):
        assert command("submit", *DATA, "--git-branch", branch, "--dry-run").returncode == 0
    done = command("submit", *DATA, "--git-branch", "mian", "--dry-run")
    assert done.returncode == 2 and "--git-branch mian: no such branch here or on the remote" in done.stderr
    assert "(did you mean 'main'?)" in done.stderr and "git fetch origin mian:refs/remotes/origin/mian" in done.stderr
    monkeypatch.setattr(identity, "__file__", str(here / "lib" / "workflows" / "identity.py"))
    (here / "lib" / "workflows").mkdir(parents=True)
    assert command("submit", *DATA, "--git-branch", "mian", "--dry-run").returncode == 0, "a repository around it"


def test_branch_commit_knows_this_repository() -> None:
    root = Path(argo.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    branch = identity._git(root, "rev-parse", "--abbrev-ref", "HEAD")
    if os.environ.get("CI") or branch == "HEAD":
        pytest.skip("a detached checkout has no branch")
    assert re.fullmatch(r"[0-9a-f]{40}", identity.branch_commit(branch))
    assert identity.branch_commit("no-such-branch") == ""


def test_overrides_of_folds_are_refused(command: Commands, api: FakeApi) -> None:
    with pytest.raises(UsageError, match="use --folds"):
        identity.join_overrides("", "", "", "3", "folds.folds=4")
    assert command("submit", *DATA, "--set", "folds.folds=4").returncode == 2
    assert not api.asked("POST", CORE)
