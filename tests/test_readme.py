"""The README shows every file and the defaults as they are: what it leaves out or gets wrong fails here."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from trainer.config import load_config

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MAPPED = ("trainer", "kernels", "workflows", "charts", "benchmarks")


def block(after):
    """The first fenced block after a heading."""
    return README.split(after, 1)[1].split("```", 2)[1].partition("\n")[2]


def mapped_paths():
    """Paths of the map: a line is `name  comment`; indentation (two spaces a level) nests, and `a, b` are two names."""
    found, stack = set(), []
    for line in block("## Layout").splitlines():
        names, _, comment = re.sub(r"\s{2,}", "\t", line.strip()).partition("\t")
        assert comment, f"no comment in the map's line {line!r}"
        depth = (len(line) - len(line.lstrip())) // 2
        stack = stack[:depth]
        for name in names.split(", "):
            found.add("/".join([*stack, name]).replace("//", "/"))
        stack.append(names.rstrip("/"))
    return found


def tracked():
    try:
        out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: the map is compared with the tracked files")
    return out.split()


def test_the_map_shows_every_file_and_nothing_else():
    shown = mapped_paths()
    for path in shown:
        matches = list(ROOT.glob(path.rstrip("/"))) if "*" in path else [ROOT / path]
        assert matches and all(p.exists() for p in matches), f"the map shows {path}, which is not there"
    files = [f for f in tracked() if f.split("/")[0] in MAPPED and not f.endswith("__init__.py")]
    patterns = [p for p in shown if "*" in p]
    missing = [
        f
        for f in files
        if f not in shown and not any(Path(f).match(p) for p in patterns) and not any(f.startswith(d) for d in LEAVES)
    ]
    assert not missing, f"the map does not show {missing}"


LEAVES = ("charts/foxhunt/files/",)  # folders shown as a whole


def test_the_profile_shown_is_the_one_that_runs():
    shown = tomllib.loads(block("## Settings"))
    assert shown == load_config("cpu-demo").model_dump(mode="json")


def test_no_placeholder_is_left():
    assert "@@" not in README
