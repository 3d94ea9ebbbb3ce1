"""Can a GPU be used here, and who else is on it? Answers in one line each, with what to do.

The checks go from the outside in: wheels, driver, card, architecture, libraries. The first that fails is the answer.
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module, metadata
from typing import Any

import structlog

from trainer.device.memory import mib

WHEELS = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-7-0", "cupy-rocm-6-0", "cupy-rocm-5-0")
OLDEST = 80  # sm_80: the kernels copy asynchronously into shared memory, the products round to TF32
EXTRAS = {13: "foxhunt[gpu]", 12: "foxhunt[gpu-cu12]"}  # by the CUDA version that the driver goes up to
INSTALL = "pip install 'foxhunt[gpu]' (CUDA 13) or 'foxhunt[gpu-cu12]'"
CPU = "or use --device cpu"
ROOM, ATTEMPTS = 64, 3  # processes on a card that are asked for at first; how often for more
_TOO_SMALL = 7  # NVML: insufficient size
_NOT_KNOWN = (1 << 64) - 1  # NVML's "not available"
_GONE = (2, 6, 15)  # NVML: invalid argument and not found (no card with that id any more), GPU is lost

log = structlog.get_logger()

_before: frozenset[int] | None = None  # processes on the card before this one was, None until it is


def why_unavailable() -> str | None:
    """None when a GPU can be used, else the reason in one line with what to do."""
    wheels = installed_wheels()
    if len(wheels) > 1:
        names = " and ".join(f"{name} {version}" for name, version in wheels.items())
        return (
            f"several CuPy wheels are installed ({names}) and overwrite each other; "
            f"pip uninstall {' '.join(wheels)}, then {INSTALL}"
        )
    try:
        import cupy
    except ImportError as error:
        if not wheels:
            return f"cupy is not installed; {INSTALL}, {CPU}"
        return f"cupy does not load ({first_line(error)}); pip uninstall {' '.join(wheels)}, then {INSTALL}"
    return _driver(cupy, next(iter(wheels), "cupy")) or _card(cupy) or _libraries(cupy)


def architecture() -> str:
    """Of the GPU that is used, which must be there, in the compiler's words: "sm_90"."""
    import cupy

    card = cupy.cuda.runtime.getDeviceProperties(0)  # makes no context, so nobody else sees this process on the card
    return f"sm_{card['major']}{card['minor']}"


def installed_wheels() -> dict[str, str]:
    """CuPy's distributions by name, with their versions."""
    found = {}
    for name in WHEELS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _driver(cupy: Any, wheel: str) -> str | None:
    runtime = cupy.cuda.runtime
    if getattr(runtime, "is_hip", False):
        return f"{wheel} is made for AMD cards; pip uninstall {wheel}, then {INSTALL}"
    driver, needed = runtime.driverGetVersion(), runtime.runtimeGetVersion() // 1000
    if not driver:
        return f"no NVIDIA driver on this machine (libcuda.so.1 is missing); install one, {CPU}"
    if driver // 1000 < needed:
        return (
            f"the NVIDIA driver is too old: it goes up to CUDA {_version(driver)}, and {wheel} needs CUDA {needed}; "
            f"update the driver{_other_wheel(driver, wheel)}"
        )
    return None


def _other_wheel(driver: int, wheel: str) -> str:
    extra = EXTRAS.get(driver // 1000)
    return f", or pip uninstall {wheel} and pip install '{extra}'" if extra else ""


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _card(cupy: Any) -> str | None:
    runtime = cupy.cuda.runtime
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    looked = "" if chosen is None else f" with CUDA_VISIBLE_DEVICES={chosen!r}"
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        count, looked = 0, f"{looked} ({first_line(error)})"
    if not count:
        return f"no NVIDIA GPU is visible{looked}; check nvidia-smi and CUDA_VISIBLE_DEVICES, {CPU}"
    card = runtime.getDeviceProperties(0)
    found = 10 * card["major"] + card["minor"]
    if found < OLDEST:
        name = card["name"].decode()
        return f"{name} is sm_{found}, and the kernels need sm_{OLDEST} (A100) or newer; take another card, {CPU}"
    return None


def _libraries(cupy: Any) -> str | None:
    """NVRTC, cuBLASLt and the driver's bindings: libraries of their own, which a wheel for another CUDA version would
    not find."""
    driver = cupy.cuda.runtime.driverGetVersion()
    try:
        compiler = cupy.cuda.nvrtc.getVersion()
    except Exception as error:  # whatever the loader raises: which wheel is wrong shows in its words
        return f"CUDA's compiler NVRTC does not load ({first_line(error)}); {INSTALL}"
    if compiler[0] > driver // 1000:
        return (
            f"CUDA's compiler NVRTC is {compiler[0]}.{compiler[1]}, and the driver goes up to CUDA {_version(driver)}; "
            f"update the driver{_other_wheel(driver, 'nvidia-cuda-nvrtc')}"
        )
    try:
        from nvmath.bindings import cublasLt
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "nvmath"
        said = "nvmath-python is not installed" if missing else f"nvmath-python does not load ({first_line(error)})"
        return f"{said}; {INSTALL}"
    try:
        cublasLt.get_property(0)
    except Exception as error:
        return f"cuBLASLt does not load ({first_line(error)}); {INSTALL}"
    try:
        import_module("cuda.bindings.driver")  # what instantiates a captured region
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "cuda"
        said = "cuda-bindings is not installed" if missing else f"cuda-bindings does not load ({first_line(error)})"
        return f"{said}; {INSTALL}"
    return None


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# -- the card itself, by the driver's management library --


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),  # bytes
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Management:
    """What NVML says of one card, named by its PCI bus id: CUDA_VISIBLE_DEVICES renumbers cards, NVML does not.

    Raises OSError where the library is missing or does not start (a container may hide it).
    """

    def __init__(self, bus_id: str, library: Any = None):
        self.bus_id = bus_id.encode()
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1") if library is None else library
        if status := self.nvml.nvmlInit_v2():
            raise OSError(f"NVML does not start (status {status})")

    def _handle(self) -> tuple[int, ctypes.c_void_p]:
        handle = ctypes.c_void_p()
        return int(self.nvml.nvmlDeviceGetHandleByPciBusId_v2(self.bus_id, ctypes.byref(handle))), handle

    def others(self) -> dict[int, int | None]:
        """Processes on the card but this one: pid -> bytes, None where the driver does not say. Empty when unknown.

        In a container NVML may give the host's pids. This process is then on the list under a number that it does not
        know, so only those count that were there before it was.
        """
        found, own = self._processes(), os.getpid()
        strange = _before is not None and own not in found
        return {pid: used for pid, used in found.items() if pid != own and (not strange or pid in (_before or ()))}

    def _processes(self) -> dict[int, int | None]:
        status, handle = self._handle()
        if status:
            return {}
        room = ROOM
        for _ in range(ATTEMPTS):
            count, rows = ctypes.c_uint(room), (_Process * room)()
            status = self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), rows)
            if status != _TOO_SMALL:
                break
            room = count.value + ROOM  # more may come in between
        return {} if status else {p.pid: None if p.used == _NOT_KNOWN else int(p.used) for p in rows[: count.value]}

    def lost(self) -> bool:
        """True when the card has fallen off the bus or does not answer any more."""
        status, handle = self._handle()
        if not status:
            state = ctypes.c_uint()
            status = int(self.nvml.nvmlDeviceGetPowerState(handle, ctypes.byref(state)))
        return status in _GONE


def management(cupy: Any) -> Management | None:
    """None where NVML is not to be had. Asked for before a context exists: this process is then not on the card."""
    try:
        return Management(cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.runtime.getDevice()))
    except (OSError, AttributeError):  # no library, or one without these functions
        return None


def remember_others(others: dict[int, int | None]) -> None:
    """Who is on the card just before this process makes its first context there."""
    global _before
    if _before is None:
        _before = frozenset(others)


def warn_of_others(others: dict[int, int | None]) -> None:
    """Another process on the card costs time and memory, and makes figures meaningless; it is no error."""
    if others:
        sizes = ", ".join(f"pid {pid}: {'size unknown' if used is None else mib(used)}" for pid, used in others.items())
        log.warning("the GPU is shared: it will be slower, and memory may run out", others=sizes)
