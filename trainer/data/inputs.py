"""Market files -> one series of canonical rows: `open_series(paths, cfg)`.

Kinds are told by content: DBN (dbn.py), CSV and Parquet (tabular.py), `synthetic:` (synthetic.py). What lies on S3 is
fetched before (s3.py). Not supported yet, each with its own message: LOBSTER pairs, Lean zips, parent symbols.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from trainer.config import DataConfig
from trainer.data.clean import clean
from trainer.data.frame import BookFrame, Feed, Series, concat
from trainer.data.sampling import coarser, resolve, sample_rows
from trainer.data.streams import check_file, file_digest, sniff
from trainer.errors import DataError

_BARS_A_GAP = 4  # long bars: a weekend doesn't part daily bars, and does part hourly ones
_REPEATS = 4  # rows a state from which a sampling is said to be too fine
_BATCH = 1 << 12  # rows gathered before a chunk is handed on, so that small blocks cost little downstream


class FileSeries:
    """Rows of one instrument from files: cleaned, in sessions, sampled. Reading again starts anew."""

    def __init__(self, paths: list[Path], feed: Feed, cfg: DataConfig):
        self.paths, self.feed, self.info = paths, feed, feed.info
        self.gap_ns = int(cfg.session_gap_s * 1e9)
        if self.gap_ns < _BARS_A_GAP * feed.bar_ns:  # or each hourly bar would be a session of its own
            self.gap_ns = _BARS_A_GAP * feed.bar_ns
            self.info.note(f"a new session starts after {_BARS_A_GAP} missing bars, not data.session_gap_s")
        self.info.sampling = resolve(cfg.sample, feed.is_book, self.gap_ns)

    @cached_property
    def digest(self) -> str:
        return input_digest(self.paths)

    def chunks(self) -> Iterator[BookFrame]:
        """Frames in time order, none empty, of bounded size. Raises DataError where the input is bad."""
        self.info.cleaning.clear()
        self.info.counts.clear()
        states = made = 0

        def counted() -> Iterator[BookFrame]:
            nonlocal states
            for frame in clean(self.feed, self.gap_ns):
                states += len(frame)
                yield frame

        for frame in _batched(sample_rows(counted(), self.info.sampling, self.info.symbol)):
            made += len(frame)
            yield frame
        if made >= _REPEATS * max(states, 1):
            self._note_repeats(states, made)

    def _note_repeats(self, states: int, made: int) -> None:
        """Rows that repeat the one before cost time and teach nothing."""
        sample = self.info.sampling
        better = coarser(sample, made, states) or "event"
        self.info.note(
            f"{made:,} rows of {sample} hold {states:,} states, so most repeat the row before; "
            f"data.sample={better} has fewer"
        )


def open_series(uris: Sequence[str | Path], cfg: DataConfig) -> Series:
    """The series of one or more files in time order, or of one `synthetic:` URI. Raises DataError."""
    texts = [str(uri) for uri in uris]
    if not texts:
        raise DataError("no market data given\nname one or more files, or synthetic:signal=0.75")
    if any(text == "synthetic" or text.startswith("synthetic:") for text in texts):
        from trainer.data.synthetic import SyntheticSeries, parse_synthetic

        if len(texts) > 1:
            raise DataError("the synthetic market can't be joined with other inputs\ngive it alone")
        return SyntheticSeries(parse_synthetic(texts[0]), cfg.levels)
    paths = [_local(text) for text in texts]
    if cfg.symbol.endswith((".FUT", ".OPT")):
        raise DataError(
            f"data.symbol={cfg.symbol}: parent symbols (front month by volume) are not supported yet\n"
            "name one contract, such as ESH4"
        )
    for i, path in enumerate(paths):
        if path.resolve() in [p.resolve() for p in paths[:i]]:
            raise DataError(f"{path}: given twice\nname each file once")
    kinds = [sniff(path) for path in paths]
    for path, kind in zip(paths, kinds):
        if (kind == "dbn") != (kinds[0] == "dbn"):
            raise DataError(f"{path}: {kind}, but {paths[0]} is {kinds[0]}\ngive files of one kind")
    feed: Feed
    if kinds[0] == "dbn":
        from trainer.data.dbn import open_dbn

        feed = open_dbn(paths, cfg)
    else:
        from trainer.data.tabular import open_tabular

        feed = open_tabular(paths, kinds, cfg)
    return FileSeries(paths, feed, cfg)


def input_digest(uris: Sequence[str | Path]) -> str:
    """SHA-256 of the input's bytes, hex: of a file itself, or of the digests of several in their order."""
    digests = []
    for uri in uris:
        path = _local(str(uri))
        check_file(path)
        digests.append(file_digest(path))
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _local(text: str) -> Path:
    scheme, sep, _ = text.partition("://")
    if sep and scheme != "file":
        raise DataError(
            f"{text}: {scheme}:// addresses can't be read here\ngive a path or, to precompute, s3://bucket/key"
        )
    return Path(text.removeprefix("file://"))


def _batched(frames: Iterator[BookFrame]) -> Iterator[BookFrame]:
    waiting: list[BookFrame] = []
    rows = 0
    for frame in frames:
        if len(frame):
            waiting.append(frame)
            rows += len(frame)
        if rows >= _BATCH:
            yield concat(waiting)
            waiting, rows = [], 0
    if waiting:
        yield concat(waiting)
