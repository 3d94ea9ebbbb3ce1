"""Fills the feature cache with an instrument's data before a study needs it, on CPU nodes alone.

python -m workflows.precompute ESH4 --pool ci-compile-cpu                            the cluster's data set
python -m workflows.precompute ESH4 --data s3://market/glbx.mbo.dbn.zst --watch
python -m workflows.precompute ESH4 --data esh4.mbo.dbn.zst --backend local
"""

from __future__ import annotations

from typing import Annotated

import typer

from workflows import identity
from workflows.cli import DEFAULT_CACHE, DEFAULT_RUNS, Cache, Context, Namespace, Runs, read_by_somebody, run_command
from workflows.errors import UsageError
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
from workflows.submit import choose_config, planned, same_command, settle_run_id

TEMPLATE = "precompute-features"
RECIPE = "alpha-rl"  # whose runs the features are for


def main(
    symbol: Annotated[str, typer.Argument(help="instrument (data.symbol), such as ESH4")],
    pool: Annotated[str, typer.Option(help="node pool; none: the cluster's template's")] = "",
    data: Annotated[str, typer.Option(help="file, folder or URI; none: the cluster's data set")] = "",
    folds: Annotated[int, typer.Option(help="walk-forward folds to check the data against, 1 to 100")] = 3,
    config: Annotated[str, typer.Option(help="profile or TOML file; none: as the cluster or hardware says")] = "",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, repeatable")] = None,
    image: Annotated[str, typer.Option(help="image of the pods; none: the branch's or the template's")] = "",
    git_branch: Annotated[str, typer.Option(help="refuse code of another branch")] = "",
    run_id: Annotated[str, typer.Option(help="name of the run; none: derived from code, config and data")] = "",
    backend: Annotated[Backend, typer.Option(help="where to run")] = Backend.auto,
    context: Context = "",
    namespace: Namespace = "",
    more: More = None,
    scales_from_zero: FromZero = False,
    watch: Watch = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    runs: Runs = DEFAULT_RUNS,
    cache: Cache = DEFAULT_CACHE,
) -> int:
    """Compute an instrument's features into the cache; a study on the same data then starts to train at once.

    What is in the cache already is not computed again. Ends with 0 done (or submitted), 2 wrong flags, settings or
    data, 75 interrupted.

    Example: python -m workflows.precompute ESH4 --pool ci-compile-cpu
    """
    identity.check_folds(folds)
    if run_id:
        identity.check_run_id(run_id)
    asked = {
        "data": data,
        "config": config,
        "set": ";".join([*(overrides or []), f"data.symbol={symbol}"]),
        "folds": str(folds),
        "git-branch": git_branch,
        "run-id": run_id,
    }
    cluster, where = choose(backend, context, namespace, offline=dry_run)
    if cluster:
        refuse_for_cluster(runs=runs != DEFAULT_RUNS, cache=cache != DEFAULT_CACHE)
        given = {name: value for name, value in {**asked, "cpu-pool": pool, "image": image}.items() if value}
        how = How(watch, dry_run, as_json, scales_from_zero)
        return run(cluster, TEMPLATE, {**given, **name_values(more or [])}, same_command(), how)
    refuse_here(context=context, namespace=namespace, parameter=more, image=image, json=as_json)
    if not data:
        raise UsageError(f"--data: which file or folder holds {symbol}?\nsay --data FILE; this machine has no default")
    parameters = {**asked, "config": choose_config(config)[0], "runs": str(runs), "cache": str(cache)}
    for name in ("n-steps", "n-backtests", "per-capacity"):
        parameters[name] = ""
    parameters["run-id"], _ = settle_run_id(run_id, parameters)
    with read_by_somebody(not dry_run):
        print(f"backend  local ({where})\ndata     {data}, {symbol}\nrun-id   {parameters['run-id']}", flush=True)
        return compute_here(parameters, dry_run)


def compute_here(parameters: dict[str, str], dry_run: bool) -> int:
    from workflows.features import rendered
    from workflows.study import run_study

    workflow = rendered()
    if dry_run:
        print("\n".join(["", "would run, in this order:", *planned(workflow, parameters), "nothing was started"]))
        return 0
    return run_study(workflow, parameters, RECIPE, same_command(), jobs=1)


if __name__ == "__main__":
    run_command(main)
