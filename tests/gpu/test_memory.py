"""Memory of a long run stays as it is, accesses stay in their arrays and do not race, a warm start compiles nothing."""

import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.marks import NEEDS_GPU
from tests.recipes.test_alpha_rl import COLLECT, TINY
from tests.recipes.tiny import USERS, with_stem
from trainer import bench
from trainer.config import build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device.cuda import CudaDevice
from trainer.device.source import all_kernels
from trainer.recipes.alpha_rl import AlphaRL

pytestmark = NEEDS_GPU

REPO = Path(__file__).resolve().parents[2]
STEPS = 10_000
SETTLED = 500  # steps after which nothing new may be taken: every region was captured, every rollout length was seen
HOST_SLACK = 4 << 20  # bytes; what the host's allocator rounds to
PATIENCE_S = 300
RACES_PATIENCE_S = 45


def recipe_of(sizes):
    cfg = build_config(sizes | {"run": {"device": "cuda"}})
    market = synthetic_market("synthetic:rows=4000,signal=0.75")
    fold = make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]
    return AlphaRL(CudaDevice(), cfg, market, fold)


def tiny():
    return recipe_of(TINY)


def folded():
    return recipe_of(with_stem(TINY, "folded"))


def users():
    return recipe_of(USERS)


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
    recipe = folded()
    run(recipe, SETTLED)
    before, host = taken(recipe), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(recipe, STEPS)
    after, grown = taken(recipe), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - host) * 1024
    with capsys.disabled():
        print(f"\n  {STEPS} steps: arrays, card, objects {before} -> {after}; peak of the host grew by {grown} bytes")
    assert after[0] == before[0] and after[1] <= before[1]
    assert after[2] - before[2] < STEPS // 100, "objects of Python pile up"
    assert grown <= HOST_SLACK


STEPPED = """
import cupy
if {apart}:
    cupy.cuda.set_allocator(None)  # an allocation an array, so that each end is watched
from tests.gpu.test_memory import tiny, users
for make in ({worlds}):
    recipe = make()
    for _ in range({steps}):
        recipe.step()
    if {validate}:
        recipe.validate()
    print("learnt", recipe.metrics()["l_q"] > 0)
"""
PAST_THE_END = """
text = 'extern "C" __global__ void past(float* x, int n) { x[n] = 1.0f; }'
values = recipe.device.empty((128,), "float32")
cupy.RawKernel(text, "past")((1,), (1,), (values, cupy.int32(128)))
cupy.cuda.Device().synchronize()
"""
# Two warps, each of which reads what the other one writes, and nobody waits.
RACE = """
text = 'extern "C" __global__ void raced(float* x) { __shared__ float s[64]; ' \\
    's[threadIdx.x] = x[threadIdx.x]; x[threadIdx.x] = s[63 - threadIdx.x]; }'
values = recipe.device.empty((64,), "float32")
cupy.RawKernel(text, "raced")((1,), (64,), (values,))
cupy.cuda.Device().synchronize()
"""


def sanitized(code, *options, patience=PATIENCE_S):
    """Python code under compute-sanitizer -> (exit code, what both said)."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not on the PATH")
    words = [tool, *options, "--error-exitcode", "9", sys.executable, "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(words, text=True, cwd=REPO, start_new_session=True, **pipes)
    try:
        said, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the tool's child, which would go on using the card
        said, _ = process.communicate()
        pytest.fail(f"not done after {patience} s, so far:\n{said[-2000:]}")
    if "Device not supported" in said:
        pytest.skip("compute-sanitizer does not support this card's machine")
    return process.returncode, said


def memcheck(worlds, planted=""):
    """A few steps of each world, the last ones replayed, and a validation."""
    # Padding: one array's end must not be the next one's beginning.
    # API errors are not its business here: libraries ask the driver for entry points that it may not have.
    options = ("--tool", "memcheck", "--padding", "512", "--report-api-errors", "no")
    return sanitized(STEPPED.format(worlds=worlds, apart=True, steps=COLLECT + 4, validate=True) + planted, *options)


@pytest.mark.slow
def test_no_access_leaves_its_array():
    code, said = memcheck("tiny, users")
    assert code == 0 and "ERROR SUMMARY: 0 errors" in said and said.count("learnt True") == 2, said[-3000:]


@pytest.mark.slow
def test_one_that_does_would_be_noticed():
    code, said = memcheck("tiny,", PAST_THE_END)
    assert code == 9 and "Invalid __global__ write" in said and "past" in said, said[-3000:]


@pytest.mark.slow
def test_the_only_race_in_shared_memory_is_the_planted_one():
    """A few steps at users' sizes and one kernel that races, in one process: the tool sees races, and no other one.

    Our own kernels are watched: the library's products are not ours to mend, and take most of the time."""
    names = [*(kernel.name for kernel in all_kernels()), "raced"]
    watched = [word for name in names for word in ("--kernel-name", f"kernel_substring={name}")]
    code = STEPPED.format(worlds="users,", apart=False, steps=COLLECT + 3, validate=False) + RACE
    _, said = sanitized(code, "--tool", "racecheck", *watched, patience=RACES_PATIENCE_S)
    if "Internal Sanitizer Error" in said:  # seen on an H200: in a kernel of the first step that memcheck finds clean
        pytest.skip("racecheck itself broke down: " + said[said.index("Internal Sanitizer Error") :].splitlines()[0])
    assert "learnt True" in said and "RACECHECK SUMMARY" in said, said[-3000:]
    accesses = [line for line in said.splitlines() if " access at " in line]  # two lines a race: kernel, source line
    assert [line for line in accesses if "raced" not in line] == []
    assert accesses, f"the planted race was not seen: {said[-3000:]}"


def test_a_start_with_warm_kernels_compiles_nothing(capsys):
    recipe = folded()
    bench.warm_up(recipe, 3)
    cache = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    before = sorted(path.name for path in cache.iterdir())
    found = bench.start(recipe.cfg)
    with capsys.disabled():
        print(f"\n  start to the first captured step: {found}")
    assert before and sorted(path.name for path in cache.iterdir()) == before
    assert found["functions"] > 30 and found["first_captured_step_s"] > found["compile_s"]
