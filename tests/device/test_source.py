"""The text that the CUDA compiler gets, and what is made of its answer. A real compiler is asked where there is one."""

import pytest

from kernels import grad_norm
from kernels.spec import Arg, Kernel
from trainer.device import source
from trainer.errors import FoxhuntError

ASSEMBLED = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
ptxas         .     104 bytes stack frame, 108 bytes spill stores, 112 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 104 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 119.440 ms
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A kernel whose header has an error in its second line."""
    (tmp_path / "broken.cu").write_text('// a kernel\n#include "part.cuh"\nextern "C" __global__ void broken() {}\n')
    (tmp_path / "part.cuh").write_text("__device__ int good() { return 1; }\n__device__ int bad() { return lost; }\n")
    monkeypatch.setattr(Kernel, "source", property(lambda kernel: tmp_path / f"{kernel.name}.cu"))
    return Kernel("broken", (Arg("x", "real", "in", "N"),), lambda x: None, constants={"N_PARTS": 3})


def test_headers_are_inlined_once_and_lines_keep_their_names(tmp_path):
    (tmp_path / "a.cu").write_text('one\n#include "b.cuh"\n#include "c.cuh"\nfour\n')
    (tmp_path / "b.cuh").write_text('#include "c.cuh"\nb two\n')
    (tmp_path / "c.cuh").write_text("c one\n")
    found, name, number = [], "", 0
    for line in source.inline_headers(tmp_path / "a.cu").splitlines():
        if line.startswith("#line"):
            _, at, quoted = line.split()
            name, number = quoted.strip('"'), int(at)
        else:
            found.append((name, number, line))
            number += 1
    assert found == [("a.cu", 1, "one"), ("c.cuh", 1, "c one"), ("b.cuh", 2, "b two"), ("a.cu", 4, "four")]


def test_every_kernel_has_its_constants_before_its_text():
    text = source.kernel_source(grad_norm.KERNEL)
    assert text.index("#define PARTS 256") < text.index('#line 1 "grad_norm.cu"')


def test_a_compile_error_names_kernel_file_line_and_shows_the_log(broken):
    log = 'part.cuh(2): error: identifier "lost" is undefined\n  __device__ int bad() { return lost; }\n\n1 error\n'
    error = source.compile_error(broken, "part.cuh(1): warning: unused\n" + log)
    first, *excerpt, last = str(error).splitlines()
    assert first == 'kernel broken does not compile: part.cuh, line 2: identifier "lost" is undefined'
    assert "return lost" in "".join(excerpt) and "warning" not in "".join(excerpt)
    assert "report" in last and error.exit_code == 1


def test_a_log_without_a_place_is_shown_all_the_same(broken):
    text = str(source.compile_error(broken, "nvrtc: error: failed to open libnvrtc-builtins"))
    assert "broken.cu" in text and "failed to open libnvrtc-builtins" in text


def test_the_assemblers_words_by_function():
    first, second = source.read_resources("k", ASSEMBLED.splitlines())
    assert first == source.Resources("k", "first", 128, 104, 108, 112, 1024)
    assert second == source.Resources("k", "second", 32, 0, 0, 0, 0)


@pytest.fixture
def compiler():
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    try:
        return cupy.cuda.nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"the CUDA compiler (NVRTC) does not load: {str(error).splitlines()[0]}")


def test_a_real_compiler_reports_registers(compiler):
    found = source.resources(grad_norm.KERNEL, "sm_90")
    assert [r.entry for r in found] == ["grad_norm"]
    assert all(0 < r.registers <= 255 and r.shared > 0 for r in found)


def test_a_real_compilers_error_is_understood(compiler, broken):
    with pytest.raises(FoxhuntError, match=r"^kernel broken does not compile: part\.cuh, line 2: identifier"):
        source.resources(broken, "sm_90")
