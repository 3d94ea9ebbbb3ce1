"""The whole training step on a GPU: captured equals eager bit for bit, runs repeat and resume bit for bit, and every
step is the one that NumPy takes from the same state."""

import numpy as np
import pytest

from kernels.isv import SLOTS, STATE
from tests.gpu.marks import NEEDS_ALL_KERNELS
from tests.recipes.test_alpha_rl import COLLECT, TINY
from tests.recipes.tiny import STEMS, with_stem
from trainer.config import build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import NumpyDevice
from trainer.device.cuda import CudaDevice
from trainer.learn.checkpoint import state_hash
from trainer.recipes.alpha_rl import AlphaRL

pytestmark = NEEDS_ALL_KERNELS

LEARN = 39
STEPS = COLLECT + LEARN  # three ends of a rollout, so that this region is captured too
RESUMED = 23
VALIDATED = (5, COLLECT + 6, COLLECT + 20)  # steps after which a validation pass runs
# How far one step from the same state may leave NumPy's: float32 sums in another order, or products of 10-bit
# mantissas. Adam divides by the gradient's own size, so a value whose gradient is all rounding moves by as much as the
# others: parameters and moments are compared as vectors, norm against norm.
TOLERANCE = {False: 1e-5, True: 5e-3}  # measured: 1.1e-6 and 7e-4
# Where the policy has not moved yet, its KL is all rounding: above 0, which is a signal, or not.
UNSURE = {f"isv.state_{output}_{STATE.index('count')}" for output in ("ppo_clip", "rollout_len")}


@pytest.fixture(scope="module", params=STEMS)
def world(request):
    cfg = build_config(with_stem(TINY, request.param))
    market = synthetic_market("synthetic:rows=4000,signal=0.75")
    return cfg, market, make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]


def on_gpu(world, **options):
    return AlphaRL(CudaDevice(**options), *world)


def walk(recipe, steps):
    """Steps, and waits for them: one device a process works at a time (kernels/last_block.cuh)."""
    for _ in range(steps):
        recipe.step()
    recipe.device.synchronize()


def differing(one, other):
    a, b = one.snapshot(), other.snapshot()
    return [name for name in a if a[name].tobytes() != b[name].tobytes()]


def regions(recipe):
    return {
        "collect": recipe.collect_region,
        "collect and learn": recipe.learn_region,
        "end of a rollout": recipe.boundary_region,
        "validation: encode": recipe.validator.encode_region,
        "validation: step": recipe.validator.step_region,
    }


def test_captured_equals_eager_at_every_step(world, capsys):
    eager, captured = on_gpu(world, graphs=False), on_gpu(world)
    for step in range(STEPS):
        for recipe in (eager, captured):
            walk(recipe, 1)
        assert differing(eager, captured) == [], f"step {step}"
        if step in VALIDATED:
            assert eager.validate() == captured.validate()
    assert eager.metrics()["l_q"] > 0 and eager.first_bad_array() is None
    nodes = {name: region.graph.nodes() for name, region in regions(captured).items()}
    with capsys.disabled():
        print("", *(f"{name}: {n} graph nodes" for name, n in nodes.items()), sep="\n  ")


def test_a_graph_holds_every_operation_of_its_region(world):
    """Launches, products, copies and fills of the region's body, each at least one node: nothing ran beside it."""
    recipe = on_gpu(world)
    walk(recipe, STEPS)
    for region in (recipe.collect_region, recipe.learn_region, recipe.boundary_region):
        count, device = 0, recipe.device
        kept = {name: getattr(device, name) for name in ("gemm", "copy", "zero", "launch")}

        def counting(name, kept=kept):
            def call(*values, **options):
                nonlocal count
                count += 1
                kept[name](*values, **options)

            return call

        for name in kept:
            setattr(device, name, counting(name))
        device.recorder.run(region.body)
        for name in kept:
            delattr(device, name)
        assert count >= 2 and region.graph.nodes() >= count, region.name


def test_two_fresh_devices_have_the_same_bits(world):
    one, other = on_gpu(world), on_gpu(world)
    for recipe in (one, other):
        walk(recipe, STEPS)
    assert differing(one, other) == []


@pytest.mark.parametrize("at", [3, COLLECT, COLLECT + 9, COLLECT + 16])
def test_a_restored_run_continues_bit_for_bit(world, at):
    straight = on_gpu(world)
    walk(straight, at)
    saved = straight.snapshot()
    walk(straight, RESUMED)
    resumed = on_gpu(world)
    resumed.restore(saved)
    assert resumed.step_count == at
    walk(resumed, RESUMED)
    assert differing(straight, resumed) == []
    assert state_hash(straight.snapshot()) == state_hash(resumed.snapshot())


@pytest.mark.parametrize("tf32", [False, True])
def test_every_step_is_the_one_that_numpy_takes(world, tf32, capsys):
    """NumPy starts each step from the GPU's state, so no difference can grow, and every draw must be the same one.

    With TF32 an action or a best next action may turn where two are nearly equal, so there only the update counts, and
    its median over the steps.
    """
    gpu, cpu = on_gpu(world, tf32=tf32), AlphaRL(NumpyDevice(), *world)
    found: dict[str, list[float]] = {}
    for step in range(STEPS):
        cpu.restore(gpu.snapshot())
        gpu.step()
        cpu.step()
        ours, want = gpu.snapshot(), cpu.snapshot()
        if step >= COLLECT:
            ours["opt.grad"], want["opt.grad"] = (r.device.to_host(r.store["opt.grad"]) for r in (gpu, cpu))
        for side in (ours, want):
            bus = side.pop("isv")
            side |= {f"isv.{name}": bus[slot : slot + 1] for name, slot in SLOTS.items()}
        for name in ours.keys() - UNSURE:
            if name.startswith("opt.") or not tf32:
                found.setdefault(name, []).append(distance(name, ours[name], want[name]))
    far = {name: float(np.median(each[-LEARN:]) if tf32 else max(each)) for name, each in found.items()}
    order = sorted(far, key=far.__getitem__, reverse=True)
    with capsys.disabled():
        print(f"\n  farthest from NumPy, TF32 {'on' if tf32 else 'off'}:")
        print(*(f"    {name} {far[name]:.1e} (step {int(np.argmax(found[name]))})" for name in order[:8]), sep="\n")
    assert [(name, far[name]) for name in order if far[name] > TOLERANCE[tf32]] == []


def distance(name, ours, want):
    """Of two arrays: by norm for the optimiser's vectors, else the largest of |a - b| / (1 + |b|); integers are equal,
    but for the masses, which are rounded reals."""
    if ours.tobytes() == want.tobytes():
        return 0.0
    if ours.dtype.kind != "f" and not name.startswith("replay."):
        return float("inf")
    a, b = ours.astype(np.float64), want.astype(np.float64)
    if name.startswith("opt."):
        return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-12))
    return float((np.abs(a - b) / (1 + np.abs(b))).max())


def test_before_learning_both_run_the_same_trajectory(world):
    """Weights don't move yet: lanes, orders and money stay equal to the last unit without any help."""
    gpu, cpu = on_gpu(world, tf32=False), AlphaRL(NumpyDevice(), *world)
    for step in range(COLLECT):
        gpu.step()
        cpu.step()
        ours, want = gpu.snapshot(), cpu.snapshot()
        for name in ours:
            if name.startswith("env."):
                assert distance(name, ours[name], want[name]) < 1e-5, (step, name)
