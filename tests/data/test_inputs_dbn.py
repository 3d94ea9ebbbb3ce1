"""DBN files of every supported schema: real ones against databento's own decoder, and what is wrong with bad ones."""

import datetime
import tracemalloc

import databento
import numpy as np
import pytest

from tests.conftest import shared_data
from tests.data.dbn_helpers import DAY, NONE, SECOND, START, records, write_dbn
from tests.data.frames import joined, same
from trainer.config import DataConfig
from trainer.data import dbn
from trainer.data.frame import UNDEF
from trainer.data.inputs import input_digest, open_series
from trainer.errors import DataError

ES = "nautilus/databento/"
ESH4 = ES + "esh4-glbx-mdp3-20231225.mbo.dbn.zst"
SNAPSHOT_DAY = ES + "esh4-glbx-mdp3-20231224.mbo.dbn.zst"
MBP1 = ES + "futures_mbp-1_2024-07-01T23-58_2024-07-02T00-02.dbn.zst"
TRADES = ES + "futures_trades_2024-07-01T23-58_2024-07-02T00-02.dbn.zst"
BARS = ES + "futures_ohlcv-1m_2024-07-01T23-40_2024-07-02T00-10.dbn.zst"
BBO = ES + "futures_bbo-1m_2024-05-09T09-55_2024-05-09T10-05.dbn.zst"
DEFINITION = ES + "futures_definition.dbn.zst"


def read(*paths, **settings):
    """(all rows, info)"""
    series = open_series([str(p) for p in paths], DataConfig(**settings))
    return joined(list(series.chunks())), series.info


def frame_of(path):
    """What databento itself reads, indexed by a plain number."""
    return (
        databento.DBNStore.from_file(path).to_df(price_type="fixed", pretty_ts=False, map_symbols=False).reset_index()
    )


def ns(text: str) -> int:
    return int(np.datetime64(text, "ns").astype(np.int64))


# -- real files --


def test_christmas_evening_in_es():
    rows, info = read(shared_data(ESH4), sample="event")
    assert (info.symbol, info.tick_size, info.schema, info.levels) == ("ESH4", "0.25", "mbo", 10)
    assert info.counts == {"records": 68_792, "snapshot": 8_725, "states": 47_022, "trades": 2_973}
    assert info.cleaning == {"pre-open": 925} and len(rows) == 47_022 - 925
    assert rows.ts[0] >= ns("2023-12-25T23:00:00.1") and (rows.ask_px[:, 0] > rows.bid_px[:, 0]).all()
    assert rows.volume[0] == 44 and rows.signed_volume[0] == 0  # the uncross: 44 lots without a side
    assert (rows.bid_px != UNDEF).all() and (rows.bid_sz > 0).all() and (rows.bid_ct > 0).all()
    quarters = np.histogram(rows.ts, ns("2023-12-25T23:00") + 900 * SECOND * np.arange(5))[0]
    assert quarters.tolist() == [15_935 - 1, 11_212, 9_032, 9_919]
    assert all(array.flags.c_contiguous for array in (rows.ts, rows.bid_px, rows.ask_px, rows.bid_sz, rows.ask_sz))


def test_default_sampling_of_a_book():
    events, _ = read(shared_data(ESH4), sample="event")
    rows, info = read(shared_data(ESH4))
    assert info.sampling == "100ms" and (np.diff(rows.ts) == SECOND // 10).all()
    assert (rows.ts % (SECOND // 10) == 0).all()
    latest = np.searchsorted(events.ts, rows.ts, side="right") - 1
    assert np.array_equal(rows.bid_px, events.bid_px[latest]) and np.array_equal(rows.ask_sz, events.ask_sz[latest])
    assert rows.signed_volume.sum() == events.signed_volume.sum()


def test_a_block_size_makes_no_difference(monkeypatch):
    whole, info = read(shared_data(ESH4))
    monkeypatch.setattr(dbn, "BLOCK", 997)
    parts, other = read(shared_data(ESH4))
    assert same(whole, parts) and info.cleaning == other.cleaning and info.counts == other.counts


def test_a_series_is_read_anew_each_time():
    series = open_series([shared_data(ESH4)], DataConfig())
    first = joined(list(series.chunks()))
    before = dict(series.info.cleaning), dict(series.info.counts), list(series.info.notes)
    assert same(first, joined(list(series.chunks())))
    assert before == (series.info.cleaning, series.info.counts, series.info.notes)


def test_a_day_with_a_snapshot_only():
    with pytest.raises(DataError, match=r"20231224.mbo.dbn.zst: only a snapshot, no live events"):
        read(shared_data(SNAPSHOT_DAY))
    alone, _ = read(shared_data(ESH4))
    both, info = read(shared_data(SNAPSHOT_DAY), shared_data(ESH4))
    assert same(alone, both) and any("only a snapshot" in note for note in info.notes)


def test_files_out_of_order_or_given_twice(tmp_path):
    one = write_dbn(tmp_path / "1", "mbp-1", quotes(3))
    two = write_dbn(tmp_path / "2", "mbp-1", quotes(3, start=2))
    with pytest.raises(DataError, match=r"2: record 1: out of order.*\n.*files that don't overlap in time order"):
        read(write_dbn(tmp_path / "3", "mbp-1", quotes(3, start=3)), two)
    with pytest.raises(DataError, match=r"1: record 1: out of order"):
        read(two, one)
    rows, _ = read(one, two, sample="event")
    assert len(rows) == 6
    with pytest.raises(DataError, match=r"1: given twice\nname each file once"):
        read(one, tmp_path / ".." / tmp_path.name / "1")


def test_mbp1_trades_equal_the_trades_file():
    rows, info = read(shared_data(MBP1), sample="event")
    trades = frame_of(shared_data(TRADES))
    sign = trades["side"].map({"B": 1, "A": -1, "N": 0})
    assert info.counts["trades"] == len(trades) == 120
    assert rows.volume.sum() == trades["size"].astype(int).sum()
    assert rows.signed_volume.sum() == (trades["size"].astype(int) * sign).sum()
    book = frame_of(shared_data(MBP1))
    book = book[book["flags"] & 128 != 0]
    assert rows.ts.tolist() == book["ts_recv"].tolist() and len(rows) < info.counts["records"]
    assert (rows.bid_px[:, 0].astype(np.int64) * 250_000_000).tolist() == book["bid_px_00"].tolist()
    assert rows.ask_sz[:, 0].tolist() == book["ask_sz_00"].tolist()


def test_several_instruments_and_their_definition():
    with pytest.raises(DataError, match=r"several instruments: ESU4, NQU4\npick one with data.symbol"):
        read(shared_data(BARS))
    with pytest.raises(DataError, match=r"no instrument 'NQU5' \(did you mean 'NQU4'\?\)\nchoose one of ESU4, NQU4"):
        read(shared_data(BARS), symbol="NQU5")
    with pytest.raises(DataError, match=r"several instruments: ESM4, NQM4"):
        read(shared_data(BBO))
    for symbol, instrument, point in (("ESU4", 118, 50.0), ("NQU4", 4358, 20.0)):
        rows, info = read(shared_data(BARS), shared_data(DEFINITION), symbol=symbol)
        bars = frame_of(shared_data(BARS))
        bars = bars[bars["instrument_id"] == instrument]
        assert (info.symbol, info.tick_size, info.multiplier, info.levels) == (symbol, "0.25", point, 1)
        assert (rows.bid_px[:, 0].astype(np.int64) * 250_000_000).tolist() == bars["close"].tolist()
        assert (rows.ask_px - rows.bid_px == 1).all() and not rows.bid_sz.any()
        assert (rows.ts - 60 * SECOND).tolist() == bars["ts_event"].tolist()  # known at the end, stamped at the start
        assert rows.volume.tolist() == bars["volume"].tolist() and info.sampling == "event"
    _, info = read(shared_data(BARS), shared_data(DEFINITION), symbol="NQU4", multiplier=5.0)
    assert info.multiplier == 5.0
    with pytest.raises(DataError, match="instrument definitions alone hold no prices"):
        read(shared_data(DEFINITION))


def test_bbo_rows_are_quotes_at_the_interval_end():
    rows, info = read(shared_data(BBO), symbol="ESM4")
    quotes = frame_of(shared_data(BBO))
    quotes = quotes[quotes["instrument_id"] == 5602]
    assert rows.ts.tolist() == quotes["ts_recv"].tolist() and info.schema == "bbo-1m" and rows.volume is None
    assert (rows.bid_px[:, 0].astype(np.int64) * 250_000_000).tolist() == quotes["bid_px_00"].tolist()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_dbn_versions(version):
    rows, info = read(shared_data(f"dbn/test_data.mbp-10.v{version}.dbn.zst"), sample="event", tick_size=0.25)
    assert info.symbol == "ESH1" and rows.bid_px.shape == (2, 10)
    assert rows.bid_px[0, [0, 9]].tolist() == [14_881, 14_872] and rows.ask_px[0, [0, 9]].tolist() == [14_882, 14_891]
    assert rows.bid_sz[:, 0].tolist() == [24, 24] and rows.ask_sz[:, 0].tolist() == [10, 10]


@pytest.mark.parametrize("schema", ["mbp-10", "mbp-1", "tbbo", "bbo-1s"])
def test_small_files_of_each_schema(schema):
    path = shared_data(f"databento-python/GLBX.MDP3/test_data.{schema}.dbn.zst")
    rows, info = read(path, sample="event")
    table = frame_of(path)
    if schema in ("mbp-10", "mbp-1"):
        table = table[table["flags"] & 128 != 0]
    assert info.symbol == "ESH1" and info.tick_size == "0.25"
    assert rows.ts.tolist() == table["ts_recv"].tolist()
    for i in range(info.levels):
        for side in ("bid", "ask"):
            px, sz = getattr(rows, f"{side}_px")[:, i], getattr(rows, f"{side}_sz")[:, i]
            assert (px.astype(np.int64) * 250_000_000).tolist() == table[f"{side}_px_{i:02d}"].tolist()
            assert sz.tolist() == table[f"{side}_sz_{i:02d}"].tolist()


def test_small_mbo_and_bars():
    with pytest.raises(DataError, match="only a snapshot"):
        read(shared_data("databento-python/GLBX.MDP3/test_data.mbo.dbn.zst"))
    rows, info = read(shared_data("databento-python/GLBX.MDP3/test_data.ohlcv-1m.dbn.zst"), spread_ticks=2)
    assert rows.bid_px[:2, 0].tolist() == [3704.75 * 4 - 1, 3704 * 4 - 1] and rows.volume[:2].tolist() == [306, 214]
    assert (rows.ask_px - rows.bid_px == 2).all() and any("spread of 2 tick" in note for note in info.notes)


def test_undefined_deep_levels_stay_undefined():
    rows, _ = read(shared_data("databento-python/NDEX.IMPACT/test_data.mbp-10.dbn.zst"), sample="event")
    assert (rows.bid_px[:, 0] != UNDEF).all() and (rows.bid_px[:, 9] == UNDEF).all()
    assert not rows.bid_sz[rows.bid_px == UNDEF].any()


def test_trades_alone_are_refused():
    with pytest.raises(DataError, match=r"trades alone have no quotes to fill against.*\nsupported: DBN"):
        read(shared_data(TRADES))


def test_digest_is_that_of_the_bytes():
    digest = "04597c542c1f0a9d0f6c5e8b73c7624db67d978061b42742b86e09ae608c0bc5"  # sha256sum
    path = shared_data(ESH4)
    assert input_digest([path]) == digest == open_series([path], DataConfig()).digest
    assert input_digest([path, shared_data(MBP1)]) != input_digest([shared_data(MBP1), path])


# -- made files --

QUARTER = 250_000_000
TEN_DAYS = datetime.timedelta(days=10)


def quotes(n=4, start=0, **change):
    rows = [
        {
            "ts_recv": START + (start + i) * SECOND,
            "flags": 128,
            "action": "A",
            "side": "N",
            "bid_px_00": 100 * QUARTER,
            "ask_px_00": 101 * QUARTER,
            "bid_sz_00": 5,
            "ask_sz_00": 6,
        }
        for i in range(n)
    ]
    rows[2].update(change)
    return records("mbp-1", rows)


def mbo(*rows):
    fill = {"side": "B", "price": QUARTER * 100, "size": 1, "flags": 128}
    return records("mbo", [{"ts_recv": START + i, **fill, **row} for i, row in enumerate(rows)])


R = {"action": "R", "side": "N", "flags": 0}
BID = {"action": "A", "order_id": 1, "flags": 0}
ASK = {"action": "A", "order_id": 2, "side": "A", "price": QUARTER * 101}


def test_content_counts_not_the_name(tmp_path):
    plain = write_dbn(tmp_path / "a.csv", "mbp-1", quotes())
    packed = write_dbn(tmp_path / "b.zst", "mbp-1", quotes())
    assert same(read(plain, sample="event")[0], read(packed, sample="event")[0])


def test_trades_within_an_event_belong_to_its_last_record(tmp_path):
    data = quotes(n=5)
    data["action"][[1, 2, 4]] = b"T"
    data["side"][[1, 2, 4]] = b"B", b"A", b"B"
    data["size"][[1, 2, 4]] = 7, 3, 2
    data["flags"][[1, 2]] = 0
    rows, info = read(write_dbn(tmp_path / "f", "mbp-1", data), sample="event")
    assert (
        rows.signed_volume.tolist() == [0, 4, 2] and rows.volume.tolist() == [0, 10, 2] and info.counts["trades"] == 3
    )


def test_a_roll_starts_a_session(tmp_path):
    """A continuous symbol names another contract from midnight on."""
    data = quotes(n=6)
    data["ts_recv"] = START + np.arange(-3, 3) * SECOND
    for name, instruments in (("f", [7, 7, 7, 8, 8, 8]), ("g", [7, 8, 7, 8, 7, 8])):
        data["instrument_id"] = instruments
        days = [(DAY - TEN_DAYS, DAY, 7), (DAY, DAY + TEN_DAYS, 8)]
        rows, _ = read(write_dbn(tmp_path / name, "mbp-1", data, {"ES.c.0": days}), sample="event")
        kept = (np.array(instruments) == 7) == (np.arange(6) < 3)
        assert rows.ts.tolist() == data["ts_recv"][kept].tolist()
        assert rows.session.tolist() == (np.array(instruments)[kept] - 7).tolist()


def test_a_roll_forgets_the_book(tmp_path):
    data = mbo(R, BID, ASK, R, {**BID, "price": QUARTER * 90}, {**ASK, "price": QUARTER * 91})
    data["ts_recv"] = START + np.arange(-3, 3) * SECOND
    data["instrument_id"][3:] = 8
    days = [(DAY - TEN_DAYS, DAY, 7), (DAY, DAY + TEN_DAYS, 8)]
    rows, _ = read(write_dbn(tmp_path / "f", "mbo", data, {"ES.c.0": days}), sample="event", levels=2)
    assert rows.bid_px.tolist() == [[100, UNDEF], [90, UNDEF]] and rows.session.tolist() == [0, 1]
    with pytest.raises(DataError, match="record 4: changes an order that was never added"):
        data["action"][3], data["side"][3], data["flags"][3] = b"C", b"B", 0
        read(write_dbn(tmp_path / "g", "mbo", data, {"ES.c.0": days}), tick_size=0.25)


def test_a_bad_receive_time_is_moved_between_its_neighbours(tmp_path):
    rows, _ = read(write_dbn(tmp_path / "f", "mbp-1", quotes(ts_recv=START, flags=128 | 8)), sample="event")
    assert (rows.ts - START).tolist() == [0, SECOND, SECOND, 3 * SECOND]
    rows, _ = read(
        write_dbn(tmp_path / "f", "mbp-1", quotes(ts_recv=START + 99 * SECOND, flags=128 | 8)), sample="event"
    )
    assert (rows.ts - START).tolist() == [0, SECOND, 3 * SECOND, 3 * SECOND]


def test_a_book_goes_on_in_the_next_file(tmp_path):
    one = write_dbn(tmp_path / "1", "mbo", mbo(R, BID, ASK))
    later = mbo({**BID, "order_id": 3, "price": QUARTER * 99, "flags": 128})
    later["ts_recv"] += SECOND
    rows, _ = read(one, write_dbn(tmp_path / "2", "mbo", later), sample="event", levels=2)
    assert rows.bid_px.tolist() == [[100, UNDEF], [100, 99]] and rows.ask_px[:, 0].tolist() == [101, 101]


def test_a_snapshot_at_a_files_head_begins_anew(tmp_path):
    one = write_dbn(tmp_path / "1", "mbo", mbo(R, BID, ASK))
    later = mbo(
        {**BID, "price": QUARTER * 90, "flags": 32},
        {**ASK, "price": QUARTER * 91, "flags": 32},
        {**R, "action": "N", "flags": 128},
    )
    later["ts_recv"] += SECOND
    rows, _ = read(one, write_dbn(tmp_path / "2", "mbo", later), sample="event")
    assert rows.bid_px[:, 0].tolist() == [100, 90] and rows.ask_px[:, 0].tolist() == [101, 91]


def test_repaired_orders_are_counted(tmp_path):
    data = mbo(
        R,
        BID,
        ASK,
        {"action": "C", "order_id": 77},
        {"action": "M", "order_id": 78, "price": QUARTER * 99},
        {"action": "A", "order_id": 1, "size": 4},
        {"action": "C", "order_id": 78, "size": 9},
        {"action": "A", "order_id": 80, "size": 0},
    )
    rows, info = read(write_dbn(tmp_path / "f", "mbo", data), sample="event")
    assert info.cleaning == {"unknown-order": 2, "duplicate-order": 1, "over-cancel": 1, "empty-order": 1}
    assert rows.bid_px[-1, :2].tolist() == [100, UNDEF] and rows.bid_sz[-1, 0] == 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([BID, {"action": "C", "order_id": 9}], "record 2: changes an order that was never added, and the file begins"),
        ([R, {**BID, "side": "N"}], "record 2: an order record has no side"),
        ([R, {**BID, "size": 2**31}], "record 2: an order of more than 2\\*\\*30 lots"),
        ([R, {**BID, "flags": 64}], "record 2: a by-price record"),
        ([R, {**BID, "action": "X"}], "record 2: an unknown action"),
        ([R, {**BID, "order_id": 2**64 - 1}], "record 2: an order record has no order id"),
        (
            [R, BID, {**ASK, "price": QUARTER * 101 + 1}],
            r"record 3: price 25.250000001 is not on the tick grid of 0.25",
        ),
        ([R, {**BID, "flags": 128}, {**BID, "order_id": 4}], "best bid or ask is undefined in all"),
        ([R, BID], "f.dbn: no record ends an event"),
    ],
)
def test_bad_order_records(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        read(write_dbn(tmp_path / "f.dbn", "mbo", mbo(*rows)), tick_size=0.25)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ts_recv": START}, "record 3: out of order: 2024-03-04T00:00:00.000000000Z comes after 2024-03-04T00:00:01"),
        ({"bid_px_00": QUARTER * 100 + 1000}, r"record 3: price 25.000001 is not on the tick grid of 0.25"),
        ({"length": 9}, "record 3: not a record of schema mbp-1\nfiles of mixed schemas"),
    ],
)
def test_bad_quote_records(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        read(write_dbn(tmp_path / "f.dbn", "mbp-1", quotes(**change)), tick_size=0.25)


def test_all_levels_undefined(tmp_path):
    data = quotes()
    data["bid_px_00"] = data["ask_px_00"] = NONE
    path = write_dbn(tmp_path / "f.dbn", "mbp-1", data)
    with pytest.raises(DataError, match="TEST: best bid or ask is undefined in all 4 rows"):
        read(path, tick_size=0.25)
    with pytest.raises(DataError, match=r"f.dbn: no price is defined in any row: all levels are empty"):
        read(path)


def test_a_price_without_a_size_is_said(tmp_path):
    rows, info = read(write_dbn(tmp_path / "f", "mbp-1", quotes(bid_sz_00=0)), sample="event")
    assert (
        rows.bid_sz[:, 0].tolist() == [5, 5, 0, 5] and "sizes of zero or unknown are taken as unlimited" in info.notes
    )
    _, info = read(write_dbn(tmp_path / "f", "mbp-1", quotes()), sample="event")
    assert not any("unlimited" in note for note in info.notes)


def test_bad_headers_and_symbols(tmp_path):
    data = quotes()
    with pytest.raises(DataError, match="schema mixed has no book"):
        read(write_dbn(tmp_path / "a", None, data))
    with pytest.raises(DataError, match=r"schema mbp-1, but .* has mbo\ngive files of one schema"):
        read(write_dbn(tmp_path / "b", "mbo", mbo(R, BID, ASK)), write_dbn(tmp_path / "c", "mbp-1", data))
    with pytest.raises(DataError, match="its header names no instrument"):
        read(write_dbn(tmp_path / "d", "mbp-1", data, {}))
    with pytest.raises(DataError, match="no record of OTHER"):
        read(write_dbn(tmp_path / "e", "mbp-1", data, {"OTHER": 9}), tick_size=0.25)
    with pytest.raises(DataError, match=r"ES\.FUT: parent symbols .* are not supported yet"):
        read(tmp_path / "c", symbol="ES.FUT")
    raw = bytearray((tmp_path / "c").read_bytes())
    raw[3] = 9
    (tmp_path / "f").write_bytes(raw)
    with pytest.raises(DataError, match=r"the DBN header can't be read|DBN version 9 is not known"):
        read(tmp_path / "f")


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(n: int, sample: str) -> int:
        data = np.tile(quotes(), n // 4)
        data["ts_recv"] = START + np.arange(n) * SECOND // 50
        data["action"][0], data["size"][0] = b"T", 1  # the market is open: no row waits for what comes
        series = open_series([write_dbn(tmp_path / "f.dbn.zst", "mbp-1", data)], DataConfig(sample=sample))
        del data
        tracemalloc.start()
        rows = sum(len(chunk) for chunk in series.chunks())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert rows in (n, n // 5, n // 5 + 1)
        return peak

    for sample in ("event", "100ms"):
        small, large = peak(60_000, sample), peak(240_000, sample)
        assert large < 1.2 * small and large < 60_000 * 240


def test_truncated_and_damaged_files(tmp_path):
    whole = shared_data(ESH4).read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 20):
        (tmp_path / "cut.dbn.zst").write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"cut.dbn.zst: (truncated|the DBN header is truncated).*\nfetch or copy"):
            read(tmp_path / "cut.dbn.zst")
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    (tmp_path / "bad.dbn.zst").write_bytes(damaged)
    with pytest.raises(DataError):  # a checksum, a record that is none, or an order out of place
        read(tmp_path / "bad.dbn.zst")
    plain = write_dbn(tmp_path / "f.dbn", "mbp-1", quotes()).read_bytes()
    (tmp_path / "f.dbn").write_bytes(plain[:-3])
    with pytest.raises(DataError, match=r"f.dbn: record 4: the file ends in the middle\nfetch or copy it again"):
        read(tmp_path / "f.dbn", tick_size=0.25)
    (tmp_path / "f.dbn").write_bytes(plain[:30])
    with pytest.raises(DataError, match="the DBN header is truncated"):
        read(tmp_path / "f.dbn")
