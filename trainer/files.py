"""Small file duties that a kill must not be able to spoil: atomic writes, durable appends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


def fsync_folder(folder: Path) -> None:
    """Makes a rename in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, write: Callable[[Any], None], before_rename: Callable[[], None] | None = None) -> None:
    """Temporary name -> `write(file)` -> fsync -> `before_rename()` -> rename -> fsync of the folder.

    On any error the temporary file is removed and `path` is what it was. `before_rename` may raise to call it off
    (the lease check). An OSError names `path`, also where the system named none (a full disk).
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if before_rename is not None:
            before_rename()
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
    fsync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    write_atomic(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def append_json(path: Path, value: dict[str, Any]) -> None:
    """One JSON line, durable when this returns. A line that a kill or a full disk left half-written is closed first.

    Raises OSError that names `path`.
    """
    line = json.dumps(value, sort_keys=True).encode() + b"\n"
    try:
        with open(path, "ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)
        raise


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of `path`; a line cut by a kill is skipped, a missing file is empty."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value
