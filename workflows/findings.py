"""What a check says: a state, one line, and what to type. Nothing unread is ever called "ok"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from workflows.kube import ClusterError, Kube

T = TypeVar("T")


class State(StrEnum):
    ok = "ok"
    warning = "warning"
    failed = "failed"
    unknown = "not checked"


@dataclass(frozen=True)
class Finding:
    check: str
    state: State
    says: str
    todo: str = ""


@dataclass
class Scope:
    """What the checks look at. `parameters` are the template's defaults with what was asked on top.

    `template` is the cluster's, or this code's where it isn't installed or may not be read (`installed` is None).
    """

    kube: Kube
    template: dict[str, Any]
    installed: bool | None
    parameters: dict[str, str]
    folds: int
    user: str = ""
    scales_from_zero: bool = False
    nodes: dict[str, list[Any]] = field(default_factory=dict)  # pool -> its nodes, once they have been read

    def parameter(self, name: str, default: str = "") -> str:
        return self.parameters.get(name, default)


class Unreadable(Exception):
    """These credentials may not read it."""


def readable(function: Callable[[], T], absent: T | None = None) -> T | None:
    """The result; `absent` when it isn't there. Raises Unreadable when it may not be read."""
    try:
        return function()
    except ClusterError as error:
        if error.status == 404:
            return absent
        if error.status == 403:
            raise Unreadable(str(error).splitlines()[0].partition(": ")[2] or "forbidden") from None
        raise


def guarded(name: str, check: Callable[[Scope], Iterable[Finding]], scope: Scope) -> list[Finding]:
    """A check's findings; what it may not read, or the server fails to answer, is "not checked"."""
    try:
        return list(check(scope))
    except Unreadable as error:
        return [Finding(name, State.unknown, f"these credentials may not read it: {error}")]
    except ClusterError as error:
        if error.status in (0, 401):
            raise
        return [Finding(name, State.unknown, str(error).splitlines()[0])]
