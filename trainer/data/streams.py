"""Files as bytes: what kind they are by content, unpacked while streaming, damage said in one line."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import zlib
from pathlib import Path
from typing import BinaryIO

import zstandard

from trainer.errors import DataError

_BLOCK = 1 << 20  # bytes read at once
_PACKED = 1 << 14  # packed bytes unpacked at once: market data shrink up to a hundredfold
_PACKERS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz"}
SUPPORTED = (
    "supported: DBN (.dbn, .dbn.zst) of schema mbo, mbp-10, mbp-1, tbbo, bbo or ohlcv; CSV (plain, gzip, xz, zstd)\n"
    "and Parquet with book columns (ts_event, bid_px_00, ask_px_00, ...), quotes (timestamp, bid, ask) or OHLCV bars"
)


def check_file(path: Path) -> None:
    """Raises DataError for a path that is not a readable file with something in it."""
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob("*") if p.is_file())[:3] if path.parent.is_dir() else []
        hint = f"; that folder holds {', '.join(near)}" if near else ""
        raise DataError(f"{path}: no such file{hint}\ncheck the path")
    if path.is_dir():
        raise DataError(f"{path}: is a folder\ngive the files in it, in time order")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}\ncheck its permissions") from None
    if empty:
        raise DataError(f"{path}: the file is empty\nfetch or copy it again")


def sniff(path: Path) -> str:
    """`dbn`, `parquet` or `csv`, by content. Raises DataError for what is none of them."""
    check_file(path)
    with path.open("rb") as file:
        head = file.read(8)
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:4] == b"PK\x03\x04":
        raise DataError(f"{path}: a zip archive (Lean data?) is not supported yet\n{SUPPORTED}")
    with open_bytes(path) as stream:
        inner = stream.read(4096)
    if not inner:
        raise DataError(f"{path}: nothing is packed in this file\nfetch or copy it again")
    if inner[:3] == b"DBN":
        return "dbn"
    if b"\x00" in inner:
        raise DataError(f"{path}: neither DBN, Parquet nor text\n{SUPPORTED}")
    return "csv"


def open_bytes(path: Path) -> io.BufferedReader:
    """The unpacked bytes of a plain, zstd, gzip or xz file, as a stream of bounded memory.

    Reading raises DataError where a packed file ends early or is damaged.
    """
    with path.open("rb") as file:
        head = file.read(6)
    packer = next((name for magic, name in _PACKERS.items() if head.startswith(magic)), "")
    if not packer:
        return path.open("rb")
    raw: BinaryIO
    if packer == "zstd":
        raw = _ZstdFile(path)  # type: ignore[assignment]
    else:
        raw = gzip.open(path) if packer == "gzip" else lzma.open(path)  # type: ignore[assignment]
    return io.BufferedReader(_Checked(raw, path), _BLOCK)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, hex, streamed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Checked(io.RawIOBase):
    """Turns a decompressor's own errors into ours, with the file's name."""

    def __init__(self, raw: BinaryIO, path: Path):
        self.raw, self.path = raw, path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            data = self.raw.read(len(buffer))
        except EOFError:
            raise DataError(f"{self.path}: truncated: the packed data end early\nfetch or copy it again") from None
        except (zstandard.ZstdError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{self.path}: damaged: {error}\nfetch or copy it again") from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.raw.close()
        super().close()


class _ZstdFile:
    """Like gzip.open for zstd: EOFError when the last frame is cut (zstandard's stream_reader just ends)."""

    def __init__(self, path: Path):
        self.file = path.open("rb")
        self.frame = zstandard.ZstdDecompressor().decompressobj()
        self.rest = b""  # packed bytes not yet given to the decompressor
        self.ready = b""  # unpacked bytes not yet handed out
        self.begun = False  # inside a frame

    def read(self, size: int) -> bytes:
        while not self.ready:
            packed = self.rest or self.file.read(_PACKED)
            if not packed:
                if self.begun:
                    raise EOFError
                return b""
            self.begun, self.rest = True, b""
            self.ready = self.frame.decompress(packed)
            if self.frame.eof:
                self.rest, self.begun = self.frame.unused_data, False
                self.frame = zstandard.ZstdDecompressor().decompressobj()
        out, self.ready = self.ready[:size], self.ready[size:]
        return out

    def close(self) -> None:
        self.file.close()
