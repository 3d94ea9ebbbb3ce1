"""A study on the live cluster: submitted by our command and by argo's, resumed in parts, read back from S3."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster import node as machine
from tests.cluster.argo import argo
from tests.cluster.builds import program
from tests.cluster.images import branch
from tests.cluster.layout import BUCKET, GPU_POOL, NAMESPACE, Facts
from tests.cluster.live import N_STEPS, SIZES, Live, eventually, main_task
from tests.cluster.s3 import s3_client
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster
Own = tuple[Live, Facts]


def test_submit_runs_three_folds_at_once_and_passes_the_gate(own: Own, undisturbed: Undisturbed) -> None:
    live, _ = own
    assert undisturbed.phase == "Succeeded", live.explain(undisturbed.name)
    assert sorted(undisturbed.folds) == [0, 1, 2]
    assert len({state for state, _ in undisturbed.folds.values()}) == 3  # three different folds


def test_what_the_argo_page_shows(own: Own, undisturbed: Undisturbed) -> None:
    """Dates in the names of the folds, progress, output parameters on the Retry node, the report as an artifact."""
    live, facts = own
    nodes = live.workflow(undisturbed.name)["status"]["nodes"].values()
    train = [n for n in nodes if n.get("templateName") == "train" and n["type"] == "Retry"]
    assert len(train) == 3
    for fold, node in enumerate(sorted(train, key=lambda n: n["displayName"])):
        assert node["displayName"].startswith(f"fold-{fold}-01-02-"), node["displayName"]
        outputs = {p["name"]: p["value"] for p in node["outputs"]["parameters"]}
        _, outcome = undisturbed.folds[fold]
        assert outputs["wr"] == f"{outcome['policy']['wr']:.4f}"
        assert outputs["hold-pct"] == f"{outcome['policy']['hold_pct']:.4f}"
    pods = [n for n in nodes if n.get("templateName") == "train" and n["type"] == "Pod"]
    assert {n["progress"] for n in pods} == {f"{N_STEPS}/{N_STEPS}"}
    report = next(n for n in nodes if n.get("templateName") == "report" and n["type"] == "Pod")
    key = next(a["s3"]["key"] for a in report["outputs"]["artifacts"] if a["name"] == "report")
    page = s3_client(facts).get_object(Bucket=BUCKET, Key=key)["Body"].read().decode()
    assert page.lstrip().startswith("<!doctype html") and "<script" not in page


@contextmanager
def argo_server(live: Live) -> Iterator[str]:
    """Argo's own server, in the network of its controller's pod so that it listens there and nowhere else: its URL."""
    (pod,) = live.get("pods", "-l", "app=workflow-controller")["items"]
    spec, container = main_task(pod, "workflow-controller")
    pid = machine.pid_in(spec, container)
    flags = ("--auth-mode=server", "--namespaced", "--secure=false", "-n", NAMESPACE)
    words = ["nsenter", f"--net=/proc/{pid}/ns/net", str(program("argo")), "server", *flags]
    env = {**os.environ, "KUBECONFIG": str(live.kubeconfig)}
    process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://{pod['status']['podIP']}:2746"
    try:
        eventually("Argo's server answers", lambda: answers(f"{url}/api/v1/version"), 60)
        yield url
    finally:
        process.kill()  # it takes its time to leave otherwise, and holds nothing
        process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def test_argos_server_shows_the_report(own: Own, undisturbed: Undisturbed) -> None:
    """As the artifact of its node, under the rules that it gives to a browser: no script, nothing from elsewhere."""
    live, _ = own
    (report,) = live.nodes(undisturbed.name, "report")
    with argo_server(live) as url:
        path = f"artifact-files/{NAMESPACE}/workflows/{undisturbed.name}/{report['id']}/outputs/report"
        with urllib.request.urlopen(f"{url}/{path}", timeout=30) as answer:
            kind, rules, page = answer.headers["Content-Type"], answer.headers["Content-Security-Policy"], answer.read()
    assert kind.startswith("text/html") and page.decode() == live.read(undisturbed.run_id, "report.html")
    assert "default-src 'none'" in rules and "style-src 'self' 'unsafe-inline'" in rules
    text = page.decode()
    assert "<script" not in text and "src=" not in text and "<link" not in text and "@import" not in text


def test_pods_keep_the_restricted_rules(own: Own, undisturbed: Undisturbed) -> None:
    """The namespace enforces them; nothing runs as root, and the trainer gets no token to the API."""
    live, _ = own
    namespace = live.get("namespace", NAMESPACE)["metadata"]["labels"]
    assert namespace["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in undisturbed.pods:
        main = next(c for c in pod["spec"]["containers"] if c["name"] == "main")
        assert main["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["spec"]["terminationGracePeriodSeconds"] == 30
        assert pod["spec"]["nodeSelector"] == {"pool": GPU_POOL}


def test_the_very_argo_line(own: Own, undisturbed: Undisturbed, measured: Any) -> None:
    """`argo submit --from=wftmpl/alpha-rl` with five parameters; everything else is the installation's default."""
    live, _ = own
    given = {"git-branch": branch(), **SIZES, "gpu-pool": GPU_POOL}
    flags = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
    done = argo("submit", "--from=wftmpl/alpha-rl", "-n", NAMESPACE, *flags, "-o", "name")
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip().split("/")[-1]
    live.started.append(name)
    watched = live.foxhunt("watch", name, "--json")
    assert watched.returncode == 0 and live.phase(name) == "Succeeded", live.explain(name)
    calls = [json.loads(line) for line in watched.stdout.splitlines() if '"calls_a_minute"' in line][-1]
    measured("watch, a whole study: API calls", calls["calls"])
    measured("watch, a whole study: API calls a minute", calls["calls_a_minute"])
    resolved = next(n for n in live.nodes(name, "resolve", "Retry"))
    run_id = next(p["value"] for p in resolved["outputs"]["parameters"] if p["name"] == "run-id")
    assert {fold: live.done(run_id, fold) for fold in range(3)} == undisturbed.folds


def test_argo_line_refuses_a_branch_that_the_image_was_not_built_from(own: Own) -> None:
    live, _ = own
    done = argo("submit", "--from=wftmpl/alpha-rl", "-n", NAMESPACE, "-p", "git-branch=no-such-branch", "-o", "name")
    name = done.stdout.strip().split("/")[-1]
    live.started.append(name)
    assert live.wait(name) == "Failed"
    (node,) = live.nodes(name, "resolve", "Pod")  # a mistake is not retried
    assert "exit code 2" in node["message"]
    log = live.kubectl("logs", live.pods(name, "resolve")[0]["metadata"]["name"], "-c", "main")
    assert "--git-branch no-such-branch: this code was built from" in log


def test_some_folds_then_the_rest_redoes_nothing(own: Own, undisturbed: Undisturbed) -> None:
    live, _ = own
    first = live.submit("in-parts", "--only-folds", "0,2")
    assert live.wait(first) == "Failed"  # the gate misses fold 1
    (gate,) = live.nodes(first, "gate", "Pod")
    assert "exit code 3" in gate["message"]
    done = {fold: live.attempts("in-parts", fold) for fold in (0, 2)}
    second = live.submit("in-parts", "--only-folds", "1")
    assert live.wait(second) == "Succeeded", live.explain(second)
    assert {fold: live.attempts("in-parts", fold) for fold in (0, 2)} == done
    assert {fold: live.done("in-parts", fold) for fold in range(3)} == undisturbed.folds


def test_a_finished_run_submitted_again_trains_nothing(own: Own, undisturbed: Undisturbed) -> None:
    live, _ = own
    before = {fold: live.attempts(undisturbed.run_id, fold) for fold in range(3)}
    name = live.submit(undisturbed.run_id)
    assert live.wait(name) == "Succeeded", live.explain(name)
    assert {fold: live.attempts(undisturbed.run_id, fold) for fold in range(3)} == before
