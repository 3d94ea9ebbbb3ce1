"""Memory is asked for as a whole before any of it is taken, and a refusal names the sizes and what to lower."""

import numpy as np
import pytest

from trainer.device import Field, NumpyDevice, allocate, memory
from trainer.errors import DeviceMemory

GIB = 1 << 30


class SmallDevice(NumpyDevice):
    """A device with so much memory that is not allowed to allocate."""

    def __init__(self, free):
        super().__init__()
        self.free = free

    def require_room(self, sizes):
        memory.require_room(sizes, self.free)

    def empty(self, shape, dtype):
        raise AssertionError("allocated before it was known to fit")


def test_arenas_are_summed_and_sorted():
    assert memory.by_arena({"a.x": 1, "b.y": 5, "a.z": 3}) == {"b": 5, "a": 4}


@pytest.mark.parametrize("arena", ["market", "replay", "rollout", "joint"])
def test_too_little_memory_is_refused_before_allocating(arena):
    fields = [
        Field(f"{arena}.big", (3 * GIB // 4,), kind="scratch"),
        Field("env.row", (8,), "int32"),
        Field("isv", (585,)),
    ]
    with pytest.raises(DeviceMemory) as caught:
        allocate(SmallDevice(2 * GIB), fields)
    text = str(caught.value)
    assert "\n" not in text and caught.value.exit_code == 2
    assert f"3,072 MiB are needed ({arena} 3,072 MiB" in text and "1,536 MiB are free" in text
    assert memory.SMALLER[arena] in text
    assert caught.value.arenas[arena] == 3 * GIB and caught.value.free == 2 * GIB - memory.RESERVE


def test_the_hint_is_for_what_a_setting_can_make_smaller():
    assert "n_backtests" in memory.smaller({"unheard": 9, "rollout": 5, "market": 1})
    assert "net.d_model" in memory.smaller({"unheard": 9})


def test_what_fits_is_allocated():
    device = NumpyDevice()
    seen = {}
    device.require_room = seen.update
    allocate(device, [Field("a.x", (7,)), Field("b.y", (3, 2), "int64", "scratch")], np.float64)
    assert seen == {"a.x": 56, "b.y": 48, "checkpoint.copy": 56}, "state is copied on the device before it is saved"


def test_every_hint_names_an_arena_that_a_run_has():
    from tests.recipes.test_alpha_rl import TINY
    from trainer import study
    from trainer.config import build_config
    from trainer.data.folds import FoldPlan, make_folds
    from trainer.data.market import synthetic_market
    from trainer.recipes.alpha_rl import AlphaRL

    cfg, market = build_config(TINY), synthetic_market("synthetic:rows=2000")
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, 0))[0]
    recipe = AlphaRL(NumpyDevice(), cfg, market, fold)
    names = [*recipe.store.arrays, *recipe.validator.store.arrays, *study._later(cfg, market, fold, True)]
    assert set(memory.SMALLER) <= {name.partition(".")[0] for name in names}


def test_what_comes_later_is_asked_for_with_the_next_allocation_alone():
    device, asked = NumpyDevice(), []
    device.require_room = asked.append
    device.expected = {"judgement.table": 5}
    for _ in range(2):
        allocate(device, [Field("a.x", (2,), kind="scratch")])
    assert asked == [{"a.x": 8, "judgement.table": 5}, {"a.x": 8}]
