"""Writes the YAML of every WorkflowTemplate from its Hera source, or compares it with what is there.

python -m workflows.render            writes charts/foxhunt/files/*.yaml
python -m workflows.render --check    exit 1 when a file differs
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any

import typer

from workflows.cli import run_command

FOLDER = Path(__file__).resolve().parents[1] / "charts" / "foxhunt" / "files"
_HEADER = "# Rendered from workflows/ by `python -m workflows.render`; change the source, not this file.\n"


def main(
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 when a file differs")] = False,
    out: Annotated[Path, typer.Option(help="folder of the YAML files")] = FOLDER,
) -> int:
    """Render every WorkflowTemplate to YAML.

    Example: python -m workflows.render --check
    """
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


def rendered_templates() -> dict[str, dict[str, Any]]:
    """Every WorkflowTemplate as plain data, by name."""
    from workflows import features, walk_forward

    trees = (walk_forward.rendered(), features.rendered())
    return {tree["metadata"]["name"]: tree for tree in trees}


def rendered_files() -> dict[str, str]:
    import yaml

    return {
        f"{name}.yaml": _HEADER + yaml.safe_dump(tree, sort_keys=False, width=110)
        for name, tree in rendered_templates().items()
    }


if __name__ == "__main__":
    run_command(main)
