"""Where everything of a run lies (docs/architecture.md, "Files of a run")."""

from __future__ import annotations

import re
from pathlib import Path

from trainer.errors import UsageError

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def run_folder(runs: Path, run_id: str) -> Path:
    """`<runs>/alpha-rl-runs/<run-id>`. Raises UsageError for a run-id that is not one plain name."""
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"--run-id {run_id!r}: must be one name of letters, digits, '.', '_' and '-', no slash, 100 at most\n"
            "leave it out to have it derived from code, config and data"
        )
    return runs / "alpha-rl-runs" / run_id


def fold_folder(run: Path, fold: int) -> Path:
    return run / f"fold{fold}"
