"""Beside the training stream: validation, checkpoints and readbacks change nothing, wait for nothing, and a run that is
killed in the middle of them ends as one left alone."""

import threading

import numpy as np
import pytest

from tests.gpu.marks import NEEDS_ALL_KERNELS
from tests.learn import child
from tests.recipes.test_alpha_rl import COLLECT, TINY
from tests.recipes.tiny import STEMS, trading_world, with_stem
from trainer.config import RunConfig
from trainer.device.cuda import CudaDevice, CudaGraph
from trainer.learn import checkpoint as ck
from trainer.learn.loop import train
from trainer.recipes.alpha_rl import AlphaRL

pytestmark = NEEDS_ALL_KERNELS

STEPS = COLLECT + 45  # three ends of a rollout
EVERY, LAG = 9, 7  # steps between validations, and from one to its result
SAVED, HELD = 5, 3  # steps between frozen states, and for which one is left unread
MILLISECOND = 2_000_000  # cycles of the card's clock, about
PATIENCE_S = 20
SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""


@pytest.fixture(scope="module", params=STEMS)
def world(request):
    return trading_world(with_stem(TINY, request.param))


def on_gpu(world):
    return AlphaRL(CudaDevice(), *world)


def bits(arrays):
    """What training is made of: validation's own arrays are left out."""
    return {name: a.tobytes() for name, a in arrays.items() if not name.startswith(("val.", "best."))}


def of_training(figures):
    """What a step was like: how much memory the process holds is left out, it has run other things before."""
    return {name: value for name, value in figures.items() if not name.startswith("device_")}


def differing(ours, want):
    return [name for name in want if ours[name] != want[name]]


@pytest.fixture(scope="module")
def straight(world):
    """(states, figures) after each step of a run without validation or checkpoints, waited for step by step."""
    recipe, states, figures = on_gpu(world), [{}], [{}]
    for _ in range(STEPS):
        recipe.step()
        states.append(bits(recipe.snapshot()))
        figures.append(of_training(recipe.metrics()))
    return states, figures


def walk(recipe):
    """The same steps with both, none of them waited for -> (results by step, frozen states by step, figures)."""
    results, frozen, figures, open_at, arrays = {}, {}, [{}], 0, None
    for step in range(1, STEPS + 1):
        recipe.step()
        if step > 1:
            figures.append(of_training(recipe.metrics(lag=1)))
        if found := recipe.validated():
            results[step] = found
        if step % EVERY == 0:
            recipe.begin_validation(LAG)
        if arrays is not None and step == open_at + HELD:
            frozen[open_at], arrays = bits(arrays()), None
        if step % SAVED == 0:
            open_at, arrays = step, recipe.freeze()
    figures.append(of_training(recipe.metrics()))
    return results, frozen, figures


@pytest.fixture(scope="module")
def warm(world):
    """A recipe that has walked, all its graphs captured, and what that gave."""
    recipe = on_gpu(world)
    found = walk(recipe)
    assert all(region.graph is not None for region in (recipe.learn_region, recipe.boundary_region))
    assert all(region.graph is not None for region in (recipe.validator.encode_region, recipe.validator.step_region))
    return recipe, found


def delayed(recipe, where):
    """Puts work of no use on a stream before what comes there, and a little after it."""
    device = recipe.device
    spin = device.cp.RawKernel(SPIN, "spin")

    def slow(call, stream, cycles):
        def slowly(*values):
            spin((1,), (1,), (np.int64(cycles),), stream=stream())
            result = call(*values)
            spin((1,), (1,), (np.int64(cycles // 4),), stream=stream())
            return result

        return slowly

    def now():
        return device.current.stream

    if where in ("validation", "all"):
        recipe.validator.begin = slow(recipe.validator.begin, now, 20 * MILLISECOND)
        recipe.validator.advance = slow(recipe.validator.advance, now, MILLISECOND)
    if where in ("checkpoint", "all"):
        recipe.frozen.push = slow(recipe.frozen.push, lambda: recipe.frozen.stream, 10 * MILLISECOND)
    if where in ("training", "all"):
        recipe.step = slow(recipe.step, now, MILLISECOND)
    return recipe


def agree(found, straight, want_results):
    results, frozen, figures = found
    states, want_figures = straight
    assert results == want_results
    assert sorted(frozen) == list(range(SAVED, STEPS - HELD + 1, SAVED))
    for step, state in frozen.items():
        assert differing(state, states[step]) == [], f"frozen after step {step}"
    assert figures == want_figures


def test_validation_and_checkpoints_change_nothing(warm, straight):
    found = warm[1]
    begun = range(EVERY, STEPS - LAG + 1, EVERY)
    assert {step: x["val_step"] for step, x in found[0].items()} == {s + LAG: s for s in begun}
    assert len({x["val_net_per_1k"] for x in found[0].values()}) > 1
    agree(found, straight, found[0])


@pytest.mark.parametrize("where", ["validation", "checkpoint", "training", "all"])
def test_delays_change_nothing(world, warm, straight, where):
    recipe = delayed(on_gpu(world), where)
    agree(walk(recipe), straight, warm[1][0])
    assert differing(bits(recipe.snapshot()), straight[0][STEPS]) == []


def test_a_resumed_validation_gives_the_same_result(world, warm):
    recipe, at = on_gpu(world), 2 * EVERY + 2
    for step in range(1, at + 1):
        recipe.step()
        recipe.validated()
        if step == 2 * EVERY:
            recipe.begin_validation(LAG)
    resumed = on_gpu(world)
    resumed.restore(recipe.snapshot())
    while not (found := resumed.validated()):
        resumed.step()
    assert (resumed.step_count, found) == (2 * EVERY + LAG, warm[1][0][2 * EVERY + LAG])


class Hold:
    """Work that stands still on a stream until `release` or the end of patience."""

    def __init__(self, stream):
        self.released, self.in_time = threading.Event(), None
        stream.launch_host_func(self._stand, None)

    def _stand(self, _):
        self.in_time = self.released.wait(PATIENCE_S)

    def release(self, device):
        self.released.set()
        device.cp.cuda.Device().synchronize()
        assert self.in_time, "something waited for the stream that stood still"


def test_no_step_waits_for_the_device(warm):
    """The training stream stands still: the host comes through every kind of step all the same."""
    recipe, _ = warm
    ends = recipe.boundary_region.calls
    for number in range(35):  # two ends of a rollout
        recipe.device.cp.cuda.Device().synchronize()
        hold = Hold(recipe.device.main.stream)
        recipe.step()
        recipe.metrics(lag=1)
        assert not recipe.went_bad(lag=1) and not recipe.validated()
        if number % 8 == 0:
            recipe.freeze()
        if number == 3:
            recipe.begin_validation(100)
        hold.release(recipe.device)
    assert recipe.boundary_region.calls >= ends + 2
    assert recipe.validated(last=True)


def test_nothing_uses_the_default_stream(warm):
    recipe, _ = warm
    recipe.device.cp.cuda.Device().synchronize()
    hold = Hold(recipe.device.cp.cuda.Stream.null)
    for number in range(20):
        recipe.step()
        recipe.metrics(lag=1)
        recipe.validated()
        if number == 2:
            recipe.begin_validation(LAG)
            arrays = recipe.freeze()
    arrays()
    recipe.metrics()
    hold.release(recipe.device)


def test_a_step_is_one_graph_and_allocates_nothing(warm, monkeypatch):
    recipe, _ = warm
    launched, launch, cp = [], CudaGraph.launch, recipe.device.cp

    def counted(graph):
        launched.append(graph)
        launch(graph)

    def refused(size):
        raise AssertionError(f"{size} bytes were allocated in a step")

    monkeypatch.setattr(CudaGraph, "launch", counted)
    monkeypatch.setattr(recipe.device, "launch", None)  # eager launches
    monkeypatch.setattr(recipe.device, "gemm", None)
    with cp.cuda.using_allocator(refused):
        for number in range(40):
            ends = recipe.boundary_region.calls
            recipe.step()
            want = [recipe.learn_region.graph, *[recipe.boundary_region.graph] * (recipe.boundary_region.calls - ends)]
            assert launched == want
            recipe.metrics(lag=1)
            if number == 5:
                recipe.begin_validation(LAG)
                arrays = recipe.freeze()
            recipe.validated()
            launched.clear()
    assert arrays()["clock.step"][0] == recipe.step_count - 34


def test_a_slow_writer_gets_the_state_of_its_boundary(world, straight, tmp_path, monkeypatch):
    opened, write, saved = threading.Event(), ck.write_checkpoint, 2 * COLLECT

    def gated(*values):
        assert opened.wait(PATIENCE_S)
        write(*values)

    class Opening(AlphaRL):
        def step(self):
            super().step()
            if self.steps == saved + 20:
                opened.set()

    monkeypatch.setattr(ck, "write_checkpoint", gated)
    run = RunConfig(n_steps=STEPS, checkpoint_every=saved, metrics_every=5, validate_every=EVERY)
    train(lambda: Opening(CudaDevice(), *world), run, tmp_path, 0, {}, quiet=True)
    for path in ck.list_checkpoints(tmp_path):
        found = ck.read_checkpoint(path)
        assert differing(bits(found.arrays), straight[0][found.step]) == [], found.step
    assert [p.name for p in ck.list_checkpoints(tmp_path)] == [f"checkpoint-{STEPS}.bin", f"checkpoint-{saved}.bin"]


def test_a_killed_process_ends_as_two_left_alone(tmp_path):
    """At step 1000 the validation begun at 990 is under way; its result is due at 1090."""
    steps, every, validate = 2000, 500, 330
    processes = [child.start("cuda", tmp_path / str(i), steps, every, validate) for i in range(2)]
    child.kill_when_halted(child.start("cuda", tmp_path / "killed", steps, every, validate, halt=1013))
    resumed = child.end(child.start("cuda", tmp_path / "killed", steps, every, validate))
    straight, again = map(child.end, processes)
    assert straight == again and straight["step"] == steps
    assert resumed == straight | {"attempt": 1}
