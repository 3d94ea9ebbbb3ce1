"""What every kernel promises, shown on its cases: precision, whole outputs, untouched inputs, refusals, recording."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels.spec import REAL, Kernel
from tests.kernels.cases import CASES, RUNS, exported
from trainer.device.base import NumpyDevice
from trainer.device.cuda import phases
from trainer.device.recording import RecordingDevice
from trainer.device.source import kernel_source

KERNELS = exported()
SMALL = 300  # cases up to this size are run where the size does not matter


def small(case) -> int:
    return max(size for size in case.sizes if size <= SMALL)


def launched(case, values, real, poison=0, device=None) -> list[Any]:
    arrays = case.typed(values, real, poison)
    (device or NumpyDevice()).launch(case.kernel, *arrays)
    return arrays


@pytest.fixture(scope="module", params=RUNS, ids=[f"{case.id}-{size}" for case, size in RUNS])
def run(request):
    """One case at one size: in float32, again over other garbage in its outputs, and in float64."""
    case, size = request.param
    values = case.values(size)
    device = NumpyDevice()
    results = [launched(case, values, *how, device) for how in ((np.float32, 0), (np.float32, 1), (np.float64, 0))]
    yield SimpleNamespace(case=case, before=case.typed(values, np.float32), results=results)


def test_every_kernel_has_a_case():
    """A kernel without a case is a kernel that no test here and no GPU test looks at."""
    assert set(KERNELS) == {case.kernel.name for case in CASES}
    assert len({case.id for case in CASES}) == len(CASES)


@pytest.mark.parametrize("name", KERNELS)
def test_the_table_names_the_arguments_of_the_reference(name):
    kernel = KERNELS[name]
    assert kernel.name == name, "the CUDA source is found by this name"
    parameters = inspect.signature(kernel.reference).parameters.values()
    named = [p.name for p in parameters if p.kind != p.VAR_POSITIONAL]
    rest = len(named) < len(parameters)  # `*arrays` takes what comes after the named ones
    assert [a.name for a in kernel.args][: len(named) if rest else None] == named


def test_float32_is_within_the_tolerance_of_float64(run):
    """atol + rtol |ref|, where a sum of cancelling terms is as exact as its largest term; integers are equal."""
    single, _, double = run.results
    atol, rtol, why = run.case.kernel.tolerance
    assert why
    for i, arg in run.case.written():
        got, want = single[i], double[i]
        if run.case.exact(arg):
            np.testing.assert_array_equal(got, want, err_msg=arg.name)
            continue
        assert arg.dtype != REAL or (got.dtype == np.float32 and np.isfinite(got).all()), arg.name
        if np.array_equal(got, want):  # copies, mostly, and large ones
            continue
        scale = max(float(np.abs(want).max()), 1.0)
        assert (np.abs(got - want.astype(np.float64)) <= atol * scale + rtol * np.abs(want)).all(), arg.name


def test_outputs_are_written_whole_and_never_read(run):
    """Other garbage in the outputs changes no bit of the result, which also says that two runs have the same bits."""
    first, second, _ = run.results
    for i, arg in run.case.written():
        assert first[i].tobytes() == second[i].tobytes(), arg.name


def test_inputs_are_left_alone(run):
    for i, arg in enumerate(run.case.kernel.args):
        if arg.role == "in":
            assert all(run.before[i].tobytes() == after[i].tobytes() for after in run.results[:2]), arg.name


@pytest.mark.parametrize("name", KERNELS)
def test_cases_are_not_trivial(name):
    """Some case has something else than zero in each input, and changes each array that the kernel may change."""
    seen, changed = set(), set()
    cases = [case for case in CASES if case.kernel.name == name]
    for case in cases:
        values = case.values(small(case))
        before, after = case.typed(values, np.float32), launched(case, values, np.float32)
        for arg, old, new in zip(case.kernel.args, before, after):
            if arg.role in ("in", "inout") and np.any(old):
                seen.add(arg.name)
            if arg.role == "inout" and old.tobytes() != new.tobytes():
                changed.add(arg.name)
    roles = {role: {a.name for a in KERNELS[name].args if a.role == role} for role in ("in", "inout")}
    assert roles["inout"] - changed == set()
    assert roles["in"] - seen == set()


def strided(array: np.ndarray) -> np.ndarray:
    axis = int(np.argmax(array.shape))
    return np.repeat(array, 2, axis)[(slice(None),) * axis + (slice(None, None, 2),)]


def longer(array: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate([array, array.take([0], axis)], axis)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_wrong_arrays_are_refused(case):
    """A strided view, another type, another number of dimensions, and a size that contradicts another argument's."""
    values, device = case.typed(case.values(small(case)), np.float32), NumpyDevice()
    letters = [d for arg in case.kernel.args for d in arg.dims]

    def refused(error, i, wrong, match):
        with pytest.raises(error, match=match):
            device.launch(case.kernel, *values[:i], wrong, *values[i + 1 :])

    for i, arg in enumerate(case.kernel.args):
        if arg.role == "scalar":
            continue
        array, who = values[i], f"kernel {case.kernel.name}: {arg.name} "
        if array.size > 1:
            refused(ValueError, i, strided(array), who + "is not C-contiguous")
        other = np.int16 if arg.dtype == REAL else np.float16
        refused(TypeError, i, np.zeros(array.shape, other), f"{who}is {np.dtype(other)}, expected")
        refused(ValueError, i, array[None], who + "has shape")
        for axis, d in enumerate(arg.dims):
            if d.isdigit() or letters.count(d) > 1:
                refused(ValueError, i, longer(array, axis), f"kernel {case.kernel.name}: .* has shape")
    with pytest.raises(TypeError, match=f"kernel {case.kernel.name}: {len(values) - 1} arguments for"):
        device.launch(case.kernel, *values[1:])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_recorded_equals_eager_at_every_launch(case):
    """Two warm-up calls, the recording, and replays, with state that goes from launch to launch."""
    values = case.values(min(case.sizes))
    host = case.typed(values, np.float32)
    sides = []
    for device in (NumpyDevice(), RecordingDevice()):
        arrays = list(host)
        for i, arg in enumerate(case.kernel.args):
            if arg.role != "scalar":
                arrays[i] = device.empty(host[i].shape, host[i].dtype)
                device.fill(arrays[i], host[i])
        sides.append((device, arrays, device.region(partial(device.launch, case.kernel, *arrays), case.kernel.name)))
    for _ in range(5):
        for _, _, region in sides:
            region()
        (eager, ours, _), (recording, theirs, _) = sides
        for i, arg in case.written():
            assert eager.to_host(ours[i]).tobytes() == recording.to_host(theirs[i]).tobytes(), arg.name


# -- what can be said of a CUDA source without a GPU --

C_TYPES = {
    REAL: "float",
    "float32": "float",
    "int32": "int",
    "int64": "i64",
    "uint32": "u32",
    "int8": "i8",
    "uint8": "u8",
}
TRANSLATED = [name for name, kernel in KERNELS.items() if kernel.source.exists()]


def signature(text: str, entry: str) -> list[tuple[str, str]]:
    """(type, name) of each parameter of a CUDA function, without restrict; the list may be a macro."""
    text = re.sub(r"//.*", "", text).replace("\\\n", " ")
    macros = dict(re.findall(r"^#define (\w+) +(.*)$", text, re.MULTILINE))
    found = re.search(rf'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?{entry}\(([^)]*)\)', text)
    assert found, f"no function {entry}"
    parameters = macros.get(found[1].strip(), found[1]).replace("__restrict__", "").replace("*", " * ")
    words = [p.split() for p in parameters.split(",")]
    return [(" ".join(w[:-1]).removeprefix("const ") if "*" not in w else " ".join(w[:-1]), w[-1]) for w in words]


def expected(kernel: Kernel, letters: Iterable[str]) -> list[tuple[str, str]]:
    """What the argument table asks for: pointers, const for inputs, then the size letters as int."""
    found = []
    for arg in kernel.args:
        pointer = {"scalar": "{}", "in": "const {} *"}.get(arg.role, "{} *")
        found.append((pointer.format(C_TYPES[arg.dtype]), arg.name))
    return [*found, *(("int", letter) for letter in letters)]


@pytest.mark.parametrize("name", TRANSLATED)
def test_cuda_functions_take_what_the_table_says(name):
    """Bare pointers: an argument out of order would compile and read another array."""
    kernel = KERNELS[name]
    for case in (c for c in CASES if c.kernel is kernel):
        values = case.typed(case.values(small(case)), np.float32)
        sizes = kernel.bind(values)
        for entry, *_ in phases(kernel, sizes, case.scalars(values)):
            assert signature(kernel_source(kernel), entry) == expected(kernel, sizes), entry


@pytest.mark.parametrize("name", TRANSLATED)
def test_launchers_give_grids_that_a_gpu_takes(name):
    kernel = KERNELS[name]
    for case, size in RUNS:
        if case.kernel is not kernel:
            continue
        values = case.typed(case.values(size), np.float32)
        for entry, grid, block, shared in phases(kernel, kernel.bind(values), case.scalars(values)):
            assert all(0 < n <= limit for n, limit in zip(grid, (2**31 - 1, 65535, 65535))), (entry, grid)
            assert 0 < np.prod(block) <= 1024 and 0 <= shared <= 227 << 10, (entry, block, shared)
