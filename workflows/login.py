"""Which cluster and as whom: the kubeconfig, its contexts, and the helper that it may ask for credentials."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from workflows.errors import UsageError, nearest

TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
CHECK_CONTEXTS = "see what is there: kubectl config get-contexts"
_SECTIONS = {"clusters": "cluster", "contexts": "context", "users": "user"}
_LONGEST = 300  # characters of a helper's complaint


def kubeconfig() -> str:
    """Path (or paths, joined by ':') of the kubeconfig that is there; "" when there is none."""
    text = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    there = [path for path in text.split(os.pathsep) if path and os.path.exists(os.path.expanduser(path))]
    return os.pathsep.join(there)


def in_cluster() -> bool:
    """Whether this is a pod with a service account."""
    return TOKEN.exists() and "KUBERNETES_SERVICE_HOST" in os.environ


def no_cluster() -> str:
    named = os.environ.get("KUBECONFIG")
    where = f"KUBECONFIG={named} is not there" if named else "no ~/.kube/config and no KUBECONFIG"
    return f"no cluster configured: {where}\nset KUBECONFIG to your cluster's file, or run here with --backend local"


def choose_context(path: str, wanted: str) -> str:
    """The context to use. Raises UsageError for a damaged file, no context, an unknown one (nearest shown)."""
    from kubernetes import config

    read(path)
    try:
        contexts, current = config.list_kube_config_contexts(path)
    except config.ConfigException as error:
        if wanted and "current-context" in str(error):
            return wanted
        raise UsageError(f"{path}: {error}\nchoose one with --context; {CHECK_CONTEXTS}") from None
    except (AttributeError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: not a kubeconfig: {error}\n{CHECK_CONTEXTS}") from None
    names = [str(context["name"]) for context in contexts or []]
    if wanted and wanted not in names:
        raise UsageError(
            f"--context {wanted}: not in {path}{nearest(wanted, names)}\nthere: {', '.join(names) or 'none'}"
        )
    return wanted or str(current["name"])


def read(path: str) -> list[dict[str, Any]]:
    """The kubeconfig's files as trees. Raises UsageError with the name of the one that is no kubeconfig.

    The client takes every YAML file for one and stumbles over its types later, in words that name no file.
    """
    return [_read_one(name) for name in path.split(os.pathsep)]


def _read_one(name: str) -> dict[str, Any]:
    import yaml

    try:
        tree = yaml.safe_load(Path(name).expanduser().read_bytes())
    except OSError as error:
        raise UsageError(f"{name}: can't be read: {error.strerror}\n{CHECK_CONTEXTS}") from None
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", "") or str(error)
        line = f"line {mark.line + 1}: " if mark else ""
        raise _no_kubeconfig(name, f"{line}{' '.join(str(problem).split())}") from None
    if tree is None:
        raise _no_kubeconfig(name, "it is empty")
    if not isinstance(tree, dict):
        raise _no_kubeconfig(name, f"{_kind(tree)}, not a mapping with {', '.join(_SECTIONS)}")
    for section, inner in _SECTIONS.items():
        entries = tree.get(section) or []
        if not isinstance(entries, list):
            raise _no_kubeconfig(name, f"{section} is {_kind(entries)}, not a list")
        for entry in entries:
            if not isinstance(entry, dict) or "name" not in entry:
                raise _no_kubeconfig(name, f"an entry of {section} has no name")
            if not isinstance(entry.get(inner) or {}, dict):
                raise _no_kubeconfig(name, f"{inner} of {entry['name']!r} is {_kind(entry[inner])}, not a mapping")
    return tree


def _kind(tree: Any) -> str:
    kinds: dict[Any, str] = {str: "text", int: "a number", list: "a list", dict: "a mapping"}
    return kinds.get(type(tree), type(tree).__name__)


def _no_kubeconfig(name: str, why: str) -> UsageError:
    return UsageError(f"{name}: not a kubeconfig: {why}\n{CHECK_CONTEXTS}")


def helper_of(path: str, context: str) -> str:
    """The command that the context's user has its credentials from (`exec`), "" when they are in the file."""
    trees = read(path)

    def entry(section: str, name: Any) -> dict[str, Any]:
        found = [e for tree in trees for e in tree.get(section) or [] if e["name"] == name]
        return (found[0].get(_SECTIONS[section]) or {}) if found else {}

    asked = entry("users", entry("contexts", context).get("user")).get("exec")
    return str(asked.get("command", "")) if isinstance(asked, dict) else ""


class HelperLog(logging.Filter):
    """Takes what the client logs of a helper that failed (on the root logger, then it goes on without credentials).

    So our message can say it, and no bare line stands before it. Stays for the life of the process: a helper is asked
    again when what it gave has expired.
    """

    said = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.module != "kube_config":
            return True
        self.said = " ".join(record.getMessage().split())[:_LONGEST]
        return False

    def listen(self) -> None:
        self.said = ""
        root = logging.getLogger()
        root.addFilter(self)
        if not root.handlers:  # or the client's first line gives the root logger one that prints
            root.addHandler(logging.NullHandler())


HELPER_LOG = HelperLog()
