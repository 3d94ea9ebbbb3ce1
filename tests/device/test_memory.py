"""Memory is asked for as a whole before any of it is taken, and a refusal names the sizes and what to lower."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.device import Field, NumpyDevice, allocate, memory
from trainer.device.cuda import _Branch
from trainer.device.gemm import WORKSPACE
from trainer.errors import DeviceMemory, FoxhuntError

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
    assert f"3,072 MiB are needed ({arena} 3,072 MiB" in text and "1,664 MiB are free" in text
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
    assert seen == {"a.x": 56, "b.y": 48, "checkpoint copy": 56}, "state is copied on the device before it is saved"


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


def test_a_branch_takes_its_workspace_at_its_first_product_and_never_in_a_capture():
    capturing, taken = [True], []
    stream = SimpleNamespace(is_capturing=lambda: capturing[0])
    cuda = SimpleNamespace(Stream=lambda **_: stream, Event=lambda **_: None)
    branch = _Branch(SimpleNamespace(cuda=cuda, uint8=np.uint8, empty=lambda size, _: taken.append(size) or taken), 0)
    assert taken == []
    with pytest.raises(FoxhuntError, match="first product of a branch is being captured"):
        branch.workspace  # noqa: B018
    capturing[0] = False
    first = branch.workspace
    capturing[0] = True  # what is there may be used
    assert branch.workspace is first and taken == [WORKSPACE]


class Followed(NumpyDevice):
    """Notes which branches multiply matrices."""

    def __init__(self):
        super().__init__()
        self.at, self.multiplying = "main", set()

    @contextmanager
    def branch(self, name, urgent=False):
        outer, self.at = self.at, name
        yield
        self.at = outer

    @contextmanager
    def aside(self, name, after=False):
        with self.branch(name):
            yield

    def gemm(self, *values, **options):
        self.multiplying.add(self.at)
        super().gemm(*values, **options)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_workspace_is_reckoned_for_every_branch_that_multiplies_and_for_no_other(layers):
    from tests.recipes.tiny import STEP
    from trainer.config import build_config
    from trainer.data.folds import FoldPlan, make_folds
    from trainer.data.market import synthetic_market
    from trainer.recipes import alpha_rl

    cfg = build_config(STEP | {"net": STEP["net"] | {"layers": layers, "d_model": 64}})  # 64: the stem is folded
    market = synthetic_market("synthetic:rows=2000")
    device = Followed()
    recipe = alpha_rl.AlphaRL(device, cfg, market, make_folds(market.ts, market.session, FoldPlan.of(cfg, 0))[0])
    while not recipe.learn_region.calls:
        recipe.step()
    recipe.validate()
    assert device.multiplying == set(alpha_rl.MULTIPLYING)


def test_what_comes_later_is_asked_for_with_the_next_allocation_alone():
    device, asked = NumpyDevice(), []
    device.require_room = asked.append
    device.expected = {"judgement.table": 5}
    for _ in range(2):
        allocate(device, [Field("a.x", (2,), kind="scratch")])
    assert asked == [{"a.x": 8, "judgement.table": 5}, {"a.x": 8}]
