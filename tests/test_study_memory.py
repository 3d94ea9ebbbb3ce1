"""A market too large for the device's memory: the study says which sampling or window fits, before allocating."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import structlog

from tests.recipes.test_alpha_rl import TINY
from trainer import study
from trainer.config import build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import NumpyDevice, memory
from trainer.device.fields import CHECKPOINT_COPY
from trainer.errors import DataError, DeviceMemory, UsageError
from trainer.recipes import alpha_rl
from trainer.results.evaluate import evaluate_fold, judgement_memory

ROWS = 40_000


def tiny(rows):
    cfg, market = build_config(TINY), synthetic_market(f"synthetic:rows={rows}")
    return cfg, market, make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]


def refusal(monkeypatch, free, sampling="100ms"):
    """What building the tiny recipe on a device with `free` bytes says."""
    monkeypatch.setattr(memory, "RESERVE", 0)
    device = NumpyDevice()
    device.require_room = lambda sizes: memory.require_room(sizes, free)
    cfg, market, fold = tiny(ROWS)
    market.meta.__dict__["sampling"] = sampling
    with pytest.raises(DeviceMemory) as caught:
        study._build(device, cfg, market, fold)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    return str(caught.value), caught.value.arenas


def test_it_says_which_sampling_or_window_fits(monkeypatch):
    _, arenas = refusal(monkeypatch, 1000)
    growing = sum(arenas[name] for name in study.PER_ROW)
    free = sum(arenas.values()) - growing + growing // 2
    text, _ = refusal(monkeypatch, free)
    assert f"{ROWS:,} rows (sampled at 100ms)" in text and "--set data.sample=1s" in text
    fits = int(text.split("at most ")[1].split(" rows")[0].replace(",", ""))
    assert ROWS // 2 - 2 <= fits <= ROWS // 2
    text, _ = refusal(monkeypatch, free, "event")
    assert "a coarser data.sample" in text


def test_where_the_rest_alone_is_too_much_another_setting_is_named(monkeypatch):
    text, arenas = refusal(monkeypatch, 1000)
    assert "rows fit" not in text and f"market {arenas['market'] / 2**20:,.0f} MiB" in text


def test_without_sizes_there_is_nothing_to_say():
    class Rows(list):
        meta = SimpleNamespace(sampling="1s")

    assert study.too_many_rows(DeviceMemory("out"), Rows(range(10))) is None


def test_a_run_says_what_it_takes():
    cfg, market, fold = tiny(4000)
    device = NumpyDevice()
    device.memory = lambda: {"arrays": 5 << 20}
    with structlog.testing.capture_logs() as lines:
        recipe = study._build(device, cfg, market, fold)
    (line,) = lines
    whole = recipe.store.nbytes() + recipe.validator.store.nbytes()
    assert sum(recipe.arenas().values()) == whole, "names that training and validation share count twice"
    largest, size = next(iter(recipe.arenas().items()))
    assert line["event"] == "memory" and line["arenas"].startswith(f"{largest} {size / 2**20:,.0f} MiB")
    assert line["arrays"] == "5 MiB" and recipe.metrics()["device_arrays_mib"] == 5


def test_what_the_device_adds_to_the_arrays_is_asked_for_and_said():
    """On a GPU: the copy of the state that a checkpoint is made of, and the workspaces of matrix products."""
    cfg, market, fold = tiny(4000)
    device, sizes = asked(workspace_bytes=32 << 20)
    recipe = study._build(device, cfg, market, fold)
    copied = recipe.store.arena.flat.nbytes
    recipe.frozen.device_bytes = copied
    extra = {CHECKPOINT_COPY: copied, "workspaces": len(alpha_rl.MULTIPLYING) * (32 << 20)}
    assert recipe.arenas() == dict(sorted(recipe.arenas().items(), key=lambda item: -item[1]))
    assert {name: recipe.arenas()[name] for name in extra} == extra
    said = memory.by_arena(sizes[0])
    assert said["workspaces"] == extra["workspaces"] and 0 < said[CHECKPOINT_COPY] <= copied, "padding apart"


def asked(**limits):
    """(a device without memory limits that keeps what it is asked for, that)."""
    device, sizes = NumpyDevice(), []
    device.require_room = sizes.append
    vars(device).update(limits)
    return device, sizes


def test_a_run_that_can_not_be_judged_is_refused_before_it_trains(monkeypatch):
    monkeypatch.setattr(memory, "RESERVE", 0)
    cfg, market, fold = tiny(4000)
    device, sizes = asked()
    study._build(device, cfg, market, fold, judge=False)
    enough = sum(sizes[0].values())
    assert not any(name.startswith("judgement") for name in sizes[0])
    device.require_room = lambda wanted: memory.require_room(wanted, enough)
    study._build(device, cfg, market, fold, judge=False)
    with pytest.raises(DeviceMemory) as caught:
        study._build(device, cfg, market, fold)
    later = sum(judgement_memory(cfg, market, fold).values())
    assert sum(caught.value.arenas.values()) == enough + later and caught.value.arenas["judgement"] > 0


def test_the_prediction_is_what_is_then_asked_for():
    cfg, market, fold = tiny(4000)
    device, sizes = asked()
    recipe = study._build(device, cfg, market, fold)
    main, validator = sizes
    evaluate_fold(device, cfg, market, recipe.store, fold, recipe.store["opt.param"])
    judge, copied = sizes[2], CHECKPOINT_COPY  # of what is never in one
    assert validator.pop(copied) == judge.pop(copied)
    later = {name: size for name, size in main.items() if name.split(".")[0] in ("judgement", "validation", "lanes")}
    assert sum(later.values()) == sum(validator.values()) + sum(judge.values())


def test_a_test_window_without_a_session_is_refused_before_it_trains():
    cfg, market, fold = tiny(4000)
    device, sizes = asked()
    with pytest.raises(DataError, match="no session of the test window"):
        study._build(device, cfg, market, replace(fold, test=(fold.test[0], fold.test[0] + 5)))
    assert sizes == []


def test_a_gpu_that_can_not_launch_the_kernels_is_refused_before_anything_is_allocated():
    cfg, market, fold = tiny(4000)
    device, sizes = asked(shared_limit=1 << 10)
    with pytest.raises(UsageError, match=r"need [\d.]+ KiB of shared memory a block, and this GPU has 1\n"):
        study._build(device, cfg, market, fold)
    assert sizes == []
