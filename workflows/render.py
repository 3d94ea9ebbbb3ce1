"""Writes the YAML of every WorkflowTemplate from its Hera source, checks it, installs it.

python -m workflows.render            writes charts/foxhunt/files/*.yaml
python -m workflows.render --check    exit 1 when a file differs
python -m workflows.render --lint     what is wrong with them, here and by the cluster's API server when one answers
python -m workflows.render --apply --default image=registry/foxhunt@sha256:...    installs them on the cluster
"""

from __future__ import annotations

import difflib
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workflows.cli import Context, Namespace, run_command
from workflows.errors import UsageError, nearest

if TYPE_CHECKING:
    from workflows.kube import Kube

FOLDER = Path(__file__).resolve().parents[1] / "charts" / "foxhunt" / "files"
DIGEST = "foxhunt.dev/template-digest"
_HEADER = "# Rendered from workflows/ by `python -m workflows.render`; change the source, not this file.\n"


def main(
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 when a file differs")] = False,
    lint: Annotated[bool, typer.Option("--lint", help="write nothing; say what is wrong with the templates")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="write nothing; install the templates on the cluster")] = False,
    default: Annotated[
        list[str] | None, typer.Option("--default", help="name=value of a parameter on that cluster, repeatable")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder of the YAML files")] = FOLDER,
    context: Context = "",
    namespace: Namespace = "",
) -> int:
    """Render every WorkflowTemplate to YAML; check, lint or install it.

    --lint ends with 1 when something is wrong. --apply keeps the defaults that are set on the cluster (image, data,
    pools), except those named by --default.

    Example: python -m workflows.render --lint
    """
    if sum((check, lint, apply)) > 1:
        raise UsageError("--check, --lint and --apply: one at a time\nrun them one after the other")
    if default and not apply:
        raise UsageError("--default: only with --apply\nthe files hold the defaults of the source")
    if lint:
        return lint_all(context, namespace)
    if apply:
        return apply_all(context, namespace, default or [])
    return write_all(out, check)


def write_all(out: Path, check: bool) -> int:
    different = 0
    for name, text in rendered_files().items():
        path = out / name
        old = path.read_text() if path.is_file() else ""
        if old == text:
            print(f"same     {path}")
        elif check:
            different += 1
            print(f"differs  {path}")
            print("".join(difflib.unified_diff(old.splitlines(True), text.splitlines(True), "there", "source")), end="")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"written  {path}")
    if different:
        print("run python -m workflows.render and review the difference")
    return 1 if different else 0


def lint_all(context: str, namespace: str) -> int:
    """Prints what is wrong with each template; the cluster's opinion too, or why there is none."""
    from workflows.launch import Backend, choose
    from workflows.lint import lint, server_lint

    cluster, why = choose(Backend.auto, context, namespace)
    wrong = 0
    for name, tree in rendered_templates().items():
        found = lint(tree)
        if cluster:
            found += server_lint(cluster, tree)
        wrong += len(found)
        for line in found:
            print(f"wrong    {name}: {line}")
        if not found:
            print(f"good     {name}")
    print(f"server   checked by {cluster.who()}, nothing created" if cluster else f"server   not checked: {why}")
    return 1 if wrong else 0


def apply_all(context: str, namespace: str, defaults: list[str]) -> int:
    """Installs or renews each template. A parameter that no template has is refused before anything is written."""
    from workflows.kube import Kube
    from workflows.launch import name_values

    wanted, trees = name_values(defaults), rendered_templates()
    known = {p["name"] for tree in trees.values() for p in tree["spec"]["arguments"]["parameters"]}
    for name in wanted:
        if name not in known:
            raise UsageError(f"--default {name}: no template has this parameter{nearest(name, sorted(known))}")
    cluster = Kube.connect(context, namespace)
    for name, tree in trees.items():
        done, kept = apply_one(cluster, tree, wanted)
        print(f"{done:<8} {name} in namespace {cluster.namespace}" + (f", kept {', '.join(kept)}" if kept else ""))
    return 0


def apply_one(cluster: Kube, tree: dict[str, Any], defaults: dict[str, str]) -> tuple[str, list[str]]:
    """Creates the template, or replaces it with the cluster's own defaults kept. Returns what was done and kept."""
    from workflows.kube import ClusterError

    name, there = tree["metadata"]["name"], None
    try:
        there = cluster.get("workflowtemplates", name)
    except ClusterError as error:
        if error.status != 404:
            raise
    theirs = {
        p["name"]: p.get("value") for p in (there or {}).get("spec", {}).get("arguments", {}).get("parameters", [])
    }
    kept = []
    for parameter in tree["spec"]["arguments"]["parameters"]:
        key, ours = parameter["name"], parameter["value"]
        parameter["value"] = defaults.get(key, theirs.get(key, ours))
        if key not in defaults and parameter["value"] != ours:
            kept.append(f"{key}={parameter['value']}")
    if there is None:
        cluster.create("workflowtemplates", tree)
        return "created", kept
    tree["metadata"]["resourceVersion"] = there["metadata"].get("resourceVersion")
    cluster.replace("workflowtemplates", name, tree)
    return "renewed", kept


def rendered_templates() -> dict[str, dict[str, Any]]:
    """Every WorkflowTemplate as plain data, by name, with a digest by which a cluster's copy can be recognised."""
    from workflows import features, walk_forward

    trees = (walk_forward.rendered(), features.rendered())
    for tree in trees:
        tree["metadata"].setdefault("annotations", {})[DIGEST] = digest(tree)
    return {tree["metadata"]["name"]: tree for tree in trees}


def digest(tree: dict[str, Any]) -> str:
    """Of all that a template does; 16 hex digits. Whoever changes defaults on a cluster leaves the annotation alone."""
    return hashlib.sha256(json.dumps(tree["spec"], sort_keys=True).encode()).hexdigest()[:16]


def rendered_files() -> dict[str, str]:
    import yaml

    return {
        f"{name}.yaml": _HEADER + yaml.safe_dump(tree, sort_keys=False, width=110)
        for name, tree in rendered_templates().items()
    }


if __name__ == "__main__":
    run_command(main)
