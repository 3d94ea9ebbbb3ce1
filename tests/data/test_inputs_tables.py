"""CSV and Parquet: every layout, exact ticks, and one clear message for each thing that can be wrong."""

import gzip
import lzma
import tracemalloc
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import shared_data
from tests.data.frames import joined, same
from trainer.config import DataConfig
from trainer.data import cells, tabular
from trainer.data.frame import UNDEF
from trainer.data.inputs import input_digest, open_series
from trainer.data.ticks import TickGuess, to_ticks
from trainer.errors import ConfigError, DataError

SECOND = 1_000_000_000
SIX_E = "nautilus/xcme/6EH4.XCME_1min_bars_20240101_20240131.csv.gz"
ESH4 = "nautilus/databento/esh4-glbx-mdp3-20231225.mbo.dbn.zst"


def read(*paths, **settings):
    series = open_series([str(p) for p in paths], DataConfig(**settings))
    return joined(list(series.chunks())), series.info


def ns(*texts: str) -> list[int]:
    return [int(np.datetime64(t, "ns").astype(np.int64)) for t in texts]


def write(path, text: str):
    path.write_text(text)
    return path


# -- real files --


def test_a_month_of_euro_bars():
    rows, info = read(shared_data(SIX_E), bar_stamp="end")
    table = pl.read_csv(shared_data(SIX_E), try_parse_dates=True)
    assert len(rows) == 29_996 and (info.symbol, info.tick_size, info.levels) == ("6EH4", "0.00005", 1)
    assert rows.ts.tolist() == table["timestamp_utc"].dt.epoch("ns").to_list()
    exact = [Decimal(c) for c in pl.read_csv(shared_data(SIX_E), infer_schema=False)["close"]]
    assert [Decimal(int(t)) * Decimal("0.00005") for t in rows.bid_px[:, 0]] == exact
    assert (rows.ask_px - rows.bid_px == 1).all() and rows.volume.tolist() == table["volume"].to_list()
    assert rows.session[-1] == 22  # each trading day; half-hour silences none
    later, info = read(shared_data(SIX_E))
    assert (later.ts - rows.ts == 60 * SECOND).all() and any("moved by 1m" in note for note in info.notes)


def test_hourly_bars_with_an_unnamed_time_column():
    rows, info = read(shared_data("backtesting.py/EURUSD.csv"))
    assert len(rows) == 5000 and info.tick_size == "0.00001" and info.sampling == "event"
    assert rows.ts[[0, -1]].tolist() == ns("2017-04-19T10:00", "2018-02-07T16:00")
    assert rows.session[-1] == 42  # weekends and holidays, not every hour
    assert any("4 missing bars" in note for note in info.notes)


def test_quote_ticks_with_and_without_a_fraction():
    rows, info = read(shared_data("nautilus/truefx/usdjpy-ticks.csv"))
    table = pl.read_csv(shared_data("nautilus/truefx/usdjpy-ticks.csv"))
    assert len(rows) == 1000 and info.tick_size == "0.001" and info.levels == 1
    assert rows.ts[:2].tolist() == ns("2013-01-01T22:00:00.295", "2013-01-01T22:02:35.907")
    assert (rows.bid_px[:, 0] / 1000).tolist() == table["bid"].to_list()
    assert "sizes of zero or unknown are taken as unlimited" in info.notes and not rows.bid_sz.any()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nautilus/quote_tick_data.csv", "no header: the first line is 20200101 170000065, 1.12"),
        ("lobster/AMZN_2012-06-21_34200000_57600000_orderbook_1.csv", "LOBSTER files are not supported yet"),
        ("ob-analytics/orders.csv.xz", "columns id, timestamp, .* are no known layout"),
        ("nautilus/tardis/binance-futures_book_snapshot_25_BTCUSDT.csv", "columns exchange, .* are no known layout"),
        ("hftbacktest/spot/btcusdt_20240809.gz", "JSON lines are not supported yet"),
        ("lean/future/comex/tick/gc/20131007_trade.zip", r"zip archive \(Lean data\?\) is not supported yet"),
    ],
)
def test_real_files_of_other_layouts_are_refused(path, message):
    with pytest.raises(DataError, match=f"(?s){message}.*(expected one of|supported:)"):
        read(shared_data(path))


def test_a_book_goes_through_csv_and_parquet_unchanged(tmp_path):
    """The replayed book, written by polars in the canonical schema, is read as the same rows."""
    rows, _ = read(shared_data(ESH4), sample="event")
    rows = rows.take(slice(0, 3000))
    rows = rows.take(np.r_[True, np.diff(rows.ts) > 0])  # equal rows would be dropped as copies
    columns = {"ts_event": pl.Series(rows.ts).cast(pl.Datetime("ns", "UTC"))}
    for i in range(10):
        for side in ("bid", "ask"):
            px, sz, ct = (getattr(rows, f"{side}_{kind}")[:, i] for kind in ("px", "sz", "ct"))
            columns |= {f"{side}_px_{i:02d}": px * 0.25, f"{side}_sz_{i:02d}": sz, f"{side}_ct_{i:02d}": ct}
    table = pl.DataFrame({**columns, "signed_volume": rows.signed_volume, "volume": rows.volume})
    table.write_parquet(tmp_path / "a.parquet")
    table.write_csv(tmp_path / "b.csv")
    (tmp_path / "c").write_bytes(zstandard.compress((tmp_path / "b.csv").read_bytes()))
    for path in ("a.parquet", "b.csv", "c"):
        got, info = read(tmp_path / path, sample="event", tick_size=0.25)
        assert info.levels == 10 and info.cleaning == {} and same(got, rows)
    one, two = table.slice(0, 1000), table.slice(1000)
    one.write_parquet(tmp_path / "1")
    two.write_csv(tmp_path / "2")
    assert same(read(tmp_path / "1", tmp_path / "2")[0], read(tmp_path / "a.parquet")[0])


def test_databento_csv_equals_its_dbn(tmp_path):
    """An mbp-1 file exported by databento's own writer gives the same rows as the DBN file."""
    import databento

    path = shared_data("nautilus/databento/futures_mbp-1_2024-07-01T23-58_2024-07-02T00-02.dbn.zst")
    databento.DBNStore.from_file(path).to_csv(tmp_path / "mbp1.csv")
    rows, _ = read(path, sample="event")
    got, info = read(tmp_path / "mbp1.csv", sample="event")
    assert same(got, rows) and info.symbol == "ESU4" and info.counts["trades"] == 120


# -- layouts --

BARS = "timestamp,open,high,low,close,volume\n"
QUOTES = "timestamp,bid,ask\n"


def bars(n=5, **change) -> str:
    rows = [[f"2024-01-02 10:0{i}:00", "1.5", "2.0", "1.0", f"{1.5 + i / 4}", str(i)] for i in range(n)]
    for key, value in change.items():
        rows[int(key[1])][int(key[3])] = value
    return BARS + "".join(",".join(row) + "\n" for row in rows)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, zstandard.compress])
def test_packed_or_not(tmp_path, pack):
    (tmp_path / "bars").write_bytes(pack(bars().encode()))
    rows, info = read(tmp_path / "bars")
    assert rows.bid_px[:, 0].tolist() == [6, 7, 8, 9, 10] and info.tick_size == "0.25"
    assert rows.ts.tolist() == ns(*(f"2024-01-02T10:0{i}" for i in range(1, 6)))


@pytest.mark.parametrize(
    "header",
    [
        "Date,Open,High,Low,Close,Volume",
        "ts_event,open,high,low,close,volume",
        "timestamp_utc,o,h,l,c,v",
        "DateTime,Open,High,Low,Last,Vol",
        ",open,high,low,close,volume",
        "﻿timestamp,open,high,low,close,volume",
    ],
)
def test_names_of_bar_columns(tmp_path, header):
    rows, _ = read(write(tmp_path / "b.csv", header + bars()[len(BARS) - 1 :]))
    assert same(rows, read(write(tmp_path / "c.csv", bars()))[0])


def test_delimiters_and_order_of_columns(tmp_path):
    plain, _ = read(write(tmp_path / "a.csv", bars()))
    assert same(plain, read(write(tmp_path / "b.csv", bars().replace(",", ";")))[0])
    table = pl.read_csv(tmp_path / "a.csv")
    table.select(sorted(table.columns)).write_csv(tmp_path / "c.csv", separator="\t")
    assert same(plain, read(tmp_path / "c.csv")[0])


def test_quote_bars(tmp_path):
    text = "timestamp,bid_open,bid_close,ask_close,bid_size,ask_size\n" + "".join(
        f"2024-01-02 10:0{i},1.0,{1 + i / 4},{1.5 + i / 4},3,4\n" for i in range(4)
    )
    rows, info = read(write(tmp_path / "q.csv", text), tick_size=0.25)
    assert rows.bid_px[:, 0].tolist() == [4, 5, 6, 7] and rows.ask_px[:, 0].tolist() == [6, 7, 8, 9]
    assert rows.bid_sz[:, 0].tolist() == [3] * 4 and rows.ts[0] == ns("2024-01-02T10:01")[0]
    assert info.schema == "csv quote bars" and info.sampling == "event"


def test_one_sided_quotes_and_missing_deep_levels(tmp_path):
    text = (
        "ts_event,bid_px_00,ask_px_00,bid_px_01,ask_px_01,bid_sz_00\n"
        "2024-01-02 10:00,1.00,1.25,,1.5,7\n2024-01-02 10:01,,1.25,0.75,1.5,7\n2024-01-02 10:02,1.00,1.25,0.75,1.5,\n"
    )
    rows, info = read(write(tmp_path / "b.csv", text), sample="event")
    assert info.cleaning == {"undefined": 1} and rows.bid_px.tolist() == [[4, UNDEF], [4, 3]]
    assert rows.bid_sz[:, 0].tolist() == [7, 0]


def test_a_sampling_that_only_repeats_rows_is_said(tmp_path):
    lines = [f"{(1_700_000_000 + i) * SECOND},{100 + i % 3},{101 + i % 3},5,5" for i in range(40)]
    book = write(tmp_path / "s.csv", "\n".join(["ts_event,bid_px_00,ask_px_00,bid_sz_00,ask_sz_00", *lines]) + "\n")
    rows, info = read(book, sample="100ms")
    (note,) = (n for n in info.notes if "repeat the row before" in n)
    assert f"{len(rows):,} rows of 100ms hold 40 states" in note and "data.sample=1s has fewer" in note
    for sample in ("1s", "event"):
        assert not any("repeat" in note for note in read(book, sample=sample)[1].notes)


def test_symbols(tmp_path):
    text = "timestamp,symbol,bid,ask\n" + "".join(
        f"2024-01-02 10:0{i},{'AB'[i % 2]},{i + 1},{i + 2}\n" for i in range(6)
    )
    path = write(tmp_path / "q.csv", text)
    with pytest.raises(DataError, match=r"several instruments: A, B\npick one with data.symbol"):
        read(path)
    with pytest.raises(DataError, match=r"no instrument 'C'.*\nchoose one of A, B"):
        read(path, symbol="C")
    rows, info = read(path, symbol="B", tick_size=1.0)
    assert rows.bid_px[:, 0].tolist() == [2, 4, 6] and info.symbol == "B"
    one = write(tmp_path / "one.csv", "\n".join(line for line in text.splitlines() if ",B," not in line) + "\n")
    assert read(one)[1].symbol == "A"


def test_small_batches_make_no_difference(tmp_path, monkeypatch):
    whole, info = read(shared_data(SIX_E))
    monkeypatch.setattr(tabular, "BLOCK", 30_000)
    parts, other = read(shared_data(SIX_E))
    assert same(whole, parts) and info.tick_size == other.tick_size


# -- times and ticks --


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2024-01-31 23:59:00", "2024-01-31T23:59"),
        ("2024-01-31", "2024-01-31"),
        ("2024-01-31T23:59:00.123456789Z", "2024-01-31T23:59:00.123456789"),
        ("2024-01-31 23:59:00.5+00:00", "2024-01-31T23:59:00.5"),
        ("2024-01-31 23:59:00-05:30", "2024-02-01T05:29"),
        ("2024-02-01 01:59:00 +0200", "2024-01-31T23:59"),
        ("20240131 235900065", "2024-01-31T23:59:00.065"),
        ("1706745540", "2024-01-31T23:59"),
        ("1706745540000", "2024-01-31T23:59"),
        ("1706745540000000", "2024-01-31T23:59"),
        ("1706745540000000000", "2024-01-31T23:59"),
    ],
)
def test_times(text, utc):
    assert cells.times(pl.Series("t", [text]), str).tolist() == ns(utc)


@pytest.mark.parametrize(
    "bad", ["", "yesterday", "2024-13-01", "2024-02-30", "2024-01-01 25:00", "31/01/2024", "2813-01-01"]
)
def test_bad_times(bad):
    with pytest.raises(DataError, match=r"row 1: 't' is .*, not a time\nwrite times like"):
        cells.times(pl.Series("t", ["2024-01-01", bad]), lambda i: f"row {i}")


def test_typed_times():
    moment = pl.Series("t", ["2024-01-31T23:59:00.123"]).str.to_datetime(time_unit="ms")
    for column in (moment, moment.cast(pl.Datetime("us")), moment.dt.replace_time_zone("America/New_York")):
        expected = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if column.dtype.time_zone else column
        assert cells.times(column, str).tolist() == expected.dt.epoch("ns").to_list()
    assert cells.times(pl.Series("t", ["2024-01-31"]).str.to_date(), str).tolist() == ns("2024-01-31")
    with pytest.raises(DataError, match="of type Float64 is no time"):
        cells.times(pl.Series("t", [1.5]), str)


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(["0.25", "0.00005", "0.01", "1", "0.1", "0.005", "25", "0.0000001"]),
    st.lists(st.integers(-200_000, 2_000_000), min_size=1, max_size=30),
)
def test_prices_are_exact_ticks_and_the_tick_is_their_divisor(tick, ticks):
    prices = np.array([float(Decimal(tick) * t) for t in ticks])
    assert to_ticks(prices, tick, np.arange(len(ticks)), str).tolist() == ticks
    guess = TickGuess()
    for part in np.array_split(prices, 3):
        guess.add(part)
    divisor = int(np.gcd.reduce(np.array(ticks)))
    if divisor:
        assert Decimal(guess.text_of("x")) == divisor * Decimal(tick)


@pytest.mark.parametrize(
    ("prices", "tick"),
    [
        ([2.2e-7, 2.4e-7, 2.8e-7], "0.00000002"),  # coins quoted in bitcoin
        ([1e-9], "0.000000001"),
        ([1.0000001, 1.0000002], "0.0000001"),  # near a whole number, and not one
        ([100.0000005, 99.5], "0.0000005"),
        ([0.1 + 0.2, 0.7 * 3], "0.3"),  # noise of a computed price
        ([15_000_000.0, 15_000_005.0 * (1 + 2e-16)], "5"),
    ],
)
def test_a_tick_is_told_from_noise(prices, tick):
    guess = TickGuess()
    guess.add(np.array(prices))
    assert guess.text_of("x") == tick


# -- bad input --


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bars(c2_4="x"), r"line 4: 'close' is 'x', not a number"),
        (bars(c2_4="NaN"), r"line 4: 'close' is 'NaN', not a number\ncorrect or drop the row"),
        (bars(c2_4="inf"), r"line 4: 'close' is 'inf', not a number"),
        (bars(c2_0="soon"), r"line 4: 'timestamp' is 'soon', not a time"),
        (bars(c2_0="2024-01-02 09:00"), r"line 4: out of order: 2024-01-02T09:01:00.000000000Z comes after"),
        (bars(c2_0="2024-01-02 10:01:00"), r"line 4: a second, different bar at 2024-01-02T10:02:00"),
        (bars(c2_5="-3"), r"line 4: 'volume' is -3, negative"),
        (bars(c2_4="1.3"), r"line 4: price 1.3 is not on the tick grid of 0.25\nset data.tick_size"),
        (bars().replace(",2\n", "\n"), r"line 4: not readable as CSV: Expected 6 columns, got 5: 2024-01-02 10:02:00,"),
        (bars(0), "no rows under the header"),
        (bars(1), "one bar alone doesn't tell its length"),
        ("time,bid,ask,bid_size\n2024-01-02,1,2,-4\n", r"line 2: 'bid_size' is -4, negative\ngive sizes in whole lots"),
        ("time,bid,ask,bid_size\n2024-01-02,1,2,0.5\n", "line 2: 'bid_size' is 0.5, not a whole number of lots"),
        ("time,bid,ask\n2024-01-02,,2\n2024-01-03,,2\n", "best bid or ask is undefined in all 2 rows"),
        (
            "timestamp,open,high,low,close,volum\n",
            r"unknown column 'volum' \(did you mean 'volume'\?\)\n.*expected one",
        ),
        (
            "timestamp,bid,akk\n",
            r"columns timestamp, bid, akk are no known layout \(did you mean 'ask'\?\)\nexpected one",
        ),
        ("when,bid,ask\n", "no time column among when, bid, ask\nname it one of ts_recv, ts_event, timestamp"),
        ("timestamp,bid,ask,bid\n", "two columns are named 'bid'"),
        ("timestamp,bid,ask,close\n", "column 'close' has no meaning beside quotes"),
        ("ts_event,bid_px_00,ask_px_00,bid_px_01\n", "no column ask_px_01, though there are 2 bid levels"),
        ("2024-01-02,1,2,3,4\n", "no header: the first line is 2024-01-02, 1, 2, 3, 4\nadd a line of names"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    with pytest.raises(DataError, match=f"(?s)x.csv: {message}|^x: {message}"):
        read(write(tmp_path / "x.csv", text), tick_size=0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,bid,ask\n", "no rows under the header\ncheck the file"),
        (
            "time,bid,ask\n2024-01-02,,\n2024-01-03,,\n",
            "no price is defined in any row: all levels are empty\ngive data",
        ),
        ("time,bid,ask\n2024-01-02,0,0\n", "every price is 0, so no tick size can be told\nset data.tick_size"),
        ("time,bid,ask\n" + "1704205800000000000,1,2\n" * 3 + "soon,1,2\n", "line 5: 'time' is 'soon', not a time"),
        ("time,bid,ask\n" + "2024-01-02,1,2\n" * 3 + "1704205800000000000,1,2\n", "line 5: 'time' is '17042"),
    ],
)
def test_bad_tables_whose_tick_size_is_inferred(tmp_path, text, message):
    with pytest.raises(DataError, match=f"x.csv: {message}"):
        read(write(tmp_path / "x.csv", text))


def test_equal_rows_are_dropped_and_counted(tmp_path):
    text = bars().replace("2024-01-02 10:02", "2024-01-02 10:01", 0)
    lines = text.splitlines(keepends=True)
    rows, info = read(write(tmp_path / "b.csv", "".join([*lines[:3], lines[2], *lines[3:]])))
    assert info.cleaning == {"duplicate": 1} and len(rows) == 5


def test_row_numbers_count_through_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(tabular, "BLOCK", 100)
    text = QUOTES + "".join(f"2024-01-02 10:00:{i:02d},1,2\n" for i in range(40)) + "2024-01-02 10:01:00,x,2\n"
    with pytest.raises(DataError, match="line 42: 'bid' is 'x'"):
        read(write(tmp_path / "q.csv", text))
    with pytest.raises(DataError, match="line 43: not readable as CSV: Expected 3 columns, got 1: what"):
        read(write(tmp_path / "q.csv", text.replace(",x,", ",1,") + "what\n"))
    table = pl.DataFrame({"timestamp": [3, 1], "bid": [1.0, 1.0], "ask": [2.0, 2.0]})
    table.write_parquet(tmp_path / "q.parquet")
    with pytest.raises(DataError, match=r"q.parquet: row 2: out of order"):
        read(tmp_path / "q.parquet")


def test_files_that_are_no_market_data(tmp_path):
    with pytest.raises(DataError, match=r"nothing.dbn: no such file\ncheck the path"):
        read(tmp_path / "nothing.dbn")
    write(tmp_path / "es.dbn", "x")
    with pytest.raises(DataError, match=r"nothing.dbn: no such file; that folder holds es.dbn\ncheck the path"):
        read(tmp_path / "nothing.dbn")
    with pytest.raises(DataError, match="is a folder\ngive the files in it"):
        read(tmp_path)
    with pytest.raises(DataError, match="the file is empty"):
        read(write(tmp_path / "empty.csv", ""))
    (tmp_path / "e.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="nothing is packed in this file"):
        read(tmp_path / "e.gz")
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="neither DBN, Parquet nor text\nsupported"):
        read(tmp_path / "noise")
    (tmp_path / "latin.csv").write_bytes("time,bid,größe\n".encode("latin-1"))
    with pytest.raises(DataError, match="line 1 is not UTF-8 text"):
        read(tmp_path / "latin.csv")
    with pytest.raises(DataError, match="no such file"):
        input_digest([tmp_path / "gone"])


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress])
def test_truncated_packed_tables(tmp_path, pack):
    packed = pack(bars().encode())
    (tmp_path / "cut.csv").write_bytes(packed[:-6])
    with pytest.raises(DataError, match=r"cut.csv: truncated: the packed data end early\nfetch or copy it again"):
        read(tmp_path / "cut.csv")


def test_damaged_files(tmp_path):
    packed = bytearray(gzip.compress(bars(9).encode()))
    packed[-6] ^= 0xFF  # the checksum
    (tmp_path / "bad.csv.gz").write_bytes(packed)
    with pytest.raises(DataError, match=r"bad.csv.gz: damaged"):
        read(tmp_path / "bad.csv.gz")
    pl.DataFrame({"timestamp": [1], "bid": [1.0], "ask": [2.0]}).write_parquet(tmp_path / "p")
    (tmp_path / "p").write_bytes((tmp_path / "p").read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged Parquet file"):
        read(tmp_path / "p")


def test_what_does_not_go_together(tmp_path):
    one, two = write(tmp_path / "b.csv", bars()), write(tmp_path / "q.csv", QUOTES + "2024-01-03,1,2\n")
    with pytest.raises(DataError, match=r"q.csv: quotes, but .*b.csv holds bars\ngive files of one layout"):
        read(one, two)
    with pytest.raises(DataError, match=r"dbn, but .*b.csv is csv\ngive files of one kind"):
        read(one, shared_data(ESH4))
    with pytest.raises(DataError, match="the synthetic market can't be joined"):
        read("synthetic", one)
    with pytest.raises(DataError, match="no market data given"):
        read()
    with pytest.raises(DataError, match="s3://b/k: s3:// addresses can't be read here"):
        read("s3://b/k")
    with pytest.raises(ConfigError, match=r"data.sample=hourly: not known"):
        read(one, sample="hourly")
    with pytest.raises(DataError, match=r"tick size 0.0000000001: not a whole number of 1e-9"):
        read(one, tick_size=1e-10)


def test_the_synthetic_market_is_a_series_too():
    rows, info = read("synthetic:rows=50,signal=0", levels=3)
    assert len(rows) == 50 and rows.bid_px.shape == (50, 3) and info.symbol == "SYNTHETIC"


def test_memory_does_not_grow_with_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(tabular, "BLOCK", 1 << 16)
    monkeypatch.setattr(tabular, "BATCH", 1 << 11)

    def peak(n: int, name: str) -> int:
        table = pl.DataFrame({"timestamp": np.arange(n) * SECOND + ns("2024-01-02")[0], "bid": 1.0, "ask": 1.5})
        if name == "q.csv":
            table.write_csv(tmp_path / name)
        else:
            table.write_parquet(tmp_path / name, row_group_size=1 << 12)
        series = open_series([tmp_path / name], DataConfig(tick_size=0.5))
        tracemalloc.start()
        assert sum(len(chunk) for chunk in series.chunks()) == n
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    for name in ("q.csv", "q.parquet"):
        assert peak(240_000, name) < 1.2 * peak(100_000, name)
