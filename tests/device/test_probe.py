"""Every reason why a GPU can't be used, told by a fake CUDA; and on this machine, if it has none, by the real one."""

import ctypes
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import structlog

from trainer.device import NumpyDevice, open_device, probe
from trainer.errors import UsageError

H200 = {"name": b"NVIDIA H200", "major": 9, "minor": 0}


class CudaError(RuntimeError):
    pass


class FakeCuda:
    """cupy and nvmath as far as the probe asks them; attributes are what a machine may have wrong."""

    def __init__(self):
        self.wheels = {"cupy-cuda13x": "14.2.0"}
        self.driver, self.toolkit, self.compiler = 13000, 13020, (13, 0)
        self.cards, self.refusal = [H200], None
        self.nvmath, self.cublas, self.bindings = True, True, True

    def install(self, patch):
        patch.setattr(probe, "installed_wheels", lambda: self.wheels)
        for name in ("cupy", "nvmath", "nvmath.bindings", "nvmath.bindings.cublasLt", "cuda"):
            patch.setitem(sys.modules, name, None)  # importing it fails
        if self.bindings:
            for name in ("cuda", "cuda.bindings", "cuda.bindings.driver"):
                patch.setitem(sys.modules, name, ModuleType(name))
        if self.wheels:
            patch.setitem(sys.modules, "cupy", self._cupy())
        if self.nvmath:
            bindings, cublas = ModuleType("nvmath.bindings"), ModuleType("nvmath.bindings.cublasLt")
            cublas.get_property = lambda kind: 13 if self.cublas else self._fail("libcublas.so.13: cannot open\nmore")
            bindings.cublasLt = cublas
            for name, module in (("nvmath", ModuleType("nvmath")), ("nvmath.bindings", bindings)):
                patch.setitem(sys.modules, name, module)
            patch.setitem(sys.modules, "nvmath.bindings.cublasLt", cublas)

    def _cupy(self):
        cupy = ModuleType("cupy")
        runtime = SimpleNamespace(
            driverGetVersion=lambda: self.driver,
            runtimeGetVersion=lambda: self.toolkit,
            getDeviceCount=lambda: self._fail(self.refusal) if self.refusal else len(self.cards),
            getDeviceProperties=lambda i: self.cards[i],
            CUDARuntimeError=CudaError,
        )
        nvrtc = SimpleNamespace(getVersion=lambda: self.compiler or self._fail('Failure finding "libnvrtc.so.13"'))
        cupy.cuda = SimpleNamespace(runtime=runtime, nvrtc=nvrtc)
        return cupy

    @staticmethod
    def _fail(words):
        raise CudaError(words)


@pytest.fixture
def why(monkeypatch):
    """What the probe says of a fake CUDA with these attributes changed."""

    def ask(**changes):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in changes.pop("env", {}).items():
            monkeypatch.setenv(name, value)
        fake = FakeCuda()
        vars(fake).update(changes)
        fake.install(monkeypatch)
        return probe.why_unavailable()

    return ask


def test_nothing_wrong(why):
    assert why() is None


@pytest.mark.parametrize(
    "changes, what, advice",
    [
        ({"wheels": {}}, "cupy is not installed", "pip install"),
        (
            {"wheels": {"cupy-cuda12x": "14.1.0", "cupy-cuda13x": "14.2.0"}},
            "several CuPy wheels are installed (cupy-cuda12x 14.1.0 and cupy-cuda13x 14.2.0)",
            "pip uninstall cupy-cuda12x cupy-cuda13x, then",
        ),
        ({"driver": 0}, "no NVIDIA driver on this machine", "--device cpu"),
        (
            {"driver": 12040},
            "driver is too old: it goes up to CUDA 12.4, and cupy-cuda13x needs CUDA 13",
            "pip uninstall cupy-cuda13x and pip install 'foxhunt[gpu-cu12]'",
        ),
        (
            {"driver": 11080, "wheels": {"cupy-cuda12x": "14.2.0"}, "toolkit": 12090},
            "too old: it goes up to CUDA 11.8, and cupy-cuda12x needs CUDA 12",
            "update the driver",
        ),
        ({"cards": []}, "no NVIDIA GPU is visible;", "nvidia-smi"),
        (
            {"cards": [], "env": {"CUDA_VISIBLE_DEVICES": "-1"}},
            "visible with CUDA_VISIBLE_DEVICES='-1'",
            "check nvidia-smi",
        ),
        ({"refusal": "cudaErrorNoDevice: none\nlist"}, "visible (cudaErrorNoDevice: none)", "nvidia-smi"),
        ({"cards": [H200 | {"name": b"Tesla V100", "major": 7}]}, "Tesla V100 is sm_70", "sm_80"),
        ({"compiler": None}, 'NVRTC does not load (Failure finding "libnvrtc.so.13")', "pip install"),
        (
            {"compiler": (13, 2), "driver": 12080, "toolkit": 12090, "wheels": {"cupy-cuda12x": "14.2.0"}},
            "NVRTC is 13.2, and the driver goes up to CUDA 12.8",
            "pip install 'foxhunt[gpu-cu12]'",
        ),
        ({"nvmath": False}, "nvmath-python", "pip install"),
        ({"bindings": False}, "cuda-bindings is not installed", "pip install"),
        ({"cublas": False}, "cuBLASLt does not load (libcublas.so.13: cannot open)", "pip install"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_where_and_what_to_do_in_one_line(why, changes, what, advice):
    said = why(**changes)
    assert what in said and advice in said[said.index(what) :], said
    assert "\n" not in said


def test_a_driver_may_be_newer_than_the_wheel(why):
    assert why(wheels={"cupy-cuda12x": "14.2.0"}, toolkit=12090, compiler=(12, 9)) is None


def test_cuda_asked_for_is_an_error_and_auto_says_why_it_goes_on_without(monkeypatch):
    fake = FakeCuda()
    fake.driver = 0
    fake.install(monkeypatch)
    with pytest.raises(UsageError, match=r"^--device cuda: no NVIDIA driver") as caught:
        open_device("cuda")
    assert caught.value.exit_code == 2
    with structlog.testing.capture_logs() as lines:
        assert isinstance(open_device("auto"), NumpyDevice)
    assert [line["event"] for line in lines] == ["no GPU is used"] and "no NVIDIA driver" in lines[0]["why"]


def test_auto_is_silent_where_cuda_was_never_installed(monkeypatch):
    fake = FakeCuda()
    fake.wheels = {}
    fake.install(monkeypatch)
    with structlog.testing.capture_logs() as lines:
        assert isinstance(open_device("auto"), NumpyDevice)
    assert lines == []


@pytest.mark.skipif(probe.why_unavailable() is None, reason="this machine has a GPU")
def test_the_command_says_it_in_one_line_with_exit_2():
    words = [sys.executable, "-m", "trainer", "bench", "--steps", "10", "--device", "cuda"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: --device cuda: ") and done.stderr.count("\n") == 1, done.stderr


class FakeLibrary:
    """NVML: `card` is the status of a look-up, `rows` the processes on it."""

    def __init__(self, rows=(), card=0, power=0):
        self.rows, self.card, self.power, self.asked = rows, card, power, []

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id, handle):
        self.asked.append(bus_id)
        return self.card

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, rows):
        asked = ctypes.cast(count, ctypes.POINTER(ctypes.c_uint))
        room, asked[0] = asked[0], len(self.rows)
        if room < len(self.rows):
            return 7  # insufficient size
        for i, (pid, used) in enumerate(self.rows):
            rows[i].pid, rows[i].used = pid, used
        return 0

    def nvmlDeviceGetPowerState(self, handle, state):
        return self.power


def test_other_processes_on_the_card_are_named_with_their_sizes():
    library = FakeLibrary([(os.getpid(), 5 << 20), (71, 3 << 30), (72, (1 << 64) - 1)])
    others = probe.Management("0000:1B:00.0", library).others()
    assert others == {71: 3 << 30, 72: None} and library.asked == [b"0000:1B:00.0"]
    with structlog.testing.capture_logs() as lines:
        probe.warn_of_others(others)
        probe.warn_of_others({})
    (line,) = lines
    assert line["log_level"] == "warning" and line["others"] == "pid 71: 3,072 MiB, pid 72: size unknown"


def test_more_processes_than_there_was_room_for_are_asked_for_again():
    rows = [(1 << 22 | i, i) for i in range(150)]
    assert probe.Management("0000:1B:00.0", FakeLibrary(rows)).others() == dict(rows)


def test_a_card_that_does_not_say_has_no_known_processes():
    assert probe.Management("0000:1B:00.0", FakeLibrary([(71, 1)], card=15)).others() == {}


@pytest.fixture
def first_context(monkeypatch):
    monkeypatch.setattr(probe, "_before", None)


def test_under_a_foreign_pid_this_process_is_not_taken_for_another(first_context):
    """In a container NVML gives the host's pids, this process's among them."""
    library = FakeLibrary([(71, 3 << 30)])
    card = probe.Management("0000:1B:00.0", library)
    probe.remember_others(card.others())
    library.rows = [(71, 3 << 30), (4_100_000, 9 << 30)]  # the second is this process
    assert card.others() == {71: 3 << 30}
    library.rows = [(4_100_000, 9 << 30)]
    assert card.others() == {}
    probe.remember_others({4_100_000: None})  # a second device of the process: its own context is there already
    assert card.others() == {}


def test_where_pids_are_the_own_ones_those_that_came_later_count(first_context):
    library = FakeLibrary([])
    card = probe.Management("0000:1B:00.0", library)
    probe.remember_others(card.others())
    library.rows = [(os.getpid(), 9 << 30), (72, 1 << 30)]
    assert card.others() == {72: 1 << 30}


@pytest.mark.parametrize("card, power, lost", [(0, 0, False), (0, 3, False), (15, 0, 1), (0, 15, 1), (6, 0, 1)])
def test_a_lost_card_is_known_by_the_driver(card, power, lost):
    assert probe.Management("0000:1B:00.0", FakeLibrary(card=card, power=power)).lost() == lost
