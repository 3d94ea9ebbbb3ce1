"""Validation beside the training: the same result at the same step, however the pass is cut, stopped and taken up."""

import numpy as np
import pytest

from tests.recipes.test_alpha_rl import COLLECT, TINY
from tests.recipes.tiny import trading_world, with_stem
from trainer.device import NumpyDevice
from trainer.device.recording import RecordingDevice
from trainer.learn.evaluator import CHUNK, chunk_plan
from trainer.learn.validation import NONE
from trainer.recipes.alpha_rl import AlphaRL

EVERY, LAG = 9, 7
LEARNING = COLLECT + 3  # weights move


@pytest.fixture(scope="module")
def world():
    return trading_world(with_stem(TINY, "folded"))  # with weights derived from those that a pass judges


def bits(recipe):
    return {name: np.asarray(array).tobytes() for name, array in recipe.store.items("state")}


def walk(recipe, steps):
    """Steps with a validation every EVERY of them -> [(step of the result, figures)] and the states of each step."""
    results, states = [], []
    for _ in range(steps):
        recipe.step()
        figures = recipe.validated()
        if figures:
            results.append((recipe.step_count, figures))
        if recipe.step_count % EVERY == 0:
            recipe.begin_validation(LAG)
        states.append(bits(recipe))
    return results, states


def at_the_last_moment(recipe):
    """The pass stands still until its result is due: as late as a device could be."""
    advance = recipe.validator.advance
    recipe.validator.advance = lambda share: advance(share) if share == 1 and late(recipe) else None
    return recipe


def late(recipe):
    return recipe.step_count >= recipe.validation.due


def at_once(recipe):
    advance = recipe.validator.advance
    recipe.validator.advance = lambda share: advance(1.0)
    return recipe


@pytest.fixture(scope="module")
def undisturbed(world):
    return walk(AlphaRL(NumpyDevice(), *world), LEARNING + 3 * EVERY)


def test_results_come_at_their_steps(undisturbed):
    results, _ = undisturbed
    begun = range(EVERY, LEARNING + 3 * EVERY - LAG + 1, EVERY)
    assert [(step, figures["val_step"]) for step, figures in results] == [(s + LAG, s) for s in begun]
    assert len({figures["val_net_per_1k"] for _, figures in results}) > 1, "the weights moved, the figures did not"


@pytest.mark.parametrize("pace", [at_once, at_the_last_moment])
def test_the_pace_of_a_pass_changes_nothing(world, undisturbed, pace):
    results, states = walk(pace(AlphaRL(NumpyDevice(), *world)), LEARNING + 3 * EVERY)
    assert results == undisturbed[0]
    for step, (ours, want) in enumerate(zip(states, undisturbed[1]), 1):
        assert [name for name in want if ours[name] != want[name]] == [], f"step {step}"


def test_a_recorded_pass_equals_an_eager_one(world, undisturbed):
    recipe = AlphaRL(RecordingDevice(), *world)
    results, states = walk(recipe, LEARNING + 3 * EVERY)
    assert results == undisturbed[0] and states == undisturbed[1]
    assert all(region.graph is not None for region in (recipe.validator.encode_region, recipe.validator.step_region))


@pytest.mark.parametrize("after", [0, 1, LAG - 1, LAG])
def test_a_resumed_run_takes_the_same_result_at_the_same_step(world, undisturbed, after):
    """Stopped where a pass begins, is under way, is one step from its end, and where its result was taken."""
    at, straight = 2 * EVERY + after, AlphaRL(NumpyDevice(), *world)
    walk(straight, at)
    resumed = AlphaRL(NumpyDevice(), *world)
    resumed.restore(straight.snapshot())
    assert (int(resumed.store["val.begun"][0]) == NONE) == (after == LAG)
    results, states = walk(resumed, LEARNING + 3 * EVERY - at)
    assert results == [(step, figures) for step, figures in undisturbed[0] if step > at]
    assert states == undisturbed[1][at:]


def test_a_pass_judges_the_weights_it_began_with(world):
    recipe = AlphaRL(NumpyDevice(), *world)
    for _ in range(LEARNING):
        recipe.step()
    kept, want = recipe.store["opt.param"].copy(), recipe.validate()
    recipe.store["best.score"].fill(-np.inf)
    recipe.validation.sync()
    recipe.begin_validation(LAG)
    recipe.store["opt.param"][...] = 0
    assert recipe.validated(last=True) == want
    np.testing.assert_array_equal(recipe.store["best.param"], kept)


def test_a_worse_pass_leaves_the_best_weights(world):
    recipe = AlphaRL(NumpyDevice(), *world)
    recipe.validate()
    best = recipe.store["best.param"].copy()
    recipe.store["best.score"].fill(1e9)
    recipe.validation.sync()
    recipe.store["opt.param"][...] += 1
    recipe.validate()
    np.testing.assert_array_equal(recipe.store["best.param"], best)
    assert recipe.store["best.score"][0] == 1e9


def test_a_frozen_state_is_that_of_its_boundary(world):
    recipe = AlphaRL(NumpyDevice(), *world)
    for _ in range(LEARNING):
        recipe.step()
    want, arrays = recipe.snapshot(), recipe.freeze()
    for _ in range(3):
        recipe.step()
    found = arrays()
    assert list(found) == [name for name, _ in recipe.store.items("state")]
    assert {name: a.tobytes() for name, a in found.items()} == {name: a.tobytes() for name, a in want.items()}
    assert found["opt.param"].tobytes() != recipe.store["opt.param"].tobytes()


def test_figures_lag_by_one_step(world):
    recipe, seen = AlphaRL(NumpyDevice(), *world), []
    for _ in range(LEARNING):
        recipe.step()
        seen.append((recipe.metrics(lag=1), recipe.metrics()))
    assert [lagged for lagged, _ in seen[1:]] == [newest for _, newest in seen[:-1]]
    assert seen[-1][0] != seen[-1][1]


@pytest.mark.parametrize("rows", [1, CHUNK - 1, CHUNK, CHUNK + 1])
def test_every_row_of_a_window_is_in_the_plan(rows):
    plan = chunk_plan(40, rows)
    assert plan.shape[1:] == (2, CHUNK) and plan.dtype == np.int32
    assert set(plan[:, 0].ravel().tolist()) == set(range(rows))
    np.testing.assert_array_equal(plan[:, 1], plan[:, 0] + 40)
