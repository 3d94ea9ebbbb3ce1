"""The replay equals a slow, independent order book at every state, on real and on random order flow."""

import databento
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import shared_data
from tests.data.dbn_helpers import NONE, START, records, slow_states
from trainer.data import replay
from trainer.data.frame import UNDEF

QUARTER = 250_000_000
ESH4 = "nautilus/databento/esh4-glbx-mdp3-20231225.mbo.dbn.zst"


def run(data: np.ndarray, unit: int, levels: int, block: int) -> tuple[replay.Book, list[dict], int, int]:
    book, parts = replay.Book(unit, levels), []
    for start in range(0, len(data), block):
        states, code, at = book.apply(data[start : start + block])
        states["at"] = states["at"] + start
        parts.append(states)
        if code != replay.OK:
            return book, parts, code, at + start
    return book, parts, replay.OK, -1


def as_tuples(parts: list[dict], unit: int) -> list[tuple]:
    """In the form of `slow_states`."""
    out = []
    for part in parts:
        sides = []
        for name in ("bid", "ask"):
            px, sz, ct = (part[f"{name}_{kind}"] for kind in ("px", "sz", "ct"))
            there = px != UNDEF
            assert not sz[~there].any() and not ct[~there].any()
            depth = there.sum(axis=1).tolist()
            levels = zip((px.astype(np.int64) * unit).tolist(), sz.tolist(), ct.tolist())
            sides.append([list(zip(*rows))[:n] for rows, n in zip(levels, depth)])
        out += zip(part["at"].tolist(), part["signed"].tolist(), part["volume"].tolist(), *sides)
    return out


@pytest.fixture(scope="module")
def esh4() -> np.ndarray:
    return databento.DBNStore.from_file(shared_data(ESH4)).to_ndarray()


def test_real_order_flow_equals_the_slow_book_at_every_state(esh4):
    _, parts, code, _ = run(esh4, QUARTER, 10, 16384)
    assert code == replay.OK
    fast = as_tuples(parts, QUARTER)
    slow = slow_states(esh4, 10)
    assert len(fast) == len(slow) == 47_022
    for one, other in zip(fast, slow):
        assert one == other


def test_facts_of_the_real_file(esh4):
    book, parts, _, _ = run(esh4, QUARTER, 10, 5000)
    c = book.counters
    assert c[replay.RECORDS] == 68_792 and c[replay.STATES] == 47_022 and c[replay.SNAPSHOT] == 8_725
    assert c[replay.UNKNOWN] == c[replay.TWICE] == c[replay.OVER] == 0
    trades = databento.DBNStore.from_file(shared_data(ESH4)).to_df()
    trades = trades[trades["action"] == "T"]
    assert c[replay.TRADES] == len(trades) == 2_973
    signed = (trades["size"].astype(int) * trades["side"].map({"B": 1, "A": -1, "N": 0})).sum()
    assert sum(int(p["signed"].sum()) for p in parts) == signed
    assert sum(int(p["volume"].sum()) for p in parts) == trades["size"].sum()
    bid, ask = (np.concatenate([p[f"{side}_px"][:, 0] for p in parts]) for side in ("bid", "ask"))
    assert (bid[:924] > ask[:924]).sum() == 890 and bid[924] > ask[924] and not (bid[925:] >= ask[925:]).any()
    assert np.median((ask - bid)[925:]) == 1  # 0.25 points
    mid = (bid + ask)[924:] * 0.125
    assert mid.min() == mid[0] == 4797.25 and mid.max() == 4811.625


@st.composite
def flows(draw):
    """Order flow with few ids and prices, so that modifies, partial cancels, unknown and doubled ids all occur."""
    rows = []
    for i in range(draw(st.integers(1, 40))):
        action = draw(st.sampled_from("AAAAMMCCTFNR" if i else "R"))
        side = draw(st.sampled_from("BA")) if action in "AMC" else draw(st.sampled_from("BAN"))
        last = draw(st.booleans())
        snapshot = 32 if action == "A" and draw(st.integers(0, 20)) == 0 else 0
        rows.append(
            {
                "action": action,
                "side": side,
                "order_id": draw(st.integers(0, 9)),
                "price": draw(st.integers(-20, 20)) * QUARTER,
                "size": draw(st.integers(0, 5)),
                "flags": 128 * last + snapshot,
                "ts_recv": START + i,
            }
        )
    return records("mbo", rows)


@settings(deadline=None, max_examples=60)
@given(flows(), st.integers(1, 4), st.integers(1, 60))
def test_random_order_flow_equals_the_slow_book(data, levels, block):
    _, parts, code, _ = run(data, QUARTER, levels, block)
    assert code == replay.OK
    assert as_tuples(parts, QUARTER) == slow_states(data, levels)


@settings(deadline=None, max_examples=4)
@given(st.integers(0, 2**32 - 1))
def test_thousands_of_orders_and_levels(seed):
    """Beyond the first sizes of table and levels, ids far apart and close by, removal from crowded runs of slots."""
    rng = np.random.default_rng(seed)
    n = 3000
    ids = np.concatenate([np.arange(n // 2) * 2**40, rng.integers(0, 2**62, n // 2)])
    rows = [{"action": "R", "side": "N", "flags": 128}]
    for i in rng.permutation(ids).tolist():
        price = int(rng.integers(-1500, 1500)) * QUARTER
        rows.append({"action": "A", "side": "BA"[i % 2], "order_id": i, "price": price, "size": 3, "flags": 128})
    for i in rng.permutation(ids)[: n * 3 // 4].tolist():
        rows.append({"action": "C", "side": "BA"[i % 2], "order_id": i, "price": 0, "size": 3, "flags": 128})
    data = records("mbo", rows)
    book, parts, code, _ = run(data, QUARTER, 3, 700)
    assert code == replay.OK and book.counters[replay.UNKNOWN] == 0
    fast, slow = as_tuples(parts, QUARTER), slow_states(data, 3)
    assert fast[::97] == slow[::97] and fast[-1] == slow[-1]


def test_trades_fills_and_none_never_touch_the_book():
    add = {"action": "A", "side": "B", "order_id": 1, "price": 10 * QUARTER, "size": 5, "flags": 128}
    for action in "TFN":
        other = {"action": action, "side": "A", "order_id": 1, "price": 10 * QUARTER, "size": 5, "flags": 128}
        data = records("mbo", [{"action": "R", "side": "N", "flags": 0}, add, other])
        _, parts, _, _ = run(data, QUARTER, 1, 9)
        assert parts[0]["bid_px"].tolist() == [[10], [10]] and parts[0]["bid_sz"].tolist() == [[5], [5]]
        assert parts[0]["signed"].tolist() == [0, -5 if action == "T" else 0]


ADD = {"action": "A", "side": "B", "order_id": 1, "price": QUARTER, "size": 1, "flags": 128}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"price": QUARTER + 1}, replay.OFF_GRID),
        ({"price": NONE}, replay.OFF_GRID),
        ({"side": "N"}, replay.NO_SIDE),
        ({"size": 2**30 + 1}, replay.BAD_SIZE),
        ({"flags": 128 | 64}, replay.NOT_ORDERS),
        ({"flags": 128 | 16}, replay.NOT_ORDERS),
        ({"action": "X"}, replay.BAD_ACTION),
        ({"order_id": 2**64 - 1}, replay.NO_ID),
        ({"action": "C"}, replay.NO_START),
        ({"action": "M"}, replay.NO_START),
    ],
)
def test_what_stops_a_replay(change, code):
    data = records("mbo", [{**ADD, "order_id": 5}, {**ADD, **change}, ADD])
    _, parts, stopped, at = run(data, QUARTER, 1, 9)
    assert (stopped, at) == (code, 1)
    assert len(parts[0]["at"]) == 1
