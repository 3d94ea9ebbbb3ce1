"""Finds a run by name: in the runs folder of this machine first, else on the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workflows import state
from workflows.errors import UsageError, nearest
from workflows.launch import Backend

if TYPE_CHECKING:
    from workflows.kube import Kube

STUDIES = ("alpha-rl",)
TEMPLATES = (*STUDIES, "precompute-features")
BackendOption = Annotated[Backend, typer.Option("--backend", help="where to look; auto: here first")]


@dataclass(frozen=True)
class ClusterRun:
    """A run on a cluster with its workflows of one template, newest first; resubmission makes another."""

    kube: Kube
    run_id: str
    workflows: list[dict[str, Any]]

    @property
    def newest(self) -> dict[str, Any]:
        return self.workflows[0]

    @property
    def name(self) -> str:
        """Name of the newest workflow."""
        return str(self.newest["metadata"]["name"])


def locate(runs: Path, run: str, backend: Backend, context: str, namespace: str) -> Path | ClusterRun:
    """The run's folder here, or the run on the cluster. "" is the newest.

    Naming a context or a namespace means the cluster. Raises UsageError with the nearest name.
    """
    if backend is Backend.local or (backend is Backend.auto and not (context or namespace)):
        try:
            return state.find(runs, run)
        except UsageError as error:
            if backend is Backend.local or not has_cluster():
                raise
            here = str(error).partition("\n")[0]
        try:
            return on_cluster(connect(context, namespace), run)
        except UsageError as error:
            raise type(error)(f"{here}; {error}") from None
    return on_cluster(connect(context, namespace), run)


def has_cluster() -> bool:
    """Whether a kubeconfig or a pod's service account names one."""
    from workflows import kube

    return bool(kube.kubeconfig()) or kube.in_cluster()


def connect(context: str, namespace: str) -> Kube:
    from workflows.kube import Kube

    return Kube.connect(context, namespace)


def studies(kube: Kube) -> list[dict[str, Any]]:
    """Workflows of our templates, newest first."""
    from workflows.kube import TEMPLATE_LABEL

    found = kube.workflows(f"{TEMPLATE_LABEL} in ({', '.join(TEMPLATES)})")
    if not found and kube.namespace_exists() is False:
        raise kube.missing_namespace()
    return found


def on_cluster(kube: Kube, run: str) -> ClusterRun:
    """By run-id or workflow name, or the unique beginning of one; "" is the newest. Raises UsageError."""
    found = studies(kube)
    if not found:
        raise UsageError(
            f"no studies in namespace {kube.namespace} of {kube.who()}\n"
            f"start one: python -m workflows.submit --folds 3 --backend argo{kube.flags()}"
        )
    names = [(identity(workflow), str(workflow["metadata"]["name"])) for workflow in found]
    run_id = _choose(run, names, kube)
    own = [workflow for workflow, (its, _) in zip(found, names, strict=True) if its == run_id]
    named = [workflow for workflow in own if workflow["metadata"]["name"] == run]  # in full: the one that is meant
    studies_first = sorted(own, key=lambda workflow: template_of(workflow) not in STUDIES)
    template = template_of((named or studies_first)[0])
    rest = [workflow for workflow in own if template_of(workflow) == template and workflow not in named]
    return ClusterRun(kube, run_id, [*named, *rest])


def template_of(workflow: dict[str, Any]) -> str:
    return str(((workflow.get("spec") or {}).get("workflowTemplateRef") or {}).get("name") or STUDIES[0])


def identity(workflow: dict[str, Any]) -> str:
    """The run-id; the workflow's own name while nobody knows it yet."""
    from workflows.argo_nodes import run_id_of

    return run_id_of(workflow) or str(workflow["metadata"]["name"])


def _choose(run: str, names: list[tuple[str, str]], kube: Kube) -> str:
    if not run:
        return names[0][0]
    exact = [run_id for run_id, name in names if run in (run_id, name)]
    begun = _distinct(run_id for run_id, name in names if run_id.startswith(run) or name.startswith(run))
    found = exact[:1] or begun
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"run {run!r}: more than one begins so: {', '.join(found[:8])}")
    known = _distinct([run_id for run_id, _ in names] + [name for _, name in names])
    hint = nearest(run, known) or f"; there: {', '.join(_distinct(r for r, _ in names)[:8])}"
    todo = f"see python -m workflows.list --backend argo{kube.flags()}"
    raise UsageError(f"run {run!r}: none in namespace {kube.namespace}{hint}\n{todo}")


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
