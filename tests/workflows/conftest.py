"""A fake trainer in place of the real one, and runners over it."""

import asyncio
import importlib
import json
import shlex
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workflows.fake_api import ARGO, CORE, FakeApi, Server, write_kubeconfig
from tests.workflows.fake_kubernetes import FakeKubernetes
from workflows.cli import invoke
from workflows.local import LocalRunner, Outcome

FAKE = Path(__file__).with_name("fake_trainer.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def fake_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOXHUNT_TRAINER", shlex.join([sys.executable, str(FAKE)]))
    monkeypatch.setenv("FOXHUNT_LOCAL_BACKOFF", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FOXHUNT_COMMIT", "0123456789abcdef")
    monkeypatch.setenv("KUBECONFIG", "/no/such/kubeconfig")  # no test finds the cluster of whoever runs it


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """A fake cluster, reached by KUBECONFIG, with the namespace, the claim and the templates."""
    fake = FakeApi()
    with Server(fake):
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", fake.url)))
        fake.put(CORE)
        fake.put(f"{CORE}/persistentvolumeclaims/feature-cache")
        for name, tree in rendered_templates().items():
            fake.objects[f"{ARGO}/workflowtemplates/{name}"] = deepcopy(tree)
        yield fake


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    """An API server with workflows and pods that change, reached by KUBECONFIG; its claim is the folder `claim`."""
    claim = tmp_path / "claim"
    claim.mkdir()
    fake = FakeKubernetes(claim)
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", fake.url)))
    yield fake
    fake.close()


@cache
def rendered_templates() -> dict[str, Any]:
    from workflows import render

    return render.rendered_templates()


def template(name: str, body: str, **more: Any) -> dict[str, Any]:
    """A container template that runs Python code."""
    return {"name": name, "container": {"command": ["python", "-c"], "args": [body]}, **more}


def workflow(templates: list[dict[str, Any]], tasks: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    dag = {"name": "main", "dag": {"failFast": False, "tasks": tasks}}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "WorkflowTemplate",
        "metadata": {"name": "test"},
        "spec": {"entrypoint": "main", "templates": [*templates, dag], **spec},
    }


def run_here(tree: dict[str, Any], logs: Path, parameters: dict[str, str] | None = None, **options: Any) -> Outcome:
    options = {"jobs": 4, "backoff_scale": 0.0, **options}
    return asyncio.run(LocalRunner(tree, parameters or {}, logs, **options).run())


class Commands:
    """Runs workflow commands in this process, from a folder of their own; pods are processes all the same."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        monkeypatch.chdir(folder)

    def __call__(self, module: str, *args: str, **env: str) -> SimpleNamespace:
        main = importlib.import_module(f"workflows.{module}").main
        with self.monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            self.capsys.readouterr()
            code = invoke(main, list(args), f"python -m workflows.{module}")
        out, err = self.capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path, monkeypatch, capsys)


def calls(cwd: Path, run_id: str) -> list[dict[str, Any]]:
    """What the fake trainer was asked, in order."""
    text = (cwd / "runs" / "alpha-rl-runs" / run_id / "calls.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
