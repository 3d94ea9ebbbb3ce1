"""What the live tests do to a cluster and ask of it, as a person would: our commands, kubectl, the claim."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.layout import CLAIM, CPU_POOL, GPU_POOL, NAMESPACE, Facts, NodeSpec, node_spec

ROOT = Path(__file__).resolve().parents[2]
RUNS = "alpha-rl-runs"
RUN_ID = re.compile(r"t-[0-9a-f]{4}-.*|[0-9a-f]{12}")  # of a test, or derived by a study
N_STEPS = 800
DATA = "synthetic:signal=0.75,rows=8000"
# A study of seconds that trades in every fold, since nothing costs and nothing favours holding. The gate asks for
# nothing more than trades, so that a study is green exactly when its machinery worked.
SETTINGS = {
    "env.episode_len": "64",
    "env.fee_ticks": "0",
    "env.inventory_penalty": "0",
    "env.message_cost": "0",
    "net.hold_bias": "0",
    "learn.batch": "32",
    "run.checkpoint_every": "100",
    "run.metrics_every": "10",
    "run.validate_every": "0",
    "eval.bootstrap_samples": "200",
    "eval.min_wr": "0",
    "eval.min_wr_fold": "0",
    "eval.min_entropy": "0",
    "eval.hold_pct_min": "0",
    "eval.hold_pct_max": "100",
    "eval.min_trades": "0",
    "eval.require_positive_net": "false",
}
SIZES = {"n-steps": str(N_STEPS), "n-backtests": "32", "per-capacity": "2048"}


@dataclass
class Live:
    """A cluster under test. `facts` is None for one that somebody else runs."""

    kubeconfig: Path
    kubectl_program: str
    facts: Facts | None
    started: list[str] = field(default_factory=list)  # workflows that the next `clean` removes
    kept: list[str] = field(default_factory=list)  # and those that it leaves until the session ends
    session: str = field(default_factory=lambda: secrets.token_hex(2))  # runs of another session may be on the claim

    # -- commands --

    def kubectl(self, *argv: str, check: bool = True, stdin: str | None = None) -> str:
        command = [self.kubectl_program, "--kubeconfig", str(self.kubeconfig), "-n", NAMESPACE, *argv]
        done = subprocess.run(command, capture_output=True, text=True, input=stdin)
        assert done.returncode == 0 or not check, f"{' '.join(argv)}: {done.stderr}"
        return done.stdout

    def get(self, *argv: str) -> Any:
        return json.loads(self.kubectl("get", *argv, "-o", "json"))

    def foxhunt(self, module: str, *argv: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`python -m workflows.<module> ...` against this cluster."""
        return subprocess.run(**self._command(module, argv, kubeconfig), capture_output=True, timeout=600)

    def start(self, module: str, *argv: str) -> subprocess.Popen[str]:
        """The same without waiting for its end."""
        return subprocess.Popen(**self._command(module, argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def _command(self, module: str, argv: Sequence[str], kubeconfig: Path | None = None) -> dict[str, Any]:
        env = {**os.environ, "KUBECONFIG": str(kubeconfig or self.kubeconfig)}
        return {"args": [sys.executable, "-m", f"workflows.{module}", *argv], "env": env, "cwd": ROOT, "text": True}

    def submit(self, run: str, *more: str) -> str:
        """Submits the small study with our own command; returns the workflow's name."""
        done = self.foxhunt("submit", *submission(self.run_id(run)), "--backend", "argo", "--json", *more)
        assert done.returncode == 0, done.stderr + done.stdout
        name = str(json.loads(done.stdout.strip().splitlines()[-1])["workflow"])
        self.started.append(name)
        return name

    # -- state --

    def workflow(self, name: str) -> dict[str, Any]:
        return dict(self.get("workflow", name))

    def phase(self, name: str) -> str:
        return str(self.workflow(name).get("status", {}).get("phase", ""))

    def nodes(self, name: str, template: str, kind: str = "Pod") -> list[dict[str, Any]]:
        """Nodes of a workflow: its pods, or the Retry nodes that hold what is final."""
        found = self.workflow(name).get("status", {}).get("nodes", {}).values()
        return [n for n in found if n.get("templateName") == template and n["type"] == kind]

    def pods(self, name: str, template: str = "train") -> list[dict[str, Any]]:
        """Pods of a template as they are now."""
        items = self.get("pods", "-l", f"workflows.argoproj.io/workflow={name}")["items"]
        return [p for p in items if f"-{template}-" in p["metadata"]["name"]]

    def wait(self, name: str, seconds: float = 300) -> str:
        """The workflow's final phase."""
        last: list[str] = [""]

        def ended() -> bool:
            last[0] = self.phase(name)
            return last[0] in ("Succeeded", "Failed", "Error")

        eventually(f"{name} ends", ended, seconds, lambda: self.explain(name))
        return last[0]

    def explain(self, name: str) -> str:
        """What a person would look at when a workflow does not do what it should."""
        nodes = self.workflow(name).get("status", {}).get("nodes", {}).values()
        lines = [f"{n['displayName']}: {n['phase']} {n.get('message', '')}" for n in nodes]
        return "\n".join([*lines, self.kubectl("get", "pods", "-o", "wide", check=False)])

    def running_pod(
        self, name: str, fold: int, seconds: float = 120, after: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """The pod that trains a fold, once its trainer has written a metric line; `after` are uids of earlier ones."""
        found: list[dict[str, Any]] = []

        def is_training() -> bool:
            found[:] = [
                p
                for p in self.pods(name)
                if fold_of(p) == fold and p["metadata"]["uid"] not in after and p["status"]["phase"] == "Running"
            ]
            return bool(found) and self.step(name, fold, found[0]["metadata"]["name"]) > 0

        eventually(f"fold {fold} of {name} trains", is_training, seconds, lambda: self.explain(name))
        return found[0]

    def step(self, name: str, fold: int, pod: str) -> int:
        """Newest step that a pod's own log tells."""
        lines = self.kubectl("logs", pod, "-c", "main", "--tail=40", check=False).splitlines()
        return max((int(line["step"]) for line in json_lines(lines) if "step" in line), default=0)

    # -- the claim --

    def run_id(self, run: str) -> str:
        """The run-id of a test's run; with a prefix of this session, unless it has one already."""
        return run if RUN_ID.fullmatch(run) else f"t-{self.session}-{run}"

    def folder(self, run: str) -> Path:
        """Only a cluster of our own lets us look at the claim from outside."""
        return CLAIM / RUNS / self.run_id(run)

    def read(self, run: str, path: str) -> str:
        return (self.folder(run) / path).read_text()

    def done(self, run: str, fold: int) -> tuple[str, dict[str, Any]]:
        """(state hash, fold result without what tells of times, names and attempts) of a finished fold."""
        result = json.loads(self.read(run, f"fold{fold}/fold_result.json"))
        return self.read(run, f"fold{fold}/DONE").splitlines()[1], outcome_of(result)

    def attempts(self, run: str, fold: int) -> list[dict[str, Any]]:
        """Lines of the attempt ledger."""
        return json_lines(self.read(run, f"fold{fold}/attempts.jsonl").splitlines())

    def keep(self, name: str) -> None:
        """Other tests look at this workflow, too."""
        self.started.remove(name)
        self.kept.append(name)

    def end(self) -> None:
        self.started += self.kept
        self.clean()

    def clean(self) -> None:
        """Removes what a test started, workflows with their pods."""
        for name in self.started:
            self.kubectl("delete", "workflow", name, "--wait=false", "--ignore-not-found", check=False)
        self.started.clear()


_OF_THE_RUN = ("provenance", "deflated_sharpe", "training")


def outcome_of(result: dict[str, Any]) -> dict[str, Any]:
    """A fold result without times, names, attempts and the number of trials, which each run of a session changes."""
    kept = {key: value for key, value in result.items() if key not in _OF_THE_RUN}
    return kept | {"curve": result["training"]["curve"], "steps": result["training"]["steps"]}


def submission(run_id: str) -> list[str]:
    """Flags of `workflows.submit` for the small study."""
    overrides = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    sizes = [word for name, value in SIZES.items() for word in (f"--{name}", value)]
    pools = ["--gpu-pool", GPU_POOL, "--cpu-pool", CPU_POOL]
    return ["--folds", "3", "--data", DATA, "--config", "cpu-demo", "--run-id", run_id, *sizes, *pools, *overrides]


def set_text() -> str:
    """The same settings as the value of the parameter `set`."""
    return ";".join(f"{key}={value}" for key, value in SETTINGS.items())


def fold_of(pod: dict[str, Any]) -> int:
    """The fold in a training pod's command."""
    words = next(c for c in pod["spec"]["containers"] if c["name"] == "main")
    argv = [*words.get("command", []), *words.get("args", [])]
    return int(argv[argv.index("--fold") + 1])


def main_task(pod: dict[str, Any], name: str = "main") -> tuple[NodeSpec, str]:
    """(node, container ID) of a pod's container."""
    status = next(c for c in pod["status"]["containerStatuses"] if c["name"] == name)
    return node_spec(pod["spec"]["nodeName"]), status["containerID"].removeprefix("containerd://")


def json_lines(lines: list[str]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:  # the executor's own lines
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def eventually(what: str, test: Callable[[], bool], seconds: float, explain: Callable[[], str] = str) -> float:
    """Seconds until the condition held; an AssertionError that explains itself when it never does."""
    started = time.monotonic()
    while not test():
        waited = time.monotonic() - started
        assert waited < seconds, f"not within {seconds:.0f} s: {what}\n{explain()}"
        time.sleep(0.3)
    return time.monotonic() - started


def find_kubectl() -> str:
    return os.environ.get("FOXHUNT_TEST_KUBECTL") or shutil.which("kubectl") or "kubectl"
