"""`{{...}}` tags: simple ones name a value, `{{=...}}` holds an expression. An unresolved tag is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from workflows.expressions import ExpressionError, evaluate

_TAG = re.compile(r"\{\{(=?)(.*?)\}\}", re.DOTALL)
Scope = Mapping[str, Any]


def resolve(text: str, scope: Scope) -> str:
    """`text` with every tag replaced. Nested mappings hold the values: {"inputs": {"parameters": {"fold": "0"}}}."""

    def value(match: re.Match[str]) -> str:
        expression, body = match[1], match[2].strip()
        return as_text(evaluate(body, scope) if expression else _lookup(body, scope))

    return _TAG.sub(value, text)


def _lookup(path: str, scope: Scope) -> Any:
    value: Any = scope
    for word in path.split("."):
        if not isinstance(value, Mapping) or word not in value:
            raise ExpressionError(f"tag {{{{{path}}}}}: no such value here")
        value = value[word]
    return value


def as_text(value: Any) -> str:
    """As Argo writes it: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def move_mounts(text: str, mounts: Mapping[str, str]) -> str:
    """A template's literal path below a mount, moved to the folder that stands for the volume here.

    Applied before tags are resolved, so what a user names is never touched.
    """
    for mount, folder in mounts.items():
        if text == mount or text.startswith(f"{mount}/"):
            return folder + text[len(mount) :]
    return text
