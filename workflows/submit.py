"""Submits a walk-forward study: on the cluster of the kubeconfig, or the same workflow on this machine.

python -m workflows.submit --folds 3                                    the synthetic market
python -m workflows.submit --folds 3 --data esh4.mbo.dbn.zst --set env.fee_ticks=0.2
python -m workflows.submit --folds 3 --run-id again --only-folds 0,2
python -m workflows.submit --folds 3 --data s3://market/ESH4.mbo.dbn.zst --backend argo --watch
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from workflows import identity
from workflows.cli import DEFAULT_CACHE, DEFAULT_RUNS, Cache, Context, Namespace, Runs, read_by_somebody, run_command
from workflows.errors import UsageError, nearest
from workflows.hardware import gpus, hardware, side_by_side
from workflows.launch import (
    AsJson,
    Backend,
    DryRun,
    FromZero,
    How,
    More,
    Watch,
    choose,
    name_values,
    refuse_for_cluster,
    refuse_here,
    run,
)

RECIPES = ["alpha-rl"]
DEFAULT_DATA = "synthetic:signal=0.75"


def main(
    folds: Annotated[int, typer.Option(help="walk-forward folds, 1 to 100")] = 3,
    recipe: Annotated[str, typer.Option(help=f"one of {', '.join(RECIPES)}")] = RECIPES[0],
    data: Annotated[
        str,
        typer.Option(
            help="file, folder, pattern or URI (several: a,b); none: the cluster's, here the synthetic market"
        ),
    ] = "",
    config: Annotated[str, typer.Option(help="profile or TOML file; none: as the cluster or hardware says")] = "",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, repeatable")] = None,
    symbol: Annotated[str, typer.Option(help="instrument of a file with several (data.symbol)")] = "",
    sample: Annotated[str, typer.Option(help="100ms, 1s, 1m, event or volume:N (data.sample)")] = "",
    tick_size: Annotated[str, typer.Option(help="price grid (data.tick_size)")] = "",
    n_steps: Annotated[int | None, typer.Option(min=1, help="training steps a fold; none: the profile's")] = None,
    n_backtests: Annotated[int | None, typer.Option(min=1, help="parallel backtests; none: the profile's")] = None,
    per_capacity: Annotated[int | None, typer.Option(min=1, help="replay capacity; none: the profile's")] = None,
    gpu_pool: Annotated[str, typer.Option(help="node pool for training; none: the cluster's template's")] = "",
    cpu_pool: Annotated[str, typer.Option(help="node pool for the rest; none: the cluster's template's")] = "",
    image: Annotated[str, typer.Option(help="image of the pods; none: the branch's or the template's")] = "",
    git_branch: Annotated[str, typer.Option(help="refuse code of another branch")] = "",
    run_id: Annotated[str, typer.Option(help="name of the run; none: derived from code, config and data")] = "",
    only_folds: Annotated[str, typer.Option(help="fold numbers to run, such as 0,2")] = "",
    backend: Annotated[Backend, typer.Option(help="where to run")] = Backend.auto,
    context: Context = "",
    namespace: Namespace = "",
    more: More = None,
    scales_from_zero: FromZero = False,
    watch: Watch = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="pods side by side here; none: as cores allow")] = None,
    runs: Runs = DEFAULT_RUNS,
    cache: Cache = DEFAULT_CACHE,
) -> int:
    """Run a walk-forward study: precompute, one training a fold, gate and report.

    On the cluster of the kubeconfig when one answers within 2 s, else the same workflow on this machine.
    The same command goes on where an interrupted one stopped. Ends with 0 passed (or submitted), 3 gate failed,
    2 wrong flags, settings or data, 75 interrupted with the state saved (also when nobody reads its output any more).

    Example: python -m workflows.submit --folds 3 --data esh4.mbo.dbn.zst --set env.fee_ticks=0.2
    """
    if recipe not in RECIPES:
        raise UsageError(f"--recipe {recipe}: known are {', '.join(RECIPES)}{nearest(recipe, RECIPES)}")
    identity.check_folds(folds)
    only_folds = identity.check_only_folds(only_folds, folds)
    if run_id:
        identity.check_run_id(run_id)
    flags = {"data.symbol": symbol, "data.sample": sample, "data.tick_size": tick_size}
    numbers = {"n-steps": n_steps, "n-backtests": n_backtests, "per-capacity": per_capacity}
    asked = {
        "data": data,
        "config": config,
        "set": ";".join([*(overrides or []), *(f"{key}={value}" for key, value in flags.items() if value)]),
        "folds": str(folds),
        **{name: "" if value is None else str(value) for name, value in numbers.items()},
        "git-branch": git_branch,
        "only-folds": only_folds,
        "run-id": run_id,
    }
    cluster, where = choose(backend, context, namespace, offline=dry_run)
    if cluster:
        refuse_for_cluster(jobs=jobs, runs=runs != DEFAULT_RUNS, cache=cache != DEFAULT_CACHE)
        pools = {"gpu-pool": gpu_pool, "cpu-pool": cpu_pool, "image": image}
        given = {name: value for name, value in {**asked, **pools}.items() if value}
        how = How(watch, dry_run, as_json, scales_from_zero)
        return run(cluster, recipe, {**given, **name_values(more or [])}, same_command(), how)
    refuse_here(context=context, namespace=namespace, parameter=more, image=image, json=as_json)
    with read_by_somebody(not dry_run):
        profile, profile_why = choose_config(config)
        named = identity.local_files(data or DEFAULT_DATA)
        parameters = {**asked, "data": named, "config": profile, "runs": str(runs), "cache": str(cache)}
        parameters["run-id"], run_why = settle_run_id(run_id, parameters)
        jobs = jobs or side_by_side(folds)
        print(f"backend  local ({where})")
        print(f"data     {parameters['data']}" + ("" if data else " (the synthetic market; --data FILE for your own)"))
        print(f"config   {profile} ({profile_why})")
        print(f"run-id   {parameters['run-id']} ({run_why})")
        at_once = min(jobs, folds, len(gpus()) or folds)
        print(f"jobs     {at_once} of {folds} folds side by side ({hardware()})", flush=True)
        return start(parameters, recipe, jobs, dry_run)


def start(parameters: dict[str, str], recipe: str, jobs: int, dry_run: bool) -> int:
    """Builds the workflow and runs it here; imports that take long happen only now."""
    from workflows.study import run_study
    from workflows.walk_forward import rendered

    workflow = rendered()
    if dry_run:
        print("\n".join(["", "would run, in this order:", *planned(workflow, parameters), "nothing was started"]))
        return 0
    return run_study(workflow, parameters, recipe, same_command(), jobs)


def same_command() -> list[str]:
    """This process's command as a person types it."""
    return ["python", "-m", f"workflows.{Path(sys.argv[0]).stem}", *sys.argv[1:]]


def planned(workflow: dict[str, Any], parameters: dict[str, str]) -> list[str]:
    """The commands of the study's pods; what only an earlier task knows stays a tag."""
    templates = {template["name"]: template for template in workflow["spec"]["templates"]}
    lines = []
    for task in templates[workflow["spec"]["entrypoint"]]["dag"]["tasks"]:
        container = templates[task["template"]]["container"]
        words = " ".join(word or "''" for word in [*container["command"], *container["args"]])
        for name, value in parameters.items():
            words = words.replace(f"{{{{workflow.parameters.{name}}}}}", value or "''")
        lines.append(f"  {task['name']}: {words}")
    return lines


def choose_config(config: str) -> tuple[str, str]:
    if config:
        return config, "as asked"
    if found := gpus():
        return "small", f"{len(found)} GPU{'s' if len(found) > 1 else ''} here"
    return "cpu-demo", "no GPU here" if not os.path.exists("/dev/nvidiactl") else "no GPU usable: cupy is not installed"


def settle_run_id(run_id: str, parameters: dict[str, str]) -> tuple[str, str]:
    """The run-id and where it comes from; refuses wrong settings and absent data on the way."""
    names = ("n-steps", "n-backtests", "per-capacity", "folds", "set")
    joined = identity.join_overrides(*(parameters[name] for name in names))
    data = identity.data_identity(parameters["data"])
    settings = identity.config_identity(parameters["data"], parameters["config"], joined)
    if run_id:
        return run_id, "as asked"
    code = identity.code_identity()
    return (
        identity.derive_run_id(code, settings["config_digest"], settings.get("data", data)),
        f"from code {code[:12]}, config {settings['config_digest'][:12]} and the data's address",
    )


if __name__ == "__main__":
    run_command(main)
