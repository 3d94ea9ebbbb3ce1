"""First task of a study: which code, which data, which settings. Writes them for the tasks that follow.

python -m workflows.resolve --data synthetic:signal=0.75 --config cpu-demo --folds 3 --outputs out
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from workflows import identity
from workflows.cli import run_command
from workflows.errors import UsageError


def main(
    outputs: Annotated[Path, typer.Option(help="folder for run-id, data and set, one small file each")],
    data: Annotated[str, typer.Option(help="market data; empty: FOXHUNT_DEFAULT_DATA")] = "",
    config: Annotated[str, typer.Option(help="profile or TOML file")] = "cpu-demo",
    overrides: Annotated[str, typer.Option("--set", help="section.key=value; section.key=value")] = "",
    folds: Annotated[str, typer.Option()] = "3",
    n_steps: Annotated[str, typer.Option(help="empty: the profile's")] = "",
    n_backtests: Annotated[str, typer.Option(help="empty: the profile's")] = "",
    per_capacity: Annotated[str, typer.Option(help="empty: the profile's")] = "",
    run_id: Annotated[str, typer.Option(help="empty: derived from code, config and data")] = "",
    git_branch: Annotated[str, typer.Option(help="refuse code of another branch; empty: any")] = "",
) -> None:
    """Settle which code, data and settings a study uses.

    Example: python -m workflows.resolve --data synthetic --config cpu-demo --outputs out
    """
    branch = identity.code_branch()
    if git_branch and git_branch != branch:
        raise UsageError(
            f"--git-branch {git_branch}: this code was built from {branch or 'an unknown branch'}\n"
            f"build an image from {git_branch} and name it with the parameter `image`"
        )
    data = data or os.environ.get("FOXHUNT_DEFAULT_DATA", "")
    if not data:
        raise UsageError("--data: none given and FOXHUNT_DEFAULT_DATA is not set\nsay which market data to use")
    if not folds.isdecimal():
        raise UsageError(f"--folds {folds}: not a number")
    identity.check_folds(int(folds))
    joined = identity.join_overrides(n_steps, n_backtests, per_capacity, folds, overrides)
    settings = identity.config_identity(data, config, joined)
    code = identity.code_identity()
    known = settings.get("data") or identity.data_identity(
        data
    )  # S3 objects with size and ETag, where they can be asked
    run_id = identity.check_run_id(run_id or identity.derive_run_id(code, settings["config_digest"], known))
    outputs.mkdir(parents=True, exist_ok=True)
    for name, value in {"run-id": run_id, "data": data, "set": joined}.items():
        (outputs / name).write_text(value)
    print(f"run-id {run_id}  code {code[:17]}  config {config} {settings['config_digest'][:12]}  data {data}")


if __name__ == "__main__":
    run_command(main)
