"""The whole step: recorded equals eager at every step, a restored run equals the undisturbed one, faults show."""

import numpy as np
import pytest

from tests.recipes.tiny import STEMS, with_stem
from trainer.config import build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import NumpyDevice
from trainer.device.recording import RecordingDevice, RecordingRefused
from trainer.learn.checkpoint import state_hash
from trainer.nets.network import Network
from trainer.nets.stem import Embedding, FoldedLayer
from trainer.recipes.alpha_rl import AlphaRL

TINY = {
    "data": {"label_rows": 5},
    "folds": {"folds": 1},
    "env": {"n_backtests": 8, "episode_len": 12},
    "net": {"d_model": 8, "layers": 2, "window": 6, "d_state": 4, "headdim": 8, "hidden": 8, "backbone": 8},
    "learn": {"batch": 4, "per_capacity": 256, "n_step": 2, "rollout_len": 16},
}
COLLECT = 17  # steps before a rollout is complete and learning starts
STEPS = 23  # coprime to every cadence


@pytest.fixture(scope="module", params=STEMS)
def world(request):
    cfg = build_config(with_stem(TINY, request.param))
    market = synthetic_market("synthetic:rows=4000,signal=0.75")
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    return cfg, market, fold


def bits(recipe):
    return {name: np.asarray(array).tobytes() for name, array in recipe.store.items("state")}


def test_these_sizes_have_both_stems():
    features = synthetic_market("synthetic:rows=4000,signal=0.75").n_features
    nets = [Network(build_config(with_stem(TINY, stem)).net, features) for stem in STEMS]
    assert [type(net.encoder.stem) for net in nets] == [Embedding, FoldedLayer]


def test_recorded_equals_eager_at_every_step(world):
    eager, recorded = AlphaRL(NumpyDevice(), *world), AlphaRL(RecordingDevice(), *world)
    for step in range(COLLECT + STEPS + 16):
        eager.step()
        recorded.step()
        a, b = bits(eager), bits(recorded)
        assert [n for n in a if a[n] != b[n]] == [], f"step {step}"
    assert recorded.learn_region.graph is not None and recorded.collect_region.graph is not None
    assert eager.metrics()["l_q"] > 0


@pytest.mark.parametrize("fault", ["python number", "host branch"])
def test_a_planted_fault_in_the_step_is_noticed(world, fault):
    eager, recorded = AlphaRL(NumpyDevice(), *world), AlphaRL(RecordingDevice(), *world)

    def spoil(recipe):
        body = recipe.collect_region.body

        def spoilt():
            body()
            s = recipe.store
            if fault == "python number":
                np.add(s["policy.h"], recipe.steps * 1e-3, out=s["policy.h"])
            elif recipe.steps % 2:
                np.add(s["policy.h"], 1e-3, out=s["policy.h"])

        recipe.collect_region.body = spoilt

    differs = False
    for recipe in (eager, recorded):
        spoil(recipe)
    for _ in range(12):
        eager.step()
        recorded.step()
        differs |= bits(eager) != bits(recorded)
    assert differs


def test_reading_a_value_inside_the_step_is_refused(world):
    recipe = AlphaRL(RecordingDevice(), *world)
    body = recipe.collect_region.body
    recipe.collect_region.body = lambda: (body(), float(recipe.store["isv"][0]))
    with pytest.raises(RecordingRefused, match="inside a region"):
        for _ in range(4):
            recipe.step()


@pytest.mark.parametrize("at", [3, COLLECT, COLLECT + 9, COLLECT + 16])
def test_a_restored_run_is_bit_identical(world, at):
    straight = AlphaRL(NumpyDevice(), *world)
    for _ in range(at):
        straight.step()
    saved = straight.snapshot()
    for _ in range(STEPS):
        straight.step()
    resumed = AlphaRL(NumpyDevice(), *world)
    resumed.restore(saved)
    assert resumed.step_count == at
    for _ in range(STEPS):
        resumed.step()
    a, b = bits(straight), bits(resumed)
    assert [n for n in a if a[n] != b[n]] == []
    assert state_hash(straight.snapshot()) == state_hash(resumed.snapshot())


def test_scratch_is_dead_between_steps(world):
    clean, poisoned = AlphaRL(NumpyDevice(), *world), AlphaRL(NumpyDevice(), *world)
    for _ in range(COLLECT + STEPS):
        for name, array in poisoned.store.items("scratch"):
            if name != "opt.grad":
                array.fill(np.nan if array.dtype.kind == "f" else 1)
        for entry in poisoned.net.layout.entries:  # the arena's padding is never written: it stays zero
            poisoned.grads[entry.name].fill(np.nan)
        clean.step()
        poisoned.step()
    a, b = bits(clean), bits(poisoned)
    assert [n for n in a if a[n] != b[n]] == []


def test_validation_changes_nothing_but_the_best_weights(world):
    plain, validated = AlphaRL(NumpyDevice(), *world), AlphaRL(NumpyDevice(), *world)
    for step in range(COLLECT + 8):
        plain.step()
        validated.step()
        if step % 5 == 0:
            figures = validated.validate()
    assert figures["val_rows"] > 0 and np.isfinite(figures["val_net_per_1k"])
    a, b = bits(plain), bits(validated)
    assert [n for n in a if a[n] != b[n]] == ["val.param", "best.param", "best.score"]


def test_a_planted_nan_is_named(world):
    recipe = AlphaRL(NumpyDevice(), *world)
    for _ in range(COLLECT + 4):
        recipe.step()
    assert recipe.first_bad_array() is None
    recipe.store["opt.param"][17] = np.nan
    assert recipe.first_bad_array() == "opt.param (embed.weight)"


def test_every_launch_reads_and_writes_only_what_its_table_says(world):
    """Arrays of role "in" keep their bits through a whole step, launch by launch."""
    device = NumpyDevice()
    recipe = AlphaRL(device, *world)
    for _ in range(COLLECT + 2):
        recipe.step()
    launch, seen = device.launch, set()

    def checked(kernel, *values):
        kept = [(a.name, v, v.tobytes()) for a, v in zip(kernel.args, values) if a.role == "in"]
        launch(kernel, *values)
        for name, value, before in kept:
            assert value.tobytes() == before, f"{kernel.name} writes its input {name}"
        seen.add(kernel.name)

    device.launch = checked
    for _ in range(18):
        recipe.step()
    assert {"mamba2_last", "mamba2_mixer", "c51_loss", "ppo_loss", "adam_arena", "gae", "env_step"} <= seen
