"""Where a study runs, and its start on a cluster: what `submit` and `precompute` share."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workflows.errors import UsageError

if TYPE_CHECKING:
    from workflows.argo import Settled
    from workflows.kube import Kube

ANSWER_SECONDS = 2.0


class Backend(StrEnum):
    auto = "auto"
    argo = "argo"
    local = "local"


More = Annotated[list[str] | None, typer.Option("--parameter", "-p", help="name=value of the template, repeatable")]
Watch = Annotated[bool, typer.Option("--watch", help="follow it to its end; always so on this machine")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show what would run, start nothing")]
FromZero = Annotated[bool, typer.Option("--scales-from-zero", help="a pool without nodes makes one when asked")]
AsJson = Annotated[bool, typer.Option("--json", help="say what was started as one JSON object (cluster)")]


@dataclass(frozen=True)
class How:
    """What a person wants to see of a start on a cluster."""

    watch: bool = False
    dry_run: bool = False
    as_json: bool = False
    scales_from_zero: bool = False


def choose(wanted: Backend, context: str, namespace: str, *, offline: bool = False) -> tuple[Kube | None, str]:
    """The cluster to use, or None for this machine; and why.

    `auto` takes the cluster of the kubeconfig when one answers within two seconds. One that answers and then refuses,
    or whose certificate isn't trusted, is an error, not a reason to compute here quietly. `offline`: a demanded cluster
    need not answer (a dry run).
    """
    if wanted is Backend.local:
        return None, "as asked"
    from workflows import kube

    if wanted is Backend.auto and not (kube.kubeconfig() or context or kube.in_cluster()):
        return None, "no cluster configured: no kubeconfig"
    cluster = kube.Kube.connect(context, namespace)
    problem = unanswered(cluster, ANSWER_SECONDS)
    if not problem:
        return cluster, "as asked" if wanted is Backend.argo else "it answers"
    if wanted is Backend.auto and not context:
        return None, problem.splitlines()[0]
    if offline:
        return cluster, problem
    raise UsageError(problem)


def unanswered(cluster: Kube, seconds: float) -> str:
    """Why the cluster doesn't answer, "" when it does. A thread asks: a name server that hangs knows no time limit.

    Raises UsageError for one that is there and refuses us, or fails TLS.
    """
    from workflows.kube import ClusterError
    from workflows.no_answer import TLS

    said: list[ClusterError | None] = []

    def ask() -> None:
        try:
            cluster.server_version(seconds)
            said.append(None)
        except ClusterError as error:
            said.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds + 0.5)
    if not said:
        return f"{cluster.who()} does not answer within {seconds:g} s\n{NO_ANSWER}"
    error = said[0]
    if error is None or error.status == 403:  # whoever may not read the version may still do all that we need
        return ""
    if error.status or error.reason == TLS:
        raise UsageError(f"{error}\nor run on this machine: --backend local")
    return str(error)


NO_ANSWER = "is it up, and is this its network? check with: kubectl cluster-info; or run here: --backend local"


def name_values(items: list[str]) -> dict[str, str]:
    """["a=1", "b=x=y"] -> {"a": "1", "b": "x=y"}."""
    for item in items:
        if "=" not in item or item.startswith("="):
            raise UsageError(f"--parameter {item}: expected name=value, for example --parameter memory-mi=32768")
    return {item.partition("=")[0].strip(): item.partition("=")[2].strip() for item in items}


def refuse_for_cluster(**given: object) -> None:
    """Raises UsageError for the flags that only mean something on this machine."""
    for name, value in given.items():
        if value:
            raise UsageError(
                f"--{name}: only for runs on this machine\n"
                "leave it out, or say --backend local; a cluster's pods work on its claim"
            )


def refuse_here(**given: object) -> None:
    """Raises UsageError for the flags that only mean something on a cluster."""
    for name, value in given.items():
        if value:
            raise UsageError(
                f"--{name}: only for runs on a cluster, and this one would run on this machine\n"
                "leave it out, or say --backend argo"
            )


def run(kube: Kube, template: str, asked: dict[str, str], command: list[str], how: How) -> int:
    """Settles, checks, creates; follows when wanted. Returns the exit code."""
    from workflows import argo
    from workflows.kube import ClusterError

    try:
        settled = argo.settle(kube, template, asked)
        note = ""
    except ClusterError as error:
        if not how.dry_run or error.status:
            raise
        note = str(error).splitlines()[0]
        settled = argo.settle(kube, template, asked, offline=offline_template(template))
    body = argo.workflow_object(settled, kube.namespace, shlex.join(command))
    name = body["metadata"]["name"]
    if not how.as_json:
        say_settings(kube, settled)
    if not note:
        if not how.scales_from_zero:
            argo.refuse_unknown_pools(kube, asked)
        argo.refuse_run_in_use(kube, settled.run_id)
    if how.dry_run:
        return dry_run(kube, body, how, note)
    kube.create("workflows", body)
    if how.as_json:
        print(json.dumps(told(kube, settled, name)), flush=True)
    else:
        print(f"workflow {name} created", flush=True)
    return follow(kube, name, how.as_json) if how.watch else say_next(kube, name, how)


def dry_run(kube: Kube, body: dict[str, Any], how: How, note: str) -> int:
    """Prints the Workflow after the API server has checked it against its schema, without keeping it."""
    if not note:
        kube.create("workflows", body, dry_run=True)
    if how.as_json:
        print(json.dumps(body))
        return 0
    import yaml

    checked = f"not checked by the cluster: {note}" if note else "the cluster's API server accepts it (dry run)"
    print(f"---\n{yaml.safe_dump(body, sort_keys=False, width=110)}...")
    print(f"{checked}; nothing was started")
    return 0


def offline_template(name: str) -> dict[str, Any]:
    from workflows.render import rendered_templates

    return rendered_templates()[name]


def say_settings(kube: Kube, settled: Settled) -> None:
    chosen = settled.parameters
    lines = {
        "backend": f"argo ({kube.who()}, namespace {kube.namespace})",
        "data": f"{chosen['data']} ({settled.notes['data']})",
        "config": chosen["config"] + (f" with {chosen['set']}" if chosen.get("set") else ""),
        "image": f"{chosen['image']} ({settled.notes['image']})",
        "run-id": f"{settled.run_id} ({settled.notes['run-id']})",
        "pools": ", ".join(chosen[n] for n in ("gpu-pool", "cpu-pool") if n in chosen),
    }
    for name, text in lines.items():
        print(f"{name:<8} {text}")


def told(kube: Kube, settled: Settled, name: str) -> dict[str, Any]:
    return {
        "workflow": name,
        "run_id": settled.run_id,
        "namespace": kube.namespace,
        "context": kube.context,
        "parameters": settled.parameters,
    }


def say_next(kube: Kube, name: str, how: How) -> int:
    if not how.as_json:
        print(f"watch it: python -m workflows.watch {name}{kube.flags()}")
        print(f"stop it:  python -m workflows.stop {name}{kube.flags()}")
    return 0


def follow(kube: Kube, name: str, as_json: bool) -> int:
    """Hands over to `watch`; Ctrl-C ends the watching, not the workflow."""
    from workflows import watch
    from workflows.argo import INTERRUPTED_BY_HAND

    try:
        return watch.follow(kube, name, as_json=as_json)
    except KeyboardInterrupt:
        print(f"\nworkflow {name} goes on without this terminal", file=sys.stderr)
        print(f"watch it: python -m workflows.watch {name}{kube.flags()}", file=sys.stderr)
        print(f"stop it:  python -m workflows.stop {name}{kube.flags()}", file=sys.stderr)
        return INTERRUPTED_BY_HAND
