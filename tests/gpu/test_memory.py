"""Memory of a long run stays as it is, accesses stay within their arrays, and a warm start compiles nothing."""

import gc
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.marks import NEEDS_GPU
from tests.recipes.test_alpha_rl import COLLECT, TINY
from trainer import bench
from trainer.config import build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device.cuda import CudaDevice
from trainer.recipes.alpha_rl import AlphaRL

pytestmark = NEEDS_GPU

REPO = Path(__file__).resolve().parents[2]
STEPS = 10_000
SETTLED = 500  # steps after which nothing new may be taken: every region was captured, every rollout length was seen
HOST_SLACK = 4 << 20  # bytes; what the host's allocator rounds to
PATIENCE_S = 300


def tiny():
    cfg = build_config(TINY | {"run": {"device": "cuda"}})
    market = synthetic_market("synthetic:rows=4000,signal=0.75")
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    return AlphaRL(CudaDevice(), cfg, market, fold)


def taken(recipe):
    """(arrays in use on the device, bytes of the card in use, objects of Python)."""
    pool = recipe.device.cp.get_default_memory_pool()
    gc.collect()
    return pool.used_bytes(), recipe.device.memory()["card_used"], len(gc.get_objects())


def run(recipe, steps):
    """With what a training loop does beside its steps."""
    for i in range(steps):
        recipe.step()
        recipe.went_bad(1)
        if i % 50 == 0:
            recipe.metrics(1)
        if i % 250 == 0:
            recipe.begin_validation(100)
        recipe.validated()
        if i % 500 == 0:
            recipe.freeze()()


@pytest.mark.slow
def test_ten_thousand_steps_take_no_more_memory(capsys):
    recipe = tiny()
    run(recipe, SETTLED)
    before, host = taken(recipe), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(recipe, STEPS)
    after, grown = taken(recipe), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - host) * 1024
    with capsys.disabled():
        print(f"\n  {STEPS} steps: arrays, card, objects {before} -> {after}; peak of the host grew by {grown} bytes")
    assert after[0] == before[0] and after[1] <= before[1]
    assert after[2] - before[2] < STEPS // 100, "objects of Python pile up"
    assert grown <= HOST_SLACK


SANITIZED = """
import cupy
cupy.cuda.set_allocator(None)  # an allocation an array, so that each end is watched
from tests.gpu.test_memory import tiny
recipe = tiny()
for _ in range({steps}):
    recipe.step()
recipe.validate()
print(recipe.metrics()["l_q"] > 0)
{planted}
"""
PLANTED = """
text = 'extern "C" __global__ void past(float* x, int n) {{ x[n] = 1.0f; }}'
values = recipe.device.empty((128,), "float32")
cupy.RawKernel(text, "past")((1,), (1,), (values, cupy.int32(128)))
cupy.cuda.Device().synchronize()
"""


def sanitized(planted=""):
    """A few steps under memcheck -> (exit code, what it said)."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not on the PATH")
    code = SANITIZED.format(steps=COLLECT + 4, planted=planted.format())
    # Padding: one array's end must not be the next one's beginning.
    # API errors are not its business here: libraries ask the driver for entry points that it may not have.
    words = [tool, "--tool", "memcheck", "--padding", "512", "--report-api-errors", "no", "--error-exitcode", "9"]
    words += [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, cwd=REPO)
    if "Device not supported" in done.stdout:
        pytest.skip("compute-sanitizer does not support this card's machine")
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_no_access_leaves_its_array():
    code, said = sanitized()
    assert code == 0 and "ERROR SUMMARY: 0 errors" in said and "True" in said, said[-3000:]


@pytest.mark.slow
def test_one_that_does_would_be_noticed():
    code, said = sanitized(PLANTED)
    assert code == 9 and "Invalid __global__ write" in said and "past" in said, said[-3000:]


def test_a_start_with_warm_kernels_compiles_nothing(capsys):
    recipe = tiny()
    bench.warm_up(recipe, 3)
    cache = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    before = sorted(path.name for path in cache.iterdir())
    found = bench.start(recipe.cfg)
    with capsys.disabled():
        print(f"\n  start to the first captured step: {found}")
    assert before and sorted(path.name for path in cache.iterdir()) == before
    assert found["functions"] > 30 and found["first_captured_step_s"] > found["compile_s"]
