"""The feature cache: the same bytes as in memory, readable by the safetensors library, and never half a file."""

import json
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from structlog.testing import capture_logs

from trainer.config import DataConfig
from trainer.data import fxcache
from trainer.data.fxcache import DamagedFile, cache_key, find_or_build, read_columns, verify
from trainer.data.market import COLUMNS, market_from_series, open_market
from trainer.data.synthetic import SyntheticConfig, SyntheticSeries
from trainer.errors import DataError, UsageError

CFG = DataConfig()


def series(rows: int = 9000, seed: int = 0, levels: int = 10) -> SyntheticSeries:
    return SyntheticSeries(SyntheticConfig(rows=rows, seed=seed), levels)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> bytes:
    """The bytes of one good file."""
    return find_or_build(series(), CFG, tmp_path_factory.mktemp("good")).read_bytes()


@pytest.fixture
def good(built, tmp_path) -> Path:
    path = tmp_path / "SYNTHETIC" / f"{cache_key(series(), CFG)}.safetensors"
    path.parent.mkdir()
    path.write_bytes(built)
    return path


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_miss_then_hit(tmp_path):
    with capture_logs() as logs:
        first = find_or_build(series(), CFG, tmp_path)
        second = find_or_build(series(), CFG, tmp_path)
    key = cache_key(series(), CFG)
    assert first == second == tmp_path / "SYNTHETIC" / f"{key}.safetensors"
    assert [line["event"] for line in logs] == [f"fxcache miss {key}", f"fxcache hit {key}"]
    assert files(tmp_path) == [first.name] and len(list(first.parent.iterdir())) == 1


def test_the_file_holds_what_memory_holds(good):
    market, mapped = market_from_series(series()), open_market(good)
    assert mapped.meta == market.meta and len(mapped) == 9000
    for name in COLUMNS:
        a, b = getattr(market, name), getattr(mapped, name)
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
        assert isinstance(b, np.memmap) and not b.flags.writeable and b.flags.c_contiguous
        assert b.ctypes.data % b.itemsize == 0


def test_the_safetensors_library_reads_it(good):
    with safe_open(good, "np") as file:
        assert set(file.keys()) == set(COLUMNS)
        for name, array in read_columns(good)[0].items():
            np.testing.assert_array_equal(file.get_tensor(name), array)
        assert json.loads(file.metadata()["meta"])["symbol"] == "SYNTHETIC"


def test_the_key_follows_input_settings_and_code(monkeypatch):
    key = cache_key(series(), CFG)
    assert key == cache_key(series(), DataConfig(label_rows=7))  # labels are not in the cache
    others = [
        cache_key(series(seed=1), CFG),
        cache_key(series(rows=9001), CFG),
        cache_key(series(levels=5), CFG),
        cache_key(series(), DataConfig(sample="1s")),
        cache_key(series(), DataConfig(session_gap_s=60.0)),
    ]
    monkeypatch.setattr(fxcache, "code_version", lambda: "another")
    others.append(cache_key(series(), CFG))
    assert len({key, *others}) == 7


def flip(at: int):
    def damage(data: bytes) -> bytes:
        at_ = at % len(data)
        return data[:at_] + bytes([data[at_] ^ 1]) + data[at_ + 1 :]

    return damage


DAMAGE = {
    "empty": lambda d: b"",
    "only a length": lambda d: d[:8],
    "cut in the header": lambda d: d[:200],
    "cut in the data": lambda d: d[: len(d) // 2],
    "last byte gone": lambda d: d[:-1],
    "bytes appended": lambda d: d + b"\0\0",
    "not safetensors": lambda d: b"ts_event,bid_px_00\n" * 1000,
    "header is no object": lambda d: d[:8] + b"[]" + d[10:],
    "length flipped": flip(1),
    "header flipped": flip(30),
    "tick size altered": lambda d: d.replace(b"0.25", b"0.50", 1),
    "first data byte": flip(int(1e6)),
    "a middle byte": flip(-(10**6)),
    "last byte flipped": flip(-1),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_seen_and_built_again(good, built, how):
    good.write_bytes(DAMAGE[how](built))
    key = good.stem
    with pytest.raises(DamagedFile, match=str(good)):
        verify(good, key)
    with capture_logs() as logs:
        assert find_or_build(series(), CFG, good.parents[1]) == good
    assert logs[0]["log_level"] == "warning" and logs[0]["event"].startswith(f"fxcache damaged {key}: ")
    assert logs[1]["event"] == f"fxcache miss {key}"
    assert good.read_bytes() == built


def test_a_file_under_another_key_is_not_taken(good, built):
    other = good.with_name("0" * 32 + ".safetensors")
    other.write_bytes(built)
    with pytest.raises(DamagedFile, match=f"holds key {good.stem}, not 0000"):
        verify(other, other.stem)


def test_reading_what_is_not_there():
    with pytest.raises(DataError, match="no such feature cache\nrun precompute first"):
        open_market("nowhere/x.safetensors")


def _builder(folder: str, barrier, results) -> None:
    barrier.wait()
    results.put(str(find_or_build(series(20_000), CFG, folder)))


def test_two_builders_at_once_end_with_one_valid_file(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    builders = [context.Process(target=_builder, args=(str(tmp_path), barrier, results)) for _ in range(2)]
    for p in builders:
        p.start()
    paths = {results.get(timeout=60) for _ in builders}
    for p in builders:
        p.join(60)
        assert p.exitcode == 0
    (path,) = paths
    verify(Path(path), Path(path).stem)
    assert files(tmp_path) == [Path(path).name]


class Failing(SyntheticSeries):
    """A series whose input breaks off after two chunks."""

    error: BaseException = OSError(5, "Input/output error", "input.dbn")

    def chunks(self):
        for i, chunk in enumerate(super().chunks()):
            if i == 2:
                raise self.error
            yield chunk


def test_an_input_that_breaks_off_leaves_nothing(tmp_path):
    broken = Failing(SyntheticConfig(rows=40_000))
    with pytest.raises(DataError, match=r"input.dbn: can't be read: Input/output error"):
        find_or_build(broken, CFG, tmp_path)
    assert files(tmp_path) == []
    broken.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        find_or_build(broken, CFG, tmp_path)
    assert files(tmp_path) == []


def test_an_empty_series_is_an_error_that_shows_the_counts(tmp_path):
    class Empty(SyntheticSeries):
        def chunks(self):
            self.info.cleaning.update({"pre-open": 12, "crossed": 3})
            return iter(())

    with pytest.raises(DataError, match=r"SYNTHETIC: no row is left after cleaning \(pre-open=12 crossed=3\)"):
        find_or_build(Empty(SyntheticConfig()), CFG, tmp_path)
    assert files(tmp_path) == []


@pytest.fixture
def small_files():
    """No file of this process may pass 1 MB: a real write error, as a full disk gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the kernel then answers the write with an error
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_without_room_is_one_clear_message_and_no_file(tmp_path, small_files):
    with pytest.raises(UsageError) as error:
        find_or_build(series(), CFG, tmp_path)
    assert str(error.value).startswith(f"feature cache {tmp_path}: can't be written: File too large\n")
    assert "--cache" in str(error.value)
    assert files(tmp_path) == []


def test_a_cache_that_is_no_folder(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UsageError, match="can't be written: Not a directory"):
        find_or_build(series(100), CFG, tmp_path / "cache")


def test_what_dead_builders_left_is_swept_when_old(tmp_path):
    folder = tmp_path / "SYNTHETIC"
    old, new = folder / f".{'a' * 32}-old", folder / f".{'b' * 32}-new"
    for left in (old, new):
        left.mkdir(parents=True)
        (left / "features").write_bytes(b"half")
    long_ago = time.time() - 2 * fxcache.STALE_S
    os.utime(old, (long_ago, long_ago))
    find_or_build(series(100), CFG, tmp_path)
    assert not old.exists() and new.exists()


@pytest.mark.parametrize(("symbol", "folder"), [("TFM FMH0024!", "TFM_FMH0024_"), ("../x", "_x"), ("", "unnamed")])
def test_a_symbol_is_a_safe_folder_name(tmp_path, symbol, folder):
    s = series(50)
    s.info.symbol = symbol
    assert find_or_build(s, CFG, tmp_path).parent == tmp_path / folder
