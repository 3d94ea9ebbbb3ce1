"""Checkpoints: everything that changes, in one file that is whole or not there.

Little endian: `magic u32 | version u32 | step u64 | n_sections u32`, then per section
`name_len u16 | name | data_len u64 | data`. The first section, `manifest`, holds a table of strings (config, digests,
versions) and one of dtypes and shapes; the last, `crc32c`, covers all bytes before it. Raw arrays: no pickle, no JSON.
"""

from __future__ import annotations

import hashlib
import io
import queue
import re
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import structlog

from trainer.errors import CheckpointError, Interrupted
from trainer.files import write_atomic

MAGIC = 0x48584F46  # "FOXH" as bytes
VERSION = 1
KEEP = 2  # newest files kept: one to resume from, one before it should the newest be damaged
PIECE = 1 << 18  # bytes summed and written at a time
MAX_FAILURES = 3  # failed writes in a row before the run ends with exit 75
_HEAD = struct.Struct("<IIQI")
_NAME = re.compile(r"checkpoint-(\d+)\.bin$")

log = structlog.get_logger()


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds. `meta` is the manifest's string table."""

    path: Path
    step: int
    meta: dict[str, str]
    arrays: dict[str, np.ndarray]


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step}.bin"


def list_checkpoints(folder: Path) -> list[Path]:
    """Newest first, by step."""
    found = [(int(m.group(1)), p) for p in folder.glob("checkpoint-*.bin") if (m := _NAME.search(p.name))]
    return [p for _, p in sorted(found, reverse=True)]


def state_hash(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of the whole state, in name order."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        a = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}|{a.dtype.str}|{a.shape}|".encode())
        digest.update(a.data.cast("B") if a.size else b"")
    return digest.hexdigest()


# -- writing ----------------------------------------------------------------------------------------------------------


class _CrcFile:
    """Passes bytes through and keeps their CRC32C."""

    def __init__(self, file: Any):
        self.file, self.crc = file, 0

    def write(self, data: bytes | memoryview) -> None:
        # google_crc32c takes bytes, and holds the interpreter's lock while it sums them. The training thread wants that
        # lock a few times a step: it gets it at each write, so a piece is as small as a write may reasonably be.
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            piece = bytes(view[start : start + PIECE])
            self.crc = google_crc32c.extend(self.crc, piece)
            self.file.write(piece)


def _manifest(arrays: Mapping[str, np.ndarray], meta: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    out.write(struct.pack("<I", len(meta)))
    for key, value in sorted(meta.items()):
        k, v = key.encode(), value.encode()
        out.write(struct.pack("<HI", len(k), len(v)) + k + v)
    out.write(struct.pack("<I", len(arrays)))
    for name, array in arrays.items():
        n, d = name.encode(), array.dtype.str.encode()
        out.write(struct.pack("<HBB", len(n), len(d), array.ndim) + n + d)
        out.write(struct.pack(f"<{array.ndim}Q", *array.shape))
    return out.getvalue()


def write_checkpoint(
    path: Path,
    step: int,
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, str],
    before_rename: Callable[[], None] | None = None,
) -> None:
    """Writes one file atomically and durably. Raises OSError with `path` as it was before."""

    def write(raw: Any) -> None:
        file = _CrcFile(raw)
        file.write(_HEAD.pack(MAGIC, VERSION, step, len(arrays) + 2))

        def section(name: str, data: bytes | memoryview) -> None:
            encoded = name.encode()
            file.write(struct.pack("<H", len(encoded)) + encoded + struct.pack("<Q", len(data)))
            file.write(data)

        section("manifest", _manifest(arrays, meta))
        for array_name, array in arrays.items():
            section(array_name, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b"")
        covered = file.crc
        label = b"crc32c"
        raw.write(struct.pack("<H", len(label)) + label + struct.pack("<Q", 4) + struct.pack("<I", covered))

    write_atomic(path, write, before_rename)


# -- reading ----------------------------------------------------------------------------------------------------------


def _bad(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path}: {what}\n"
        "use an older file of that folder (--resume-from), or --resume auto to let it choose"
    )


class _Reader:
    def __init__(self, path: Path, data: memoryview):
        self.path, self.data, self.at = path, data, 0

    def take(self, n: int, what: str) -> memoryview:
        if self.at + n > len(self.data):
            raise _bad(self.path, f"truncated in {what}: {len(self.data)} bytes, {self.at + n} needed")
        piece = self.data[self.at : self.at + n]
        self.at += n
        return piece

    def unpack(self, layout: str, what: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))

    def text(self, n: int, what: str) -> str:
        return bytes(self.take(n, what)).decode(errors="replace")


def _read_manifest(path: Path, data: memoryview) -> tuple[dict[str, str], dict[str, tuple[str, tuple[int, ...]]]]:
    r = _Reader(path, data)
    meta, table = {}, {}
    for _ in range(r.unpack("<I", "manifest")[0]):
        nk, nv = r.unpack("<HI", "manifest")
        key = r.text(nk, "manifest")
        meta[key] = r.text(nv, "manifest")
    for _ in range(r.unpack("<I", "manifest")[0]):
        nn, nd, ndim = r.unpack("<HBB", "manifest")
        name, dtype = r.text(nn, "manifest"), r.text(nd, "manifest")
        table[name] = (dtype, r.unpack(f"<{ndim}Q", "manifest"))
    return meta, table


def read_checkpoint(path: Path, arrays: bool = True) -> Checkpoint:
    """Reads and verifies a file; `arrays=False` leaves the arrays out (inspect). Raises CheckpointError."""
    try:
        data = memoryview(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path}: no such file\nlist the folder for checkpoint-<step>.bin") from None
    except OSError as error:
        raise _bad(path, f"can't be read ({error.strerror})") from None
    r = _Reader(path, data)
    if len(data) < _HEAD.size:
        raise _bad(path, f"truncated: {len(data)} bytes, not even a header")
    magic, version, step, n_sections = _HEAD.unpack(r.take(_HEAD.size, "header"))
    if magic != MAGIC:
        raise _bad(path, "not a foxhunt checkpoint (its first four bytes are others)")
    if version != VERSION:
        raise _bad(path, f"format version {version}, this code reads version {VERSION}; use the code that wrote it")
    sections: dict[str, memoryview] = {}
    covered = 0
    for _ in range(n_sections):
        covered = r.at
        name = r.text(r.unpack("<H", "section table")[0], "section table")
        sections[name] = r.take(r.unpack("<Q", "section table")[0], f"section {name}")
    if "crc32c" not in sections or len(sections["crc32c"]) != 4:
        raise _bad(path, "truncated: the closing checksum is missing")
    want = struct.unpack("<I", sections.pop("crc32c"))[0]
    if google_crc32c.value(bytes(data[:covered])) != want:
        raise _bad(path, "damaged: its bytes do not match its CRC32C (a flipped bit or a torn write)")
    meta, table = _read_manifest(path, sections.pop("manifest"))
    loaded = {}
    if arrays:
        for name, (dtype, shape) in table.items():
            loaded[name] = np.frombuffer(sections[name], np.dtype(dtype)).reshape(shape)
    return Checkpoint(path, step, meta, loaded)


def newest_valid(folder: Path) -> Checkpoint | None:
    """The newest file that verifies; damaged ones before it are named in the log. None when there is none."""
    for path in list_checkpoints(folder):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            if "format version" in str(error):
                raise
            log.warning("checkpoint skipped, trying the one before", why=str(error).splitlines()[0])
    return None


def check_same(found: Mapping[str, str], expected: Mapping[str, str], path: Path) -> list[str]:
    """Refuses a checkpoint of another config or data set; returns warnings (bits may differ) for another machine.

    Keys `config.*` and `data.*` must agree; `device` and `version.*` only warn.
    """
    for scope, advice in (
        ("config.", "train with the settings it was made with, or use another --run-id"),
        ("data.", "give the data it was made from, or use another --run-id"),
    ):
        keys = sorted(k for k in {*found, *expected} if k.startswith(scope))
        other = [k for k in keys if found.get(k) != expected.get(k)]
        if other:
            what = "config" if scope == "config." else "data set"
            shown = "; ".join(f"{k[len(scope) :]} was {found.get(k)}, now {expected.get(k)}" for k in other[:5])
            raise CheckpointError(f"checkpoint {path}: made with another {what}: {shown}\n{advice}")
    keys = sorted(k for k in expected if k == "device" or k.startswith("version."))
    return [f"{k} was {found.get(k)}, now {expected[k]}" for k in keys if found.get(k) != expected[k]]


# -- in the background ------------------------------------------------------------------------------------------------


Arrays = Mapping[str, np.ndarray]


class CheckpointWriter:
    """Writes snapshots on a thread. One write at a time; `submit` waits for the one before it.

    A snapshot comes as a function that waits for the host copies and returns them; the writer calls it on its thread,
    then `verify(step, arrays)`, which raises what is wrong with them. A failed write is said loudly, keeps the older
    files and is tried again at the next cadence; the third in a row is Interrupted. That, and whatever else went wrong
    on the thread, is raised by the next call of any method here.
    """

    def __init__(
        self,
        folder: Path,
        meta: Mapping[str, str],
        before_rename: Callable[[], None] | None = None,
        verify: Callable[[int, Arrays], None] | None = None,
    ):
        self.folder, self.meta, self.before_rename, self.verify = folder, dict(meta), before_rename, verify
        self.failures = 0
        self.last_step: int | None = None
        self.last_time: float | None = None
        self.fatal: BaseException | None = None
        self._queue: queue.Queue[tuple[int, Callable[[], Arrays]] | None] = queue.Queue(1)
        self._thread = threading.Thread(target=self._work, name="checkpoint", daemon=True)
        self._thread.start()

    def submit(self, step: int, load: Callable[[], Arrays]) -> None:
        """Hands over a snapshot. What `load` returns must stay as it is until the write has ended."""
        self.drain()
        self._queue.put((step, load))

    def check(self) -> None:
        """Raises what went wrong on the thread; waits for nothing."""
        if self.fatal is not None:
            raise self.fatal

    def drain(self) -> None:
        """Waits for the write under way."""
        self._queue.join()
        self.check()

    def close(self) -> None:
        """Waits for the last write. May be called again."""
        self._queue.join()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self.check()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                self._write(*job)
            except BaseException as error:  # a lost lease, a bad array, a lost card: none a disk fault
                self.fatal = error
            finally:
                self._queue.task_done()
        self._queue.task_done()

    def _write(self, step: int, load: Callable[[], Arrays]) -> None:
        started = time.monotonic()
        path = checkpoint_path(self.folder, step)
        arrays = load()
        if self.verify is not None:
            self.verify(step, arrays)
        try:
            write_checkpoint(path, step, arrays, self.meta, self.before_rename)
        except OSError as error:
            self._failed(path, error)
            return
        self.failures, self.last_step, self.last_time = 0, step, time.time()
        for old in list_checkpoints(self.folder)[KEEP:]:
            old.unlink(missing_ok=True)
        log.info("checkpoint saved", step=step, seconds=round(time.monotonic() - started, 3), path=str(path))

    def _failed(self, path: Path, error: OSError) -> None:
        self.failures += 1
        log.error(
            "checkpoint not written; the older ones are kept and it is tried again at the next cadence",
            path=str(path),
            why=error.strerror or str(error),
            failures=self.failures,
        )
        if self.failures >= MAX_FAILURES:
            raise Interrupted(
                f"checkpoint {path}: {self.failures} writes in a row failed ({error.strerror or error})\n"
                f"free space in {self.folder} or check the volume, then run the same command again"
            )
