"""A NaN anywhere in what is learnt raises the flag on the device within a step or two, and is named with its tensor."""

import numpy as np
import pytest

from tests.recipes.test_alpha_rl import COLLECT, TINY
from tests.recipes.tiny import STEMS, with_stem
from trainer.config import build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import NumpyDevice
from trainer.recipes.alpha_rl import AlphaRL


@pytest.fixture(scope="module", params=STEMS)
def recipe(request):
    cfg = build_config(with_stem(TINY, request.param))
    market = synthetic_market("synthetic:rows=4000,signal=0.75")
    return AlphaRL(NumpyDevice(), cfg, market, make_folds(market.ts, market.session, FoldPlan.of(cfg, 0))[0])


@pytest.fixture(scope="module")
def learning(recipe):
    """A snapshot in the middle of learning."""
    for _ in range(COLLECT + 4):
        recipe.step()
    return recipe.snapshot()


def spoilt(snapshot, name, index):
    arrays = {key: np.array(array, copy=True) for key, array in snapshot.items()}
    arrays[name][index] = np.nan
    return arrays


def unnoticed(recipe, learning):
    """Tensors in which a NaN is not noticed after one step, or is taken for another one's."""
    missed = []
    for array in ("opt.param", "opt.target"):
        for entry in recipe.net.layout.entries:
            index = slice(entry.offset, entry.offset + 1)
            if array == "opt.target" and entry.name == "heads.weight":  # only the best action's counts: one of each
                index = slice(entry.offset, entry.offset + entry.size, entry.shape[1])
            recipe.restore(spoilt(learning, array, index))
            assert not recipe.went_bad()
            with np.errstate(invalid="ignore"):
                recipe.step()
            if not recipe.went_bad() or recipe.first_bad_array() != f"{array} ({entry.name})":
                missed.append((array, entry.name, recipe.first_bad_array()))
    return missed


def test_in_every_tensor_of_weights_and_targets(recipe, learning):
    assert unnoticed(recipe, learning) == []


@pytest.mark.parametrize("array", ["opt.m", "opt.v"])
def test_in_a_moment_it_shows_one_step_later(recipe, learning, array):
    recipe.restore(spoilt(learning, array, 3))
    with np.errstate(invalid="ignore"):
        recipe.step()
        recipe.step()
    assert recipe.went_bad() and recipe.first_bad_array().startswith("opt.param (")


def test_the_layout_knows_whose_each_float_is(recipe):
    layout = recipe.net.layout
    for entry, following in zip(layout.entries, [*layout.entries[1:], None]):
        end = following.offset if following else layout.size
        assert {layout.at(i) for i in (entry.offset, entry.offset + entry.size - 1, end - 1)} == {entry.name}
