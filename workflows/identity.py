"""Who a run is: the commit of the code, the settings that shape results, the data. Same answers, same run-id.

The same submission so finds its own work again. Settings are digested by `python -m trainer identity`, which also
refuses mistakes in them before anything starts.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from workflows.errors import UsageError, WorkflowError, nearest

RUN_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # what Kubernetes accepts as a label's value
MAX_FOLDS = 100


def check_run_id(run_id: str) -> str:
    if not RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"--run-id {run_id!r}: only letters, digits, '.', '_' and '-' (not at the ends), at most 63 characters"
        )
    return run_id


def check_folds(folds: int) -> int:
    if not 1 <= folds <= MAX_FOLDS:
        raise UsageError(f"--folds {folds}: from 1 to {MAX_FOLDS}")
    return folds


def check_only_folds(text: str, folds: int) -> str:
    """ "2,0,2" of 3 -> "0,2"; "" is all of them."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if text and not parts:
        raise UsageError(f"--only-folds {text!r}: names no fold\nsay numbers from 0 to {folds - 1}, or leave it out")
    for part in parts:
        if not part.isdecimal() or int(part) >= folds:
            raise UsageError(
                f"--only-folds {text}: {part!r} is not a fold of {folds}; they are numbered 0 to {folds - 1}"
            )
    return ",".join(map(str, sorted({int(part) for part in parts})))


def join_overrides(n_steps: str, n_backtests: str, per_capacity: str, folds: str, overrides: str) -> str:
    """One `section.key=value; ...` text; what is named by a flag of its own comes last and wins."""
    named = {
        "folds.folds": folds,
        "env.n_backtests": n_backtests,
        "learn.per_capacity": per_capacity,
        "run.n_steps": n_steps,
    }
    free = [item.strip() for item in overrides.split(";") if item.strip()]
    if any(item.partition("=")[0].strip() == "folds.folds" for item in free):
        raise UsageError("--set folds.folds: use --folds, which every task of the study reads")
    return ";".join([*free, *(f"{key}={value}" for key, value in named.items() if value)])


def trainer_command() -> list[str]:
    """How the trainer is called; FOXHUNT_TRAINER replaces `python -m trainer` (another interpreter, a wrapper)."""
    text = os.environ.get("FOXHUNT_TRAINER", "")
    return shlex.split(text) if text else [sys.executable, "-m", "trainer"]


def config_identity(data: str, config: str, overrides: str) -> dict[str, Any]:
    """What `trainer identity` says of the settings; its refusal is passed on as it is.

    For s3:// data it adds `data`, the addresses with size and ETag, or `data_unchecked`, why they are not known here.
    """
    command = [*trainer_command(), "identity", "--data", data, "--config", config, "--set", overrides]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        message = done.stderr.strip().removeprefix("error: ") or f"{shlex.join(command)} ended with {done.returncode}"
        raise UsageError(message) if done.returncode == 2 else WorkflowError(message)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def data_identity(data: str) -> str:
    """The data's address and size; for files here their absolute paths, so that the working folder doesn't matter."""
    if _is_uri(data):
        return data
    files = [Path(name) for name in local_files(data).split(",")]
    return ",".join(f"{file.resolve()}:{file.stat().st_size}" for file in files)


def local_files(data: str) -> str:
    """The files that `data` names, separated by commas; a folder and a pattern become theirs in the order of names."""
    if _is_uri(data):
        return data
    files = []
    for item in data.split(","):
        paths = [Path(path) for path in (sorted(glob.glob(item)) if glob.has_magic(item) else [item])]
        if not paths or not all(path.exists() for path in paths):
            if item.startswith("s3:"):
                raise UsageError(f"--data {item}: not an S3 address\nwrite s3://bucket/key")
            raise UsageError(f"--data {item}: no such file or folder (looked from {os.getcwd()})")
        found = [file for path in paths for file in _files(path)]
        if not found:
            raise UsageError(f"--data {item}: the folder is empty\nname the files with the market data")
        files += [str(file) for file in found]
    return ",".join(files)


def _is_uri(data: str) -> bool:
    return "://" in data or data.partition(":")[0] == "synthetic"


def _files(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def code_identity() -> str:
    """The image's commit, or that of this checkout; a hash of the sources where they differ from the commit."""
    if commit := os.environ.get("FOXHUNT_COMMIT", ""):
        return commit
    root = Path(__file__).resolve().parents[1]
    sources = ["trainer", "kernels"]
    try:
        changed = _git(root, "status", "--porcelain", "--", *sources)
        if not changed:
            return _git(root, "rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        pass
    return "tree-" + _tree_digest(sources)


def code_branch() -> str:
    """Branch that the code came from, "" when unknown."""
    if branch := os.environ.get("FOXHUNT_BRANCH", ""):
        return branch
    try:
        return _git(Path(__file__).resolve().parents[1], "rev-parse", "--abbrev-ref", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return ""


def branch_commit(branch: str) -> str:
    """Commit that a branch points to: as the remote had it when last fetched, else here; "" when unknown."""
    root = Path(__file__).resolve().parents[1]
    for ref in (f"refs/remotes/origin/{branch}", f"refs/heads/{branch}"):
        try:
            return _git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        except (OSError, subprocess.CalledProcessError):
            continue
    return ""


def check_branch(branch: str) -> str:
    """Raises UsageError for a branch that this checkout doesn't know, though it knows others.

    A checkout without branches, or an installed package, knows none: then the pod `resolve` is the first to tell.
    """
    known = known_branches()
    if branch and known and branch not in known:
        raise UsageError(
            f"--git-branch {branch}: no such branch here or on the remote, as last fetched{nearest(branch, known)}\n"
            f"name another, or fetch it: git fetch origin {branch}:refs/remotes/origin/{branch}"
        )
    return branch


def known_branches() -> list[str]:
    """Branches of this checkout, its own and its remotes'."""
    root = Path(__file__).resolve().parents[1]
    try:
        if Path(_git(root, "rev-parse", "--show-toplevel")).resolve() != root:  # a repository around an installation
            return []
        refs = _git(root, "for-each-ref", "--format=%(refname:lstrip=1)", "refs/heads", "refs/remotes").splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []
    names = {ref.split("/", 1 if ref.startswith("heads/") else 2)[-1] for ref in refs}
    return sorted(names - {"HEAD"})


def _git(root: Path, *args: str) -> str:
    return subprocess.run(["git", "-C", str(root), *args], check=True, capture_output=True, text=True).stdout.strip()


def _tree_digest(packages: list[str]) -> str:
    digest = hashlib.sha256()
    for package in packages:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for file in _files(Path(folder)):
                if file.suffix in (".py", ".cu", ".cuh", ".toml", ".jinja"):
                    digest.update(f"{package}/{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def derive_run_id(code: str, config_digest: str, data: str) -> str:
    """Twelve hex digits over the three identities."""
    return hashlib.sha256(json.dumps([code, config_digest, data]).encode()).hexdigest()[:12]
