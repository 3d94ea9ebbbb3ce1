"""Builds kernels for the CPU and launches them: the text that NVRTC gets, behind `shim.h`, through g++.

What it shows: arithmetic, indices, launch plans, barriers, races in shared memory. What it can't: timing, how a GPU
schedules, its memory model, the sums inside a tensor core to the last bit.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kernels.spec import REAL, Grid, Kernel
from trainer.device.source import kernel_source

HERE = Path(__file__).parent
# A product and a sum are fused where CUDA's compiler may fuse them; a float4 may be read as floats.
FLAGS = ("-O1", "-std=c++17", "-mfma", "-ffp-contract=fast", "-fno-strict-aliasing", "-fno-math-errno")
FLAGS += ("-fvisibility=hidden", "-fPIC", "-w")
WATCHED = ("-fsanitize=thread", "-DEMULATE_RACES", "-g1")  # objects that call race.h at every access to memory
GUARD = 4096  # bytes before and after each array that a kernel must leave alone
KINDS = {1: "reads what it wrote", 2: "overwrites what it read", 3: "overwrites what it wrote"}

# Instructions that CUDA C++ has no function for, and what stands for them in shim.h.
INSTRUCTIONS = (
    (r'asm volatile\("" : "\+r"\(\w+\)\);', ";"),  # a value that the compiler must not know
    (r'asm volatile\("bar\.sync %0, (\d+);" ::"r"\((.*)\) : "memory"\);', r"emu::named_barrier(\2, \1);"),
    (r'asm volatile\("prefetch\.global\.L2 \[%0\];" ::"l"\(.*\)\);', ";"),
    (
        r'asm volatile\("cp\.async\.cg\.shared\.global \[%0\], \[%1\], 16;" '
        r'::"r"\(\(u32\)__cvta_generic_to_shared\((\w+)\)\), "l"\((\w+)\) : "memory"\);',
        r"emu::copy_async(\1, \2);",
    ),
    (r'asm volatile\("cp\.async\.commit_group;" ::: "memory"\);', "emu::copies_end();"),
    (r'asm volatile\("cp\.async\.wait_group %0;" ::"n"\((\w+)\) : "memory"\);', r"emu::copies_wait(\1);"),
    (r'asm\("ex2\.approx\.ftz\.f32 %0, %1;" : "=f"\((\w+)\) : "f"\((\w+)\)\);', r"\1 = emu::exp2_fast(\2);"),
    (r'asm\("rcp\.approx\.ftz\.f32 %0, %1;" : "=f"\((\w+)\) : "f"\((\w+)\)\);', r"\1 = emu::reciprocal_fast(\2);"),
    (r'asm\("mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32 [^;]*;"[^;]*;', "emu::mma(c, a, b);"),
)
_ASM = re.compile(r"\basm\b[^(\n]*\([^;]*;?")
_ENTRY = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(')


class EmulationError(Exception):
    """A launch went wrong, or a text can't be emulated; the message says where."""


def why_not() -> str:
    """Why nothing can be emulated here; empty where it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"kernels are emulated on x86-64 Linux alone, not on {platform.machine()} {platform.system()}"
    if shutil.which("g++") is None:
        return "kernels are emulated through g++, which is not installed (Debian: apt-get install g++)"
    if " fma " not in Path("/proc/cpuinfo").read_text().replace("\n", " "):
        return "kernels are emulated on processors with FMA, and this one has none"
    return ""


@cache
def compiler() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def translated(text: str) -> str:
    """A kernel's text as C++ behind shim.h. Raises EmulationError at an instruction that has no stand-in there."""
    for pattern, stand_in in INSTRUCTIONS:
        text = re.sub(pattern, stand_in, text)
    if left := _ASM.search(text):
        raise EmulationError(
            f"nothing stands for this instruction: {left[0]}\n"
            "give it a stand-in in tests/kernels/emulator/shim.h and a line in INSTRUCTIONS"
        )
    text = re.sub(r"extern __shared__ (\w+) (\w+)\[\];", r"\1* \2 = (\1*)emu::dynamic;", text)
    entries = _ENTRY.findall(text)
    return '#include "shim.h"\n' + text + "".join(f"LAUNCHABLE({entry})\n" for entry in entries)


class Race(ctypes.Structure):
    """As in race.h."""

    _fields_ = (
        ("first", ctypes.c_long),
        ("second", ctypes.c_long),
        ("writes", ctypes.c_int),
        ("one", ctypes.c_int),
        ("other", ctypes.c_int),
    )


class Program:
    """One text, built. `folder` keeps the object by a digest of all it is made of, for later runs and processes."""

    def __init__(self, folder: Path, name: str, text: str) -> None:
        self.name = name
        self.source = translated(text)
        self.watched = "__shared__" in text  # without shared memory there are no races to look for
        self.path = self._built(folder)

    def _built(self, folder: Path) -> Path:
        flags = [*FLAGS, *(WATCHED if self.watched else ())]
        parts = (self.source, *(path.read_text() for path in sorted(HERE.glob("*.h"))), *flags, compiler())
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
        path = folder / f"{self.name}-{digest}.so"
        with open(folder / f"{self.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be building it
            if not path.exists():
                for old in folder.glob(f"{self.name}-*"):
                    old.unlink()
                self._build(path, flags)
        return path

    def _build(self, path: Path, flags: Sequence[str]) -> None:
        source, built, linked = (path.with_suffix(suffix) for suffix in (".cpp", ".o", ".new"))
        source.write_text(self.source)
        # Linked apart: with -fsanitize=thread the linker would take in a library in place of race.h.
        for command in (
            ["g++", *flags, f"-I{HERE}", "-c", str(source), "-o", str(built)],
            ["g++", "-shared", str(built), "-o", str(linked)],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
                raise EmulationError(f"kernel {self.name} is no C++ behind shim.h: {first}")
        built.unlink()
        os.replace(linked, path)

    @cached_property
    def library(self) -> ctypes.CDLL:
        library = ctypes.CDLL(str(self.path))
        library.emu_launch.restype = ctypes.c_char_p
        return library

    def launch(
        self, function: tuple[str, Grid, Grid, int], arguments: Sequence[Any], *, backwards: bool, watch: bool
    ) -> None:
        """One CUDA function over `arguments` (ctypes values). Raises EmulationError where the launch can't end."""
        entry, grid, block, shared = function
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        shapes = [(ctypes.c_uint * 3)(*(*shape, 1, 1)[:3]) for shape in (grid, block)]
        address = ctypes.cast(getattr(self.library, f"launch_{entry}"), ctypes.c_void_p)
        wrong = self.library.emu_launch(address, addresses, *shapes, ctypes.c_uint(shared), backwards, watch)
        if wrong:
            raise EmulationError(f"{entry}: {wrong.decode()}")

    def races(self) -> list[str]:
        """What the watched launches since the last call have shown."""
        if not self.watched:
            return []
        found = (Race * 16)()
        n = self.library.emu_races(found)
        return [
            f"{self._place(race.second)} {KINDS[race.writes]} at {self._place(race.first)} "
            f"(threads {race.other} and {race.one}), and no barrier stands between"
            for race in found[:n]
        ]

    def _place(self, offset: int) -> str:
        """File and line, of the kernel's text as it lies in kernels/."""
        try:
            command = ["addr2line", "-s", "-e", str(self.path), hex(offset)]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        except (OSError, subprocess.CalledProcessError):
            return hex(offset)
        return said[0]


def guarded(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A copy aligned as CUDA aligns, and the bytes that it lies in: NaN or -1 before and after it."""
    room = np.full(array.nbytes + 2 * GUARD + 256, 0xFF, np.uint8)
    start = GUARD + -(room.ctypes.data + GUARD) % 256
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, room


def outside(array: np.ndarray, room: np.ndarray) -> np.ndarray:
    """The bytes of `room` around the array."""
    start = array.ctypes.data - room.ctypes.data
    return np.concatenate([room[:start], room[start + array.nbytes :]])


class Emulator:
    """Kernels by name, built when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs: dict[str, Program] = {}

    def program(self, kernel: Kernel) -> Program:
        if kernel.name not in self._programs:
            self._programs[kernel.name] = Program(self.folder, kernel.name, kernel_source(kernel))
        return self._programs[kernel.name]

    def launch(
        self,
        kernel: Kernel,
        values: Sequence[Any],
        functions: Sequence[tuple[str, Grid, Grid, int]],
        program: Program | None = None,
        *,
        backwards: bool = False,
        watch: bool = False,
    ) -> list[Any]:
        """Runs `functions` (as trainer/device/launches.py has them) -> the arguments afterwards, in the table's order.

        Raises EmulationError where a launch can't end or a byte beside an array or in an input was changed.
        """
        program = program or self.program(kernel)
        sizes = kernel.bind(values)
        after, rooms, arguments = [], [], []
        for arg, value in zip(kernel.args, values):
            if arg.role == "scalar":
                dtype = np.dtype("float32" if arg.dtype == REAL else arg.dtype)
                arguments.append(np.ctypeslib.as_ctypes_type(dtype)(dtype.type(value).item()))
                after.append(value)
                continue
            copy, room = guarded(value)
            after.append(copy)
            rooms.append((arg, copy, room, value))
            arguments.append(ctypes.c_void_p(copy.ctypes.data))
        arguments += [ctypes.c_int(size) for size in sizes.values()]
        for function in functions:
            program.launch(function, arguments, backwards=backwards, watch=watch)
        for arg, copy, room, value in rooms:
            if (outside(copy, room) != 0xFF).any():
                raise EmulationError(f"{kernel.name}: writes outside of {arg.name}")
            if arg.role == "in" and copy.tobytes() != value.tobytes():
                raise EmulationError(f"{kernel.name}: changes its input {arg.name}")
        return after
