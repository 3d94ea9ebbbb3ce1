"""Shows the logs of a study's pods, all attempts of each as one stream.

python -m workflows.logs                     the newest run, every pod
python -m workflows.logs my-run 1 --follow   one fold across its attempts
python -m workflows.logs my-run 1 --previous the attempt before the newest
python -m workflows.logs my-run --json       a line as {"task": "train-1", "fold": 1, "attempt": 1, "line": ...}
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from workflows import state
from workflows.cli import DEFAULT_RUNS, Context, Namespace, Runs, run_command
from workflows.errors import UsageError, nearest
from workflows.launch import Backend
from workflows.locate import BackendOption, ClusterRun, locate
from workflows.log_lines import HEADER, NAME_WIDTH, LogLine

_POLL = 0.3
ALL, LAST, PREVIOUS = slice(None), slice(-1, None), slice(-2, -1)  # which attempts of a pod


def main(
    run: Annotated[str, typer.Argument(help="run-id, workflow or its beginning; none: the newest")] = "",
    one_fold: Annotated[int | None, typer.Argument(metavar="FOLD", help="one fold; none: every pod")] = None,
    fold: Annotated[int | None, typer.Option(help="one fold, the same as the argument")] = None,
    task: Annotated[str, typer.Option(help="one pod: resolve, precompute, train-0, gate, report")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the study ends")] = False,
    last: Annotated[bool, typer.Option("--last", help="the last attempt alone")] = False,
    previous: Annotated[bool, typer.Option("--previous", help="the attempt before the last alone")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line: task, fold, attempt, line")] = False,
    backend: BackendOption = Backend.auto,
    context: Context = "",
    namespace: Namespace = "",
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Show the logs of a study, attempt after attempt, oldest first.

    On a cluster the log of a pod that is gone comes from the claim, through a short-lived pod that reads it.
    With --json what is our own word on a log has `note` in place of `line`.

    Example: python -m workflows.logs my-run 1 --follow
    """
    which = PREVIOUS if previous else LAST if last else ALL
    if previous and (last or follow):
        raise UsageError("--previous: not together with --last or --follow\nleave the other out")
    fold = one_fold if fold is None else fold
    wanted = task if fold is None else f"train-{fold}"
    found = locate(runs, run, backend, context, namespace)
    if isinstance(found, ClusterRun):
        from workflows.logs_cluster import cluster_lines

        lines = cluster_lines(found, wanted, which, follow)
    else:
        lines = local_lines(found, wanted, which, follow)
    width = 0 if wanted else NAME_WIDTH
    for line in lines:
        print(line.to_json() if as_json else line.shown(width), flush=follow)


def local_lines(folder: Path, wanted: str, which: slice, follow: bool) -> Iterator[LogLine]:
    pods = pod_names(folder)
    if wanted and wanted not in pods and not follow:
        raise UsageError(
            f"run {folder.name}: no logs of {wanted!r}{nearest(wanted, pods)}; there are: {', '.join(pods)}"
        )
    return stream(folder, [wanted] if wanted else None, follow, which)


def attempts(folder: Path, pod: str) -> list[Path]:
    """Logs of one pod, first attempt first."""
    found = [p for p in (folder / "logs").glob(f"{pod}-*.log") if p.stem[len(pod) + 1 :].isdecimal()]
    return sorted(found, key=lambda p: int(p.stem.rpartition("-")[2]))


def pod_names(folder: Path) -> list[str]:
    """Pods with logs, in order of their first log."""
    found = sorted((folder / "logs").glob("*.log"), key=lambda p: p.stat().st_mtime)
    return list(dict.fromkeys(p.stem.rpartition("-")[0] for p in found))


def stream(folder: Path, pods: list[str] | None, follow: bool, which: slice) -> Iterator[LogLine]:
    """Lines of the logs, each once."""
    offsets: dict[Path, int] = {}
    while True:
        running = follow and state.is_locked(folder)
        for pod in pods or pod_names(folder):
            logs = attempts(folder, pod)
            for log in logs[which]:
                yield from _new_lines(pod, log, offsets, whole=not running)
        if not running:
            return
        time.sleep(_POLL)


def _new_lines(pod: str, log: Path, offsets: dict[Path, int], whole: bool) -> list[LogLine]:
    """Complete lines since the last look (`whole`: also an unfinished last one); a header names each attempt."""
    start = offsets.get(log, 0)
    with log.open("rb") as handle:
        handle.seek(start)
        data = handle.read()
    if not whole:
        data = data[: data.rfind(b"\n") + 1]
    offsets[log] = start + len(data)
    number = int(log.stem.rpartition("-")[2])
    header = [LogLine(pod, number, log.stem, HEADER)] if start == 0 and data else []
    return header + [LogLine(pod, number, text) for text in data.decode(errors="replace").splitlines()]


if __name__ == "__main__":
    run_command(main)
