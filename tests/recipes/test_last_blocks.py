"""The rule of kernels/last_block.cuh: of a kernel that counts its blocks, no two launches ever overlap.

On CUDA a branch is a stream by its name, so launches of one branch follow each other; regions of the training, too.
What the evaluator launches has a stream beside them.
"""

from contextlib import contextmanager

import pytest

from kernels import grad_norm
from tests.recipes.test_alpha_rl import TINY
from tests.recipes.tiny import STEMS, with_stem
from trainer import bench
from trainer.config import build_config
from trainer.device.base import Region
from trainer.device.launches import DryDevice
from trainer.device.source import all_kernels, kernel_source
from trainer.learn.optimizer import optimizer_step

COUNTING = {kernel.name for kernel in all_kernels() if '"last_block.cuh"' in kernel_source(kernel)}


class Streams(DryDevice):
    """Notes by kernel on which streams it is launched, from `streams = {}` on."""

    def __init__(self):
        super().__init__()
        self.streams, self.stream = {}, "main"

    def launch(self, kernel, *values):
        super().launch(kernel, *values)
        self.streams.setdefault(kernel.name, set()).add(self.stream)

    @contextmanager
    def branch(self, name, urgent=False):
        outer, self.stream = self.stream, name
        yield
        self.stream = outer


def walk(owner):
    """Region -> kernel -> its streams, of the regions of a recipe or an evaluator."""
    device, found = owner.device, {}
    for region in (value for value in vars(owner).values() if isinstance(value, Region)):
        device.streams = found[region.name] = {}
        region.body()
    return found


def overlapping(recipe):
    """(region, kernel) of what breaks the rule."""
    regions, beside = walk(recipe), walk(recipe.validator)
    torn = [(r, k) for r, kernels in regions.items() for k in COUNTING & kernels.keys() if len(kernels[k]) > 1]
    return torn + [(r, k) for r, kernels in beside.items() for k in COUNTING & kernels.keys()]


@pytest.fixture(params=STEMS)
def recipe(request):
    return bench.make_recipe(build_config(with_stem(TINY, request.param)), Streams())


def test_launches_of_a_kernel_that_counts_its_blocks_do_not_overlap(recipe):
    assert overlapping(recipe) == []


def test_all_of_them_and_all_regions_were_looked_at(recipe):
    regions, beside = walk(recipe), walk(recipe.validator)
    assert set(regions) == {"collect", "collect_and_learn", "rollout_end"}
    assert set(beside) == {"eval_begin", "eval_encode", "eval_step"}
    assert COUNTING >= {"adam_arena", "per_sample"} and COUNTING <= regions["collect_and_learn"].keys()
    assert regions["collect_and_learn"]["gather_windows"] > {"learn"}, "one that may be on several streams"


@pytest.mark.parametrize("where", ["another branch", "the evaluator"])
def test_a_launch_that_may_overlap_is_noticed(recipe, where):
    device = recipe.device
    learning, beside = recipe.learn_region, recipe.validator.step_region

    def optimise(body, name):
        with device.branch(name):
            optimizer_step(device, recipe.cfg.learn, 0, recipe.opt, recipe.store["isv"])
        body()

    planted = learning if where == "another branch" else beside
    body = planted.body
    planted.body = lambda: optimise(body, "planted")
    names = {grad_norm.KERNEL.name, "adam_arena"}
    assert set(overlapping(recipe)) == {(planted.name, name) for name in names}
