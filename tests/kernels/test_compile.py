"""Every kernel compiles, shown without a GPU: NVRTC is a library of its own, its wheel one of the dev dependencies."""

import ctypes
from importlib import metadata

import pytest

from tests.kernels.cases import exported
from trainer.device.source import OPTIONS, kernel_source, read_resources

KERNELS = exported()
WHEEL = "nvidia-cuda-nvrtc"
# Assembled for the architecture that is measured, which shows registers and shared memory; for the oldest and the
# newest one only translated, which shows what the language or an instruction set lacks.
TARGETS = ("compute_80", "sm_90", "compute_100")


class Compiler:
    """The few functions of NVRTC that a compilation takes, by ctypes."""

    def __init__(self) -> None:
        files = {path.name: path for path in metadata.files(WHEEL) or []}
        libraries = [path for name, path in sorted(files.items()) if ".so" in name and ".alt." not in name]
        # The builtins first: the compiler looks for them by name, and finds what is loaded already.
        for path in sorted(libraries, key=lambda path: "builtins" not in path.name):
            self.library = ctypes.CDLL(str(path.locate()), mode=ctypes.RTLD_GLOBAL)

    def compile(self, name: str, text: str, target: str) -> tuple[bool, str]:
        """Whether it compiles, and the log."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        options = [option.encode() for option in (*OPTIONS, f"-arch={target}", "--ptxas-options=-v")]
        calls = self.library
        assert calls.nvrtcCreateProgram(ctypes.byref(program), text.encode(), f"{name}.cu".encode(), 0, None, None) == 0
        failed = calls.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        calls.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        calls.nvrtcGetProgramLog(program, log)
        calls.nvrtcDestroyProgram(ctypes.byref(program))
        return not failed, log.value.decode()


@pytest.fixture(scope="module")
def compiler():
    try:
        return Compiler()
    except (metadata.PackageNotFoundError, OSError, AttributeError) as error:
        pytest.skip(f"no CUDA compiler: {WHEEL} is not installed or does not load ({error})")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_compiles(compiler, name, target):
    compiles, log = compiler.compile(name, kernel_source(KERNELS[name]), target)
    assert compiles, log
    if target.startswith("sm_"):
        found = read_resources(name, log.splitlines())
        assert found and all(entry.registers <= 255 and entry.shared <= 48 << 10 for entry in found), log
        # A card's limit is for both together, and only what a launch asks for is compared with it.
        assert KERNELS[name].general is None or all(entry.shared == 0 for entry in found), log


def test_an_error_is_an_error(compiler):
    text = kernel_source(KERNELS["grad_norm"])
    for body in ("lost = 1;", 'asm volatile("no.such.thing;");'):
        broken = f'extern "C" __global__ void broken() {{ {body} }}'
        compiles, log = compiler.compile("broken", text + broken, "sm_90")
        assert not compiles and log
