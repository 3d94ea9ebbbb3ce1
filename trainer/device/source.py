"""What NVRTC compiles: a kernel's text with its headers inlined, and what the compiler says of it.

No GPU is needed for any of this: the compiler is a library of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import kernels
from kernels.spec import Kernel
from trainer.device.probe import OLDEST
from trainer.errors import FoxhuntError, UsageError

OPTIONS = ("--std=c++17", "-lineinfo")
EXCERPT = 6  # lines of a compiler's log that are shown
_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"\s*$')
_ERROR = re.compile(r"^(?P<file>[^\s(]+)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<what>.*)$", re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def all_kernels() -> list[Kernel]:
    """Every kernel pair, by name."""
    folder = Path(kernels.__file__).parent
    named = (path.stem for path in folder.glob("*.py") if re.search(r"^KERNEL = ", path.read_text(), re.MULTILINE))
    return [import_module(f"kernels.{name}").KERNEL for name in sorted(named)]


def missing_sources() -> list[str]:
    """Names of the kernels that can't run on a GPU yet, because they have no CUDA source."""
    return [kernel.name for kernel in all_kernels() if not kernel.source.exists()]


def inline_headers(path: Path) -> str:
    """The source with every `#include "x.cuh"` replaced by its text, each header once.

    cupy's compile cache does not see headers reached by -I: after an edit of one the old binary would run. `#line`
    keeps the compiler and profilers speaking of the files as they are.
    """
    seen: set[str] = set()

    def read(source: Path) -> list[str]:
        lines = [f'#line 1 "{source.name}"']
        for number, line in enumerate(source.read_text().splitlines(), 1):
            included = _INCLUDE.match(line)
            if included is None:
                lines.append(line)
                continue
            if included[1] not in seen:
                seen.add(included[1])
                lines += read(source.with_name(included[1]))
            lines.append(f'#line {number + 1} "{source.name}"')
        return lines

    return "\n".join(read(path)) + "\n"


def kernel_source(kernel: Kernel) -> str:
    """The text that NVRTC compiles: constants as #define, then the source with its headers inlined."""
    if not kernel.source.exists():
        raise UsageError(
            f"kernel {kernel.name}: no CUDA source ({kernel.source.name}) yet, so this step can't run on a GPU\n"
            "use --device cpu"
        )
    defines = "".join(f"#define {name} {value}\n" for name, value in kernel.constants.items())
    return defines + inline_headers(kernel.source)


def compile_error(kernel: Kernel, log: str) -> FoxhuntError:
    """Kernel, file, line and message of the first error of a compiler's log, then an excerpt of the log."""
    first = _ERROR.search(log)
    where = f"{first['file']}, line {first['line']}: {first['what']}" if first else kernel.source.name
    shown = log[first.start() if first else 0 :].splitlines()[:EXCERPT]
    excerpt = "".join(f"\n    {line}" for line in shown if line.strip())
    return FoxhuntError(
        f"kernel {kernel.name} does not compile: {where}{excerpt}\n"
        "this is a bug, or a CUDA compiler that this code was not made for: report these lines, or use --device cpu"
    )


def require_compiler() -> None:
    """Raises UsageError where NVRTC is not to be had."""
    try:
        import cupy

        cupy.cuda.nvrtc.getVersion()
    except Exception as error:  # not installed, or whatever the loader raises
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"CUDA's compiler NVRTC does not load ({said}); pip install 'foxhunt[gpu]', which needs no GPU"
        ) from None


def require_arch(arch: str) -> None:
    """Raises UsageError without NVRTC, or when `arch` is none that it assembles for and the kernels can run on."""
    require_compiler()
    from cupy.cuda import nvrtc

    known = [number for number in nvrtc.getSupportedArchs() if number >= OLDEST]
    named = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if named is None or int(named[1]) not in known:
        version = ".".join(map(str, nvrtc.getVersion()))
        raise UsageError(
            f"--arch {arch}: not an architecture that this compiler (NVRTC {version}) makes these kernels for\n"
            f"choose one of {', '.join(f'sm_{number}' for number in known)}"
        )


@dataclass(frozen=True)
class Resources:
    """What one CUDA function takes. Registers, spills and stack are of a thread (bytes), shared memory of a block."""

    kernel: str
    entry: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int


def resources(kernel: Kernel, arch: str) -> list[Resources]:
    """Compiles a kernel for `arch` ("sm_90") and reads what the assembler says of each of its functions.

    Raises FoxhuntError as `compile_error` where it does not compile.
    """
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(kernel_source(kernel), kernel.source.name, (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, f"-arch={arch}", "--ptxas-options=-v"))
        return read_resources(kernel.name, nvrtc.getProgramLog(program).splitlines())
    except nvrtc.NVRTCError:
        raise compile_error(kernel, nvrtc.getProgramLog(program)) from None
    finally:
        nvrtc.destroyProgram(program)


def read_resources(kernel: str, log: Sequence[str]) -> list[Resources]:
    """The assembler's verbose lines, by function."""
    found: list[Resources] = []
    entry, stack = "", (0, 0, 0)
    for line in log:
        if name := _ENTRY.search(line):
            entry, stack = name[1], (0, 0, 0)
        elif sizes := _STACK.search(line):
            stack = (int(sizes[1]), int(sizes[2]), int(sizes[3]))
        elif (used := _USED.search(line)) and entry:
            found.append(Resources(kernel, entry, int(used[1]), *stack, int(used[2] or 0)))
            entry = ""
    return found
