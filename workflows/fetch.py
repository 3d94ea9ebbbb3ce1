"""Fetches report, verdict, fold results, trades, curves and metrics of a run to this machine.

python -m workflows.fetch my-run                  into fetched/my-run
python -m workflows.fetch my-run --to results --json
python -m workflows.fetch my-run --source s3      what is an artifact, from its bucket
"""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from workflows.cli import DEFAULT_RUNS, Context, Namespace, Runs, run_command
from workflows.errors import UsageError, WorkflowError
from workflows.launch import Backend
from workflows.locate import BackendOption, ClusterRun, locate

RESULTS = [
    *("report.html", "report.json", "gate.json", "folds.json", "study.json"),
    *("fold*/fold_result.json", "fold*/trades.parquet", "fold*/curve.parquet"),
    *("fold*/metrics-*.jsonl", "fold*/attempts.jsonl", "fold*/log-*.txt", "fold*/DONE"),
    "logs/*.txt",
]


class Source(StrEnum):
    auto = "auto"
    claim = "claim"
    s3 = "s3"


def main(
    run: Annotated[str, typer.Argument(help="run-id, workflow or its beginning; none: the newest")] = "",
    to: Annotated[Path | None, typer.Option(help="folder to write into; none: fetched/<run-id>")] = None,
    source: Annotated[Source, typer.Option(help="auto: the claim, else artifacts on S3")] = Source.auto,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a file")] = False,
    backend: BackendOption = Backend.auto,
    context: Context = "",
    namespace: Namespace = "",
    runs: Runs = DEFAULT_RUNS,
) -> int:
    """Fetch a run's report and results.

    From the claim they come through a short-lived pod that reads it and prints them with checksums; checkpoints stay.

    Example: python -m workflows.fetch my-run --to results
    """
    found = locate(runs, run, backend, context, namespace)
    if isinstance(found, Path):
        run_id, files = found.name, read_here(found)
    else:
        run_id, files = found.run_id, read_from(found, source)
    if not files:
        raise UsageError(f"run {run_id}: no results yet\nwatch it: python -m workflows.watch {run_id}")
    folder = to or Path("fetched") / run_id
    for path, data in sorted(files.items()):
        write(folder / path, data)
        if as_json:
            print(json.dumps({"path": str(folder / path), "bytes": len(data)}))
    if not as_json:
        say(run_id, folder, files)
    return 0


def read_here(folder: Path) -> dict[str, bytes]:
    found = sorted(path for pattern in RESULTS for path in folder.glob(pattern))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def read_from(run: ClusterRun, source: Source) -> dict[str, bytes]:
    """From the claim; where that can't be read, the artifacts on S3."""
    from workflows.artifacts import has_artifacts, read_artifacts
    from workflows.reader import read_run

    if source is not Source.s3:
        try:
            return read_run(run.kube, run.newest, run.run_id, RESULTS)
        except WorkflowError as error:
            if source is Source.claim or not has_artifacts(run.newest):
                raise
            print(f"claim not readable, artifacts instead: {str(error).partition(chr(10))[0]}", file=sys.stderr)
    return read_artifacts(run.newest)


def write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def say(run_id: str, folder: Path, files: dict[str, bytes]) -> None:
    size = sum(map(len, files.values())) / 2**20
    print(f"run {run_id}: {len(files)} files, {size:.1f} MiB in {folder}")
    if "report.html" in files:
        print(f"report: {folder / 'report.html'}")
    else:
        print("no report yet: it is drawn when every fold has ended")
    if "gate.json" in files:
        passed = json.loads(files["gate.json"]).get("passed")
        print(f"gate:   {'passed' if passed else 'failed'}")


if __name__ == "__main__":
    run_command(main)
