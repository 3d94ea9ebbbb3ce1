"""A market too large for the device's memory: the study says which sampling or window fits, before allocating."""

from types import SimpleNamespace

import pytest
import structlog

from tests.recipes.test_alpha_rl import TINY
from trainer import study
from trainer.config import build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import NumpyDevice, memory
from trainer.errors import DeviceMemory

ROWS = 40_000


def refusal(monkeypatch, free, sampling="100ms"):
    """What building the tiny recipe on a device with `free` bytes says."""
    monkeypatch.setattr(memory, "RESERVE", 0)
    device = NumpyDevice()
    device.require_room = lambda sizes: memory.require_room(sizes, free)
    cfg, market = build_config(TINY), synthetic_market(f"synthetic:rows={ROWS}")
    market.meta.__dict__["sampling"] = sampling
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    with pytest.raises(DeviceMemory) as caught:
        study._build(device, cfg, market, fold)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    return str(caught.value), caught.value.arenas


def test_it_says_which_sampling_or_window_fits(monkeypatch):
    _, arenas = refusal(monkeypatch, 1000)
    rest = sum(arenas.values()) - arenas["market"]
    text, _ = refusal(monkeypatch, rest + arenas["market"] // 2)
    assert f"{ROWS:,} rows (sampled at 100ms)" in text and "--set data.sample=1s" in text
    fits = int(text.split("at most ")[1].split(" rows")[0].replace(",", ""))
    assert ROWS // 2 - 2 <= fits <= ROWS // 2
    text, _ = refusal(monkeypatch, rest + arenas["market"] // 2, "event")
    assert "a coarser data.sample" in text


def test_where_the_rest_alone_is_too_much_another_setting_is_named(monkeypatch):
    text, arenas = refusal(monkeypatch, 1000)
    assert "rows fit" not in text and f"market {arenas['market'] / 2**20:,.0f} MiB" in text


def test_without_sizes_there_is_nothing_to_say():
    class Rows(list):
        meta = SimpleNamespace(sampling="1s")

    assert study.too_many_rows(DeviceMemory("out"), Rows(range(10))) is None


def test_a_run_says_what_it_takes():
    cfg, market = build_config(TINY), synthetic_market("synthetic:rows=4000")
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    device = NumpyDevice()
    device.memory = lambda: {"arrays": 5 << 20}
    with structlog.testing.capture_logs() as lines:
        recipe = study._build(device, cfg, market, fold)
    (line,) = lines
    largest, size = next(iter(recipe.arenas().items()))
    assert line["event"] == "memory" and line["arenas"].startswith(f"{largest} {size / 2**20:,.0f} MiB")
    assert line["arrays"] == "5 MiB" and recipe.metrics()["device_arrays_mib"] == 5
