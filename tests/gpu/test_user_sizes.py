"""The training step at the sizes that users run: as at tiny ones, captured equals eager and runs repeat and resume bit
for bit, through the kernels for whole windows (tensor cores), which tiny sizes never reach; a whole profile in two
processes goes through pinned products, too."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.marks import NEEDS_ALL_KERNELS
from tests.recipes.test_alpha_rl import COLLECT
from tests.recipes.tiny import USERS, trading_world
from trainer.config import load_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device.cuda import CudaDevice
from trainer.learn.checkpoint import state_hash
from trainer.recipes.alpha_rl import AlphaRL

pytestmark = NEEDS_ALL_KERNELS

REPO = Path(__file__).resolve().parents[2]
STEPS = COLLECT + 18  # most of those that learn are replays, and one ends a rollout
SAVED = COLLECT + 7
LEARNT = 60  # learning steps of the whole profile
SHARED = 116 << 10  # bytes a block of mamba2_mixer_bwd at these sizes
PATIENCE_S = 120


@pytest.fixture(scope="module")
def world():
    return trading_world(USERS)


def on_gpu(world, **options):
    return AlphaRL(CudaDevice(**options), *world)


def digests(recipe):
    """Of every array of the state, by name."""
    return {name: hashlib.blake2b(array).digest() for name, array in recipe.snapshot().items()}


def differing(ours, want):
    return [name for name in want if ours[name] != want[name]]


def walk(recipe, steps, saved=None):
    """(digests after each step, the state after step `saved`)."""
    found, state = [], None
    for step in range(1, steps + 1):
        recipe.step()
        found.append(digests(recipe))
        if step == saved:
            state = recipe.snapshot()
    return found, state


@pytest.fixture(scope="module")
def straight(world):
    """A captured run that was looked at after every step: (recipe, digests by step, state after step SAVED)."""
    recipe = on_gpu(world)
    return recipe, *walk(recipe, STEPS, SAVED)


def pinned(device):
    """Products of this device's steps whose algorithm is the one in the card's table."""
    return [str(product) for product in device.gemms.plans if device.gemms.pinned(product) is not None]


def test_these_sizes_take_the_kernels_of_users(straight):
    device = straight[0].device
    if device.shared_limit < SHARED:
        pytest.skip("blocks of this card get too little shared memory: the kernels for any shape run")
    mixers = {name.partition(".")[2] for name in device.functions if name.startswith("mamba2_mixer")}
    assert mixers == {"mamba2_mixer", "mamba2_mixer_bwd"}


def test_captured_equals_eager_at_every_step(world, straight):
    captured, want, _ = straight
    eager = on_gpu(world, graphs=False)
    for step in range(STEPS):
        eager.step()
        assert differing(digests(eager), want[step]) == [], f"step {step}"
    assert captured.learn_region.graph is not None and captured.first_bad_array() is None
    assert eager.metrics()["l_q"] > 0 and eager.validate() == captured.validate()


def test_two_fresh_devices_have_the_same_bits(world, straight):
    """The other one was waited for after each step, this one never."""
    other = on_gpu(world)
    for _ in range(STEPS):
        other.step()
    assert differing(digests(other), straight[1][-1]) == []


def test_a_restored_run_continues_bit_for_bit(world, straight):
    _, want, saved = straight
    resumed = on_gpu(world)
    resumed.restore(saved)
    for step in range(SAVED, STEPS):
        resumed.step()
        assert differing(digests(resumed), want[step]) == [], f"step {step}"


# -- the profile as it is, in processes of their own --


def profile_world(name):
    cfg = load_config(name)
    market = synthetic_market("synthetic:rows=10000,signal=0.75")
    return cfg, market, make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]


def learn(recipe, steps):
    while recipe.learn_region.calls < steps:
        recipe.step()
    return {"steps": recipe.step_count, "state": state_hash(recipe.snapshot())}


CHILD = """
import json
from tests.gpu.test_user_sizes import learn, on_gpu, pinned, profile_world
recipe = on_gpu(profile_world("small"))
found, gemms = learn(recipe, {steps}), recipe.device.gemms
print(json.dumps(found | {{"pinned": pinned(recipe.device), "table": len(gemms.algorithms)}}))
"""


def test_two_processes_of_a_whole_profile_have_the_same_bits():
    words = [sys.executable, "-c", CHILD.format(steps=LEARNT)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen(words, cwd=REPO, text=True, **pipes) for _ in range(2)]
    try:
        ended = [(*process.communicate(timeout=PATIENCE_S), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [code for _, _, code in ended] == [0, 0], [err[-2000:] for _, err, _ in ended]
    one, other = (json.loads(out.splitlines()[-1]) for out, _, _ in ended)
    assert one == other and one["steps"] > LEARNT
    assert len(one["pinned"]) > 5 or not one["table"]
