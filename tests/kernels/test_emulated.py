"""Every CUDA kernel on the CPU (tests/kernels/emulator) against its float64 reference, held to what a GPU is held to.

A case runs twice: its threads and blocks first to last over one garbage in the outputs, then last to first over another
one, with a watch on shared memory. Both give the same bits, and no race. All kernels are emulated: an instruction that
has no stand-in is a failure, not a skip.
"""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from kernels.spec import Arg, Kernel
from tests.kernels.cases import CASES, RUNS, exported
from tests.kernels.emulator.emulator import EmulationError, Emulator, Program, translated, why_not
from tests.kernels.limits import LOOSER, check
from trainer.device.launches import variants
from trainer.device.source import kernel_source

KERNELS = exported()
MOST = 300  # rows: larger cases have more rows than a grid has threads, which one block shows as well
SMALL = [(case, size) for case, size in RUNS if size <= MOST]
TRANSLATED = [case for case in CASES if case.kernel.source.exists()]
LOOPING = [case for case in TRANSLATED if re.search(r"FOR_EACH\(|gridDim", case.kernel.source.read_text())]
WRONG = why_not()

needs_emulator = pytest.mark.skipif(bool(WRONG), reason=WRONG)


@pytest.fixture(scope="module")
def emulator(request, tmp_path_factory):
    """Objects stay in pytest's cache, where workers and later runs find them."""
    cache = getattr(request.config, "cache", None)
    return Emulator(cache.mkdir("emulator") if cache else tmp_path_factory.mktemp("emulator"))


def largest(case):
    return max(size for size in case.sizes if size <= MOST)


def options(case, arrays):
    """The functions of every variant of the kernel that may run at these sizes."""
    return variants(case.kernel, case.kernel.bind(arrays), case.scalars(arrays))


def launched(emulator, case, values, functions, program=None, backwards=False, watch=False):
    """One emulated launch -> what it wrote, by name."""
    arrays = case.typed(values, np.float32, poison=int(backwards))
    after = emulator.launch(case.kernel, arrays, functions, program, backwards=backwards, watch=watch)
    return {arg.name: after[i] for i, arg in case.written()}


def compare(emulator, case, size, program=None, narrow=False):
    """All variants of a kernel at one size: right, whatever the order of its threads, and without races.

    narrow: with grids one block wide, whatever the launch plan says.
    """
    values = case.values(size)
    program = program or emulator.program(case.kernel)
    for functions in options(case, case.typed(values, np.float32)):
        if narrow:
            functions = [(entry, (1, *grid[1:]), block, shared) for entry, grid, block, shared in functions]
        got = launched(emulator, case, values, functions, program)
        again = launched(emulator, case, values, functions, program, backwards=True, watch=True)
        assert not (races := program.races()), "\n".join(races)
        check(case, got, values)
        assert [name for name in got if got[name].tobytes() != again[name].tobytes()] == [], "two launches differ"


@needs_emulator
@pytest.mark.parametrize("case, size", SMALL, ids=[f"{case.id}-{size}" for case, size in SMALL])
def test_emulated_kernel_equals_its_reference(emulator, case, size):
    if case not in TRANSLATED:
        pytest.skip(f"{case.kernel.name}: no CUDA source yet")
    compare(emulator, case, size)


@needs_emulator
@pytest.mark.parametrize("case", LOOPING, ids=lambda case: case.id)
def test_kernels_that_loop_over_the_grid_need_no_more_than_a_block(emulator, case):
    compare(emulator, case, largest(case), narrow=True)


def test_every_kernel_is_emulated_at_some_size():
    assert {case.kernel.name for case, _ in SMALL} == KERNELS.keys()


def test_kernels_with_looser_limits_are_few_and_there():
    assert LOOSER.keys() <= {case.kernel.name for case in CASES}
    assert len(LOOSER) <= 6, "a new one needs its reason in limits.py, and the figure that shows it"


@pytest.mark.parametrize(
    "module, name, found, says",
    [
        ("platform", "machine", "aarch64", "on x86-64 Linux alone, not on aarch64"),
        ("platform", "system", "Darwin", "on x86-64 Linux alone, not on .*Darwin"),
        ("shutil", "which", None, r"through g\+\+, which is not installed"),
    ],
)
def test_a_machine_that_can_not_emulate_says_why(monkeypatch, module, name, found, says):
    for part, attribute, value in (("platform", "system", "Linux"), ("platform", "machine", "x86_64")):
        monkeypatch.setattr(f"{part}.{attribute}", lambda value=value: value)
    monkeypatch.setattr(f"{module}.{name}", lambda *_: found)
    assert re.search(says, why_not())


@needs_emulator
@pytest.mark.parametrize("name", ["mamba2_mixer", "mamba2_mixer_bwd"])
def test_nan_outlives_tf32(emulator, name):
    """In the form that CUDA's arithmetic gives it: one more in its last bits, as in a rounding, would make it -0."""
    case, _ = last_small(name, "small profile in TF32")
    arrays = case.typed(case.values(1), np.float32)
    (functions,) = options(case, arrays)[:1]
    inner = KERNELS[name].bind(arrays)["DI"]
    for i, arg in enumerate(case.kernel.args):
        if arg.role != "in":
            continue
        columns = [0, inner, inner + 64, inner + 128, -1] if arg.name == "zcbxdt" else [-1]  # of z, C, B, x, dt
        for column in columns:
            values = list(arrays)
            values[i] = arrays[i].copy()
            values[i].reshape(-1, arrays[i].shape[-1])[0].view(np.uint32)[column] = 0x7FFFFFFF
            got = launched(emulator, case, values, functions)
            assert [key for key in got if not np.isnan(got[key]).any()] == [], (arg.name, column)


# -- faults that must be seen --


def edited(kernel, old, new, which=0):
    """The text of a kernel with one occurrence of `old` replaced."""
    parts = kernel_source(kernel).split(old)
    assert len(parts) > which + 1, f"{old!r} is not in {kernel.name} {which + 1} times"
    return old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :])


def last_small(name, label=""):
    """The kernel's case at its largest small size."""
    return next((case, largest(case)) for case in CASES if case.kernel.name == name and label in case.label)


@needs_emulator
@pytest.mark.parametrize(
    "name, old, new",
    [
        ("lecun_tanh", "SCALE * tanhf", "1.00001f * SCALE * tanhf"),
        ("grad_norm", "o = 16; o; o /= 2", "o = 8; o; o /= 2"),  # half a warp's sum
        ("grad_norm", "before == blocks - 1", "before == 0"),  # the first block sums what the others have not written
        ("gae", "carry * carried", "carry + carried"),
        ("gather_windows", "(x - mean)", "(x + mean)"),
    ],
)
def test_wrong_arithmetic_is_seen(emulator, tmp_path, name, old, new):
    case, size = last_small(name)
    program = Program(tmp_path, name, edited(case.kernel, old, new))
    with pytest.raises(AssertionError, match=r"is off by more than|two launches differ|not equal|not written"):
        compare(emulator, case, size, program)


@needs_emulator
@pytest.mark.parametrize(
    "name, label, barrier, which",
    [
        ("grad_norm", "", "__syncthreads();", 0),  # of a block
        ("c51_loss", "", "__syncwarp();", 0),  # of a warp
        ("mamba2_mixer_bwd", "seed", "pair_sync(h);", 0),  # of two warps
        ("mamba2_mixer_bwd", "seed", "pair_sync(h);", 1),
        ("mamba2_mixer", "seed", "__syncwarp();", 0),  # only between reading and overwriting
    ],
)
def test_a_missing_barrier_is_seen(emulator, tmp_path, name, label, barrier, which):
    case, _ = last_small(name, label)
    program = Program(tmp_path, name, edited(case.kernel, barrier, "", which))
    values = case.values(min(case.sizes))
    launched(emulator, case, values, options(case, case.typed(values, np.float32))[0], program, watch=True)
    races = program.races()
    assert races and all("and no barrier stands between" in race for race in races)
    assert any(".cu" in race.split(" ")[0] for race in races), races  # the place, in the kernel's own files
    assert program.races() == [], "told once"


@needs_emulator
def test_a_copy_that_is_not_waited_for_is_seen(emulator, tmp_path):
    case, size = last_small("mamba2_mixer", "seed")
    program = Program(tmp_path, "mixer", edited(case.kernel, "copies_wait<ROUNDS - 2>();", ""))
    with pytest.raises(AssertionError, match="not written, or not finite"):
        compare(emulator, case, size, program)


TOY = """
extern "C" __global__ void beyond(float* x, const float* y, const int N) { x[N + threadIdx.x] = y[threadIdx.x]; }
extern "C" __global__ void input(float* x, float* y, const int N) { y[threadIdx.x] = x[threadIdx.x] = 2.0f; }
extern "C" __global__ void leaves(float* x, const float* y, const int N) {
    if (threadIdx.x == 7) return;
    __syncthreads();
}
extern "C" __global__ void part(float* x, const float* y, const int N) {
    if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(0xffffu, y[threadIdx.x], 1);
}
extern "C" __global__ void greedy(float* x, const float* y, const int N) {
    extern __shared__ float shared[];
    shared[threadIdx.x] = y[threadIdx.x];
}
extern "C" __global__ void unset(float* x, const float* y, const int N) {
    __shared__ float shared[32];
    if (threadIdx.x != 3) shared[threadIdx.x] = y[threadIdx.x];
    x[threadIdx.x] = shared[threadIdx.x];
}
"""
TOYS = Kernel("toy", (Arg("x", "real", "out", "N"), Arg("y", "real", "in", "N")), lambda x, y: None)


@pytest.fixture(scope="module")
def toy(emulator):
    if WRONG:
        pytest.skip(WRONG)
    program = Program(emulator.folder, "toy", TOY)

    def launch(entry, shared=0, block=32):
        arrays = [np.zeros(32, np.float32), np.ones(32, np.float32)]
        return emulator.launch(TOYS, arrays, [(entry, (1,), (block,), shared)], program)

    return launch


@pytest.mark.parametrize(
    "entry, shared, says",
    [
        ("beyond", 0, "toy: writes outside of x"),
        ("input", 0, "toy: changes its input y"),
        ("leaves", 0, r"leaves: block \(0, 0, 0\): 31 of 32 threads wait at a barrier for others that never come"),
        ("part", 0, "part: a shuffle of a part of a warp is not emulated"),
        ("greedy", 124, r"greedy: block \(0, 0, 0\) writes behind its 124 bytes of shared memory"),
        ("greedy", 228 << 10, "greedy: no such launch: a block gets 227 KiB"),
    ],
)
def test_what_a_gpu_would_not_forgive_is_said(toy, entry, shared, says):
    with pytest.raises(EmulationError, match=says):
        toy(entry, shared)


def test_a_block_that_no_gpu_has_is_refused_and_the_next_launch_works(toy):
    with pytest.raises(EmulationError, match="no such launch: a block has 1 to 1024 threads"):
        toy("greedy", 128, block=1056)
    toy("greedy", 128)


def test_shared_memory_that_nobody_set_shows(toy):
    x, _ = toy("unset")
    assert np.isnan(x[3]) and np.isfinite(np.delete(x, 3)).all()


def test_an_instruction_without_a_stand_in_is_said():
    with pytest.raises(EmulationError, match=r'nothing stands for this instruction: asm volatile\("brkpt'):
        translated('extern "C" __global__ void stop() { asm volatile("brkpt;"); }')


@needs_emulator
def test_a_text_that_is_no_cuda_says_where(tmp_path):
    with pytest.raises(EmulationError, match=r"kernel broken is no C\+\+ behind shim.h: .*lost"):
        Program(tmp_path, "broken", 'extern "C" __global__ void broken() { lost = 1; }')


@needs_emulator
def test_a_built_text_is_found_again(tmp_path):
    text = 'extern "C" __global__ void nothing(int n) { n = %d; }'
    first = Program(tmp_path, "nothing", text % 1)
    made = first.path.stat().st_mtime_ns
    assert Program(tmp_path, "nothing", text % 1).path.stat().st_mtime_ns == made
    other = Program(tmp_path, "nothing", text % 2)
    assert other.path != first.path and not first.path.exists(), "what an older text made goes"
    other.launch(("nothing", (1,), (32,), 0), [ctypes.c_int(3)], backwards=False, watch=False)
