"""Says before a submission whether a study can run on the cluster, and for all that is wrong what to type.

python -m workflows.preflight
python -m workflows.preflight --folds 8 --gpu-pool ci-training-h100 --json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from workflows import argo, capacity_checks, controller_checks, identity, install_checks
from workflows.cli import Context, Namespace, run_command
from workflows.errors import UsageError
from workflows.findings import Finding, Scope, State, guarded
from workflows.kube import ClusterError, Kube
from workflows.launch import FromZero, More, name_values

TEMPLATE = "alpha-rl"
CHECKS: list[tuple[str, Callable[[Scope], Iterable[Finding]]]] = [
    ("argo", install_checks.argo_crds),
    ("controller", controller_checks.controller),
    ("rights", install_checks.rights),
    ("template", install_checks.template),
    ("gpu-pool", capacity_checks.gpu_pool),
    ("cpu-pool", capacity_checks.cpu_pool),
    ("gpus", capacity_checks.free_gpus),
    ("quota", capacity_checks.quota),
    ("claim", capacity_checks.claim),
    ("account", install_checks.account),
    ("secrets", install_checks.secrets),
    ("artifacts", install_checks.artifacts),
    ("image", install_checks.image),
    ("data", install_checks.data),
]


def main(
    folds: Annotated[int, typer.Option(help="folds that are to run at once, 1 to 100")] = 3,
    data: Annotated[str, typer.Option(help="market data; none: the cluster's default")] = "",
    gpu_pool: Annotated[str, typer.Option(help="node pool for training; none: the cluster's template's")] = "",
    cpu_pool: Annotated[str, typer.Option(help="node pool for the rest; none: the cluster's template's")] = "",
    image: Annotated[str, typer.Option(help="image of the pods; none: the template's")] = "",
    scales_from_zero: FromZero = False,
    context: Context = "",
    namespace: Namespace = "",
    more: More = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> int:
    """Check everything that a study needs on the cluster, with your own rights; change nothing.

    Each line is ok, warning, failed or "not checked" (you may not read it). Ends with 0, or 2 when something failed.

    Example: python -m workflows.preflight --folds 3
    """
    identity.check_folds(folds)
    given = {"data": data, "gpu-pool": gpu_pool, "cpu-pool": cpu_pool, "image": image, **name_values(more or [])}
    asked = {name: value for name, value in given.items() if value}
    found = check(context, namespace, folds, asked, scales_from_zero)
    show(found, as_json)
    return 2 if any(finding.state is State.failed for finding in found) else 0


def check(context: str, namespace: str, folds: int, asked: dict[str, str], scales_from_zero: bool) -> list[Finding]:
    """All findings. What can't be known once the cluster refuses us is not listed."""
    try:
        kube = Kube.connect(context, namespace)
    except UsageError as error:
        return [_failed("cluster", error)]
    found: list[Finding] = []
    try:
        found.append(_cluster(kube))
        credentials, user = _credentials(kube)
        found.append(credentials)
        there = kube.namespace_exists()
        if there is False:
            return [*found, _failed("namespace", kube.missing_namespace())]
        scope = _scope(kube, folds, asked, user, scales_from_zero)
        found.append(
            Finding("namespace", State.ok, kube.namespace)
            if there
            else Finding("namespace", State.unknown, f"{kube.namespace}: these credentials may not read it")
        )
        for name, one in CHECKS:
            found += guarded(name, one, scope)
    except ClusterError as error:
        found.append(_failed("credentials" if error.status == 401 else "cluster", error))
    except UsageError as error:
        found.append(_failed("parameters", error))
    return found


def _failed(name: str, error: Exception) -> Finding:
    first, *rest = str(error).splitlines()
    return Finding(name, State.failed, first, "; ".join(rest))


def _cluster(kube: Kube) -> Finding:
    try:
        return Finding("cluster", State.ok, f"{kube.who()}, {kube.server_version(5.0)}")
    except ClusterError as error:
        if error.status != 403:
            raise
        return Finding("cluster", State.ok, f"{kube.who()} answers")


def _credentials(kube: Kube) -> tuple[Finding, str]:
    """Who we are, "" when unknown; servers before 1.28 don't tell, but refuse wrong credentials all the same."""
    from kubernetes import client

    try:
        told = kube.call(client.AuthenticationV1Api(kube.api).create_self_subject_review, client.V1SelfSubjectReview())
        name = told.status.user_info.username
    except ClusterError as error:
        if error.status not in (403, 404):
            raise
        kube.allowed("get", "workflows", "argoproj.io")
        return Finding("credentials", State.ok, "accepted"), ""
    if name == "system:anonymous":  # where nobody may ask who he is; elsewhere even that is forbidden
        return _failed("credentials", kube.nobody()), ""
    return Finding("credentials", State.ok, name), name


def _scope(kube: Kube, folds: int, asked: dict[str, str], user: str, scales_from_zero: bool) -> Scope:
    """The template on the cluster and its parameters; without one, those of this code."""
    from workflows.launch import offline_template

    installed: bool | None = True
    try:
        template = kube.template(TEMPLATE)
    except ClusterError as error:
        if error.status not in (403, 404):
            raise
        installed = None if error.status == 403 else False
        template = offline_template(TEMPLATE)
    defaults = argo.default_parameters(template)
    argo.refuse_unknown(asked, defaults, kube)
    parameters = {**defaults, **asked}
    argo.check_values(parameters)
    return Scope(kube, template, installed, parameters, folds, user, scales_from_zero)


def show(found: list[Finding], as_json: bool) -> None:
    """A table on a terminal, plain lines elsewhere."""
    if as_json:
        findings = [{"check": f.check, "state": f.state.value, "says": f.says, "todo": f.todo} for f in found]
        print(json.dumps({"ok": all(f.state is not State.failed for f in found), "findings": findings}))
    elif sys.stdout.isatty():
        _table(found)
    else:
        for f in found:
            print(f"{f.state.value:<11}  {f.check:<11}  {f.says}")
            if f.todo:
                print(f"{'':<26}-> {f.todo}")
        print(_total(found))


def _total(found: list[Finding]) -> str:
    counts = {state: sum(f.state is state for f in found) for state in State}
    return ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)


def _table(found: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {State.ok: "green", State.warning: "yellow", State.failed: "bold red", State.unknown: "dim"}
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("check", "state", "what"):
        table.add_column(column, no_wrap=column != "what")
    for f in found:
        says = Text(f.says)
        if f.todo:
            says.append(f"\n-> {f.todo}", style="cyan")
        table.add_row(f.check, Text(f.state.value, style=colours[f.state]), says)
    console = Console()
    console.print(table)
    console.print(_total(found), style="dim")


if __name__ == "__main__":
    run_command(main)
