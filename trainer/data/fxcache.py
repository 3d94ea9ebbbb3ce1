"""The feature cache: one safetensors file a content key, `<cache>/<symbol>/<key>.safetensors`.

The key is a hash of the input bytes, the settings that shape rows and the source of the code that makes them. A file is
built beside its place under a temporary name and renamed when complete, so two builders at once end with one valid file
and a killed one leaves nothing that is read. Rows stream through: one raw temporary file a column, joined in blocks.

The file is the safetensors format (u64 header length, JSON header, data), written by hand because the library wants all
tensors in memory; any safetensors reader opens it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import structlog

from trainer.config import DataConfig
from trainer.data.frame import BookFrame, Series
from trainer.data.market import COLUMNS, MarketMeta, column_shapes, make_meta
from trainer.errors import DataError, UsageError

log = structlog.get_logger()

BLOCK = 1 << 22  # bytes moved at once
STALE_S = 86_400.0  # a temporary folder this old belongs to a builder that died
_CODES = {"int64": "I64", "int32": "I32", "float32": "F32"}  # safetensors' names of our dtypes
_AFTER = ("folds.py", "market.py", "precompute.py", "s3.py", "__init__.py")  # of trainer/data: they shape no row


class DamagedFile(DataError):
    """A cache file that is not what was written."""


@cache
def code_version() -> str:
    """SHA-256 over the source of every module that shapes a row of the cache, hex."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in [*sorted(here.glob("*.py")), here.parents[1] / "kernels" / "philox.py"]:
        if path.name not in _AFTER:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def cache_key(series: Series, cfg: DataConfig) -> str:
    """32 hex digits for (input bytes, settings that shape rows, code)."""
    settings = cfg.model_dump(mode="json", exclude={"label_rows"})
    parts = {"input": series.digest, "data": settings, "levels": series.info.levels, "code": code_version()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def find_or_build(series: Series, cfg: DataConfig, cache_dir: str | Path) -> Path:
    """The cache file of a series, built when it is missing or damaged. Logs `fxcache hit KEY` or `fxcache miss KEY`.

    Raises UsageError when the folder can't be written or the disk is full, DataError for what is wrong with the input.
    """
    key = cache_key(series, cfg)
    path = Path(cache_dir) / _safe(series.info.symbol) / f"{key}.safetensors"
    if path.exists():
        try:
            verify(path, key)
        except DamagedFile as error:
            log.warning(f"fxcache damaged {key}: {str(error).splitlines()[0]}; building it again")
        else:
            log.info(f"fxcache hit {key}")
            return path
    log.info(f"fxcache miss {key}")
    with _disk_errors(Path(cache_dir)):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        with tempfile.TemporaryDirectory(prefix=f".{key}-", dir=path.parent) as folder:
            whole = _build(series, key, Path(folder))
            os.replace(whole, path)
        _sync_folder(path.parent)
    return path


def read_columns(path: Path) -> tuple[dict[str, np.ndarray], MarketMeta]:
    """Memory-maps the columns, read-only, with their description. Checks header and size; `verify` every byte."""
    header, start = _read_header(path)
    try:
        meta = MarketMeta.from_json(header["__metadata__"]["meta"])
        shapes = column_shapes(meta.levels, len(meta.features), header["ts"]["shape"][0])
        arrays: dict[str, np.ndarray] = {}
        end = 0
        for name, (shape, dtype) in shapes.items():
            first, end, found = end, header[name]["data_offsets"][1], header[name]
            if [found["dtype"], found["shape"], found["data_offsets"][0]] != [_CODES[dtype.name], list(shape), first]:
                raise DamagedFile(f"{path}: column {name} is not where it belongs\n{_REMEDY}")
            if path.stat().st_size < start + end:
                raise DamagedFile(f"{path}: truncated: column {name} is cut\n{_REMEDY}")
            arrays[name] = np.memmap(path, dtype, "r", start + first, shape)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DamagedFile(f"{path}: its header lacks what a feature cache holds ({error!r})\n{_REMEDY}") from None
    if path.stat().st_size != start + end:
        raise DamagedFile(f"{path}: has bytes after its last column\n{_REMEDY}")
    return arrays, meta


def verify(path: Path, key: str) -> None:
    """Raises DamagedFile unless every column has the checksum that was taken when it was written.

    Reads the file instead of mapping it, so that a check of a large one doesn't count as memory in use.
    """
    read_columns(path)
    header, start = _read_header(path)
    notes = header["__metadata__"]
    if notes.get("key") != key:
        raise DamagedFile(f"{path}: holds key {notes.get('key')}, not {key}\n{_REMEDY}")
    if notes.get("meta_crc32c") != _crc(notes["meta"].encode()):
        raise DamagedFile(f"{path}: its description fails its checksum\n{_REMEDY}")
    with path.open("rb") as file:
        file.seek(start)
        for name, expected in json.loads(notes["crc32c"]).items():
            left, value = np.subtract(*header[name]["data_offsets"][::-1]), 0
            while left > 0 and (data := file.read(min(BLOCK, int(left)))):
                value, left = google_crc32c.extend(value, data), left - len(data)
            if _hex(value) != expected:
                raise DamagedFile(f"{path}: column {name} fails its checksum\n{_REMEDY}")


_REMEDY = "remove that file and run precompute again: it is built anew"


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The JSON header and the offset of the data."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length + 8 > size:
                raise DamagedFile(f"{path}: truncated inside its header\n{_REMEDY}")
            return json.loads(file.read(length)), 8 + length
    except FileNotFoundError:
        raise DataError(f"{path}: no such feature cache\nrun precompute first") from None
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}\ncheck its permissions") from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise DamagedFile(f"{path}: its header is not that of a safetensors file\n{_REMEDY}") from None


def _build(series: Series, key: str, folder: Path) -> Path:
    """Streams the series through the features into one complete, synced file in `folder`."""
    from trainer.data.features import FeatureStream

    stream = FeatureStream(series.info.levels)
    sums = dict.fromkeys(COLUMNS, 0)
    files = {name: (folder / name).open("wb") for name in COLUMNS}
    try:
        for frame in _frames(series):
            arrays = {**vars(frame), "features": stream.push(frame)}
            for name, file in files.items():
                data = np.ascontiguousarray(arrays[name]).tobytes()
                sums[name] = google_crc32c.extend(sums[name], data)
                file.write(data)
    finally:
        for file in files.values():
            file.close()
    if stream.rows == 0:
        raise DataError(f"{series.info.symbol}: no row is left after cleaning ({_counts(series.info.cleaning)})")
    whole = folder / "whole"
    with whole.open("wb") as out:
        out.write(_header(series, key, stream.rows, {name: _hex(value) for name, value in sums.items()}))
        for name in COLUMNS:
            _append(out, folder / name)
        out.flush()
        os.fsync(out.fileno())
    return whole


def _frames(series: Series) -> Iterator[BookFrame]:
    """The series' chunks; trouble in reading them is not taken for trouble in writing the cache."""
    try:
        yield from series.chunks()
    except OSError as error:
        raise DataError(f"{error.filename or series.info.symbol}: can't be read: {error.strerror}\ntry again") from None


def _append(out: BinaryIO, part: Path) -> None:
    with part.open("rb") as file:
        shutil.copyfileobj(file, out, BLOCK)
    part.unlink()  # a column at a time: less than twice the room of the file is needed


def _header(series: Series, key: str, rows: int, sums: dict[str, str]) -> bytes:
    """The safetensors header, padded with spaces to a multiple of 64 bytes so that every int64 lies aligned."""
    meta = make_meta(series)
    text = meta.to_json()
    notes = {"key": key, "meta": text, "meta_crc32c": _crc(text.encode()), "crc32c": json.dumps(sums)}
    tree: dict[str, Any] = {"__metadata__": notes}
    end = 0
    for name, (shape, dtype) in column_shapes(meta.levels, len(meta.features), rows).items():
        start, end = end, end + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        tree[name] = {"dtype": _CODES[dtype.name], "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(tree).encode()
    header += b" " * (-(len(header) + 8) % 64)
    return len(header).to_bytes(8, "little") + header


def _hex(crc: int) -> str:
    return f"{crc:08x}"


def _crc(data: bytes) -> str:
    return _hex(google_crc32c.value(data))


def _safe(symbol: str) -> str:
    """A symbol as a folder name: `TFM FMH0024!` has a space, others a slash."""
    name = "".join(c if c.isalnum() or c in "-._" else "_" for c in symbol).lstrip(".")
    return name or "unnamed"


def _counts(cleaning: dict[str, int]) -> str:
    return " ".join(f"{rule}={n}" for rule, n in cleaning.items()) or "nothing was read"


def _sweep(folder: Path) -> None:
    """Removes what builders that died left behind."""
    for left in folder.glob(".*-*"):
        if left.is_dir() and time.time() - left.stat().st_mtime > STALE_S:
            shutil.rmtree(left, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _disk_errors(cache_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"feature cache {cache_dir}: can't be written: {error.strerror}\n"
            "free some space or fix the permissions, or choose another folder with --cache"
        ) from None
