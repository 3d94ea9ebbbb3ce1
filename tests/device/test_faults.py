"""What a user is told of CUDA's errors, by fakes of their classes; tests/gpu/test_faults.py meets real ones."""

import pytest

from trainer.device import NumpyDevice, faults, probe
from trainer.device.base import Region
from trainer.errors import DeviceLost, DeviceMemory, FoxhuntError

NAMES = {
    2: "cudaErrorMemoryAllocation: out of memory",
    46: "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    214: "cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    719: "cudaErrorLaunchFailure: unspecified launch failure",
    999: "cudaErrorUnknown: unknown error",
}


def raised(name, module, base=RuntimeError, status=None, text=""):
    error = type(name, (base,), {"__module__": module})(text)
    if status is not None:
        error.status = status
    return error


def cuda(status):
    return raised("CUDARuntimeError", "cupy_backends.cuda.api.runtime", status=status, text=NAMES[status] + "\nmore")


@pytest.fixture(autouse=True)
def card(monkeypatch):
    """No NVML and nothing behind a failed cuBLAS, unless a test says so; a region was launched."""

    class Card:
        dead, beside = False, {}

        def lost(self):
            return self.dead

        def others(self):
            return self.beside

    monkeypatch.setattr(faults, "_management", lambda: Card)
    monkeypatch.setattr(Card, "lost", classmethod(lambda c: c.dead))
    monkeypatch.setattr(Card, "others", classmethod(lambda c: c.beside))
    monkeypatch.setattr(faults, "_cause", lambda: None)
    monkeypatch.setattr(Region, "launched", "collect_and_learn")
    return Card


def one_line(error):
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize("status", [46, 100, 214, 999])
def test_a_card_that_is_gone_is_worth_another_attempt(status):
    found = faults.of_device_error(cuda(status))
    assert isinstance(found, DeviceLost) and found.exit_code == 75
    text = one_line(found)
    assert NAMES[status] in text and "last launched: collect_and_learn" in text and "run the same command again" in text


@pytest.mark.parametrize("status", [700, 719])
def test_a_kernels_fault_is_a_bug_unless_the_driver_has_lost_the_card(status, card):
    found = faults.of_device_error(cuda(status))
    assert type(found) is FoxhuntError and found.exit_code == 1
    assert "last launched: collect_and_learn" in one_line(found) and "compute-sanitizer" in str(found)
    card.dead = True
    assert faults.of_device_error(cuda(status)).exit_code == 75


@pytest.mark.parametrize(
    "error",
    [
        cuda(2),
        raised("OutOfMemoryError", "cupy.cuda.memory", MemoryError, text="Out of memory allocating 1,024 bytes"),
        raised("cuBLASLtError", "nvmath.bindings.cublasLt", status=3, text="ALLOC_FAILED (3)"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory(error, card):
    alone = faults.of_device_error(error)
    assert isinstance(alone, DeviceMemory) and alone.exit_code == 2
    assert "env.n_backtests" in one_line(alone)
    card.beside = {71: 3 << 30}
    shared = faults.of_device_error(error)
    assert isinstance(shared, DeviceLost) and shared.exit_code == 75 and "pid 71 3,072 MiB" in one_line(shared)


def test_cublas_says_little_so_cuda_is_asked(monkeypatch):
    blas = raised("cuBLASLtError", "nvmath.bindings.cublasLt", status=13, text="EXECUTION_FAILED (13)")
    assert "EXECUTION_FAILED" in str(faults.of_device_error(blas)) and faults.of_device_error(blas).exit_code == 1
    monkeypatch.setattr(faults, "_cause", lambda: cuda(214))
    assert faults.of_device_error(blas).exit_code == 75 and "ECC" in str(faults.of_device_error(blas))


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError(), FoxhuntError("x"), KeyboardInterrupt()])
def test_other_errors_are_none_of_its_business(error):
    assert faults.of_device_error(error) is None


def test_the_region_launched_last_is_known():
    device = NumpyDevice()
    first, second = device.region(lambda: None, "first"), device.region(lambda: 1 / 0, "second")
    first()
    assert Region.launched == "first"
    with pytest.raises(ZeroDivisionError):
        second()
    assert Region.launched == "second"


def test_memory_that_ran_out_in_a_container_is_not_blamed_on_this_process(monkeypatch):
    """NVML gives the host's pids there: the own one looks like another process, and exit 75 would try for ever."""
    from tests.device.test_probe import FakeLibrary

    library = FakeLibrary([])
    card = probe.Management("0000:1B:00.0", library)
    monkeypatch.setattr(probe, "_before", None)
    probe.remember_others(card.others())
    library.rows = [(4_100_000, 9 << 30)]
    monkeypatch.setattr(faults, "_management", lambda: card)
    assert faults.of_device_error(cuda(2)).exit_code == 2
