"""Faults of a real GPU: what the user is told, with which exit code, and what is left of the run."""

import subprocess
import sys

import numpy as np
import pytest

from kernels import grad_norm
from kernels.spec import Arg, Kernel
from tests.gpu.marks import NEEDS_GPU
from tests.recipes.test_alpha_rl import COLLECT, TINY
from tests.recipes.test_nan import unnoticed
from tests.recipes.tiny import STEMS, with_stem
from trainer import __main__
from trainer.config import RunConfig, build_config
from trainer.data.folds import FoldPlan, make_folds
from trainer.data.market import synthetic_market
from trainer.device import Field, allocate, open_device, probe, source
from trainer.device.cuda import CudaDevice
from trainer.device.faults import of_device_error
from trainer.errors import DeviceLost, DeviceMemory, FoxhuntError
from trainer.learn import checkpoint as ck
from trainer.learn.loop import train
from trainer.recipes.alpha_rl import AlphaRL

pytestmark = NEEDS_GPU

GIB = 1 << 30
PATIENCE_S = 120


@pytest.fixture(scope="module", params=STEMS)
def world(request):
    cfg = build_config(with_stem(TINY, request.param))
    market = synthetic_market("synthetic:rows=4000,signal=0.75")
    return cfg, market, make_folds(market.ts, market.session, FoldPlan.of(cfg, market.meta.look_back))[0]


@pytest.fixture(scope="module")
def device():
    return CudaDevice()


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A kernel of one's own: (name, CUDA text, arguments) -> Kernel."""

    def make(name, text, *args):
        (tmp_path / f"{name}.cu").write_text(text)
        return Kernel(name, args, lambda *_: None, launcher=lambda sizes, scalars: ((1,), (1,), 0))

    monkeypatch.setattr(Kernel, "source", property(lambda kernel: tmp_path / f"{kernel.name}.cu"))
    return make


# -- NaN --


@pytest.mark.parametrize("tensor", ["embed.weight", "heads.weight"])
def test_a_nan_in_a_weight_stops_the_run_and_keeps_the_last_good_checkpoint(world, tmp_path, tensor):
    planted = COLLECT + 20

    class Spoilt(AlphaRL):
        def step(self):
            super().step()
            if self.steps == planted:
                first = self.net.layout[tensor].offset
                self.device.fill(self.store["opt.param"][first : first + 1], np.nan)

    run = RunConfig(n_steps=planted + 40, checkpoint_every=10, metrics_every=5, validate_every=0)
    with pytest.raises(FoxhuntError, match=rf"opt\.param \({tensor}\) is not finite") as caught:
        train(lambda: Spoilt(CudaDevice(), *world), run, tmp_path, 0, {}, quiet=True)
    assert caught.value.exit_code == 1 and "last good checkpoint" in str(caught.value)
    last = ck.newest_valid(tmp_path)
    assert planted - 10 <= last.step <= planted
    assert all(np.isfinite(last.arrays[f"opt.{name}"]).all() for name in ("param", "target", "m", "v"))


def test_a_nan_in_every_tensor_of_weights_and_targets_is_noticed(world):
    recipe = AlphaRL(CudaDevice(), *world)
    for _ in range(COLLECT + 4):
        recipe.step()
    assert unnoticed(recipe, recipe.snapshot()) == []


def test_the_flag_of_a_bad_gradient_is_read_without_waiting_for_the_step(world):
    """While the device is held, a step and a look at the step before return, and the step is still to come."""
    recipe = AlphaRL(CudaDevice(), *world)
    for _ in range(COLLECT + 5):
        recipe.step()
    watch = recipe.device.stopwatch()
    with watch.held():
        recipe.step()
        after = watch.mark()
        assert not recipe.went_bad(1) and recipe.metrics(1)["l_q"] > 0
        assert not after.done
    recipe.device.synchronize()
    assert after.done


# -- errors of CUDA, each in a process of its own: such an error ends the use of the card for good --

BROKEN = """
import sys
from trainer import __main__
from trainer.device.cuda import CudaDevice

device = CudaDevice()
text = 'extern "C" __global__ void broken(float* x) { %s }'
function = device.cp.RawModule(code=text).get_function("broken")
x = device.empty((4,), "float32")
device.fill(x, 1)
fine = device.region(lambda: device.zero(x), "fine")
broken = device.region(lambda: function((1,), (1,), (device.cp.intp(0),), stream=device.main.stream), "broken")
for _ in range(4):
    fine()
try:
    broken()
    device.to_host(x)
except Exception as error:
    __main__.leave(__main__._usage(error))
"""


@pytest.mark.parametrize("does, words", [("x[1] = 2.0f;", "cudaErrorIllegalAddress"), ("__trap();", "cudaErrorLaunch")])
def test_a_kernels_fault_ends_in_exit_1_with_the_region_named(does, words):
    done = subprocess.run([sys.executable, "-c", BROKEN % does], capture_output=True, text=True, timeout=PATIENCE_S)
    said = done.stderr.splitlines()[0]
    assert done.returncode == 1, done.stderr
    assert said.startswith("error: the GPU refused or broke a call") and "last launched: broken" in said, done.stderr
    assert words in said and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("status, code", [(46, 75), (214, 75), (999, 75), (700, 1), (719, 1)])
def test_cudas_own_exceptions_are_known(device, status, code):
    runtime, driver = device.cp.cuda.runtime.CUDARuntimeError, device.cp.cuda.driver.CUDADriverError
    for error in (runtime(status), driver(status)):
        found = of_device_error(error)
        assert found is not None and found.exit_code == code, (error, found)
        assert isinstance(found, DeviceLost) == (code == 75)


def test_an_error_of_cublas_is_known(device):
    lt = device.gemms.lt
    with pytest.raises(lt.cuBLASLtError) as caught:
        lt.matrix_layout_set_attribute(0, int(lt.MatrixLayoutAttribute.ROWS), 0, 0)
    found = of_device_error(caught.value)
    assert found is not None and found.exit_code == 1 and "INVALID_VALUE" in str(found)
    assert isinstance(of_device_error(lt.cuBLASLtError(3), others={}), DeviceMemory)


# -- memory and neighbours --


def test_too_large_a_run_is_refused_before_it_allocates(device):
    free = device.free_bytes()
    fields = [Field("market.features", (free // 4, 2), "float32", "data"), Field("env.row", (8,), "int32")]
    with pytest.raises(DeviceMemory, match=r"data\.sample") as caught:
        allocate(device, fields)
    assert caught.value.exit_code == 2 and caught.value.arenas["market"] == free // 4 * 8
    assert device.free_bytes() == free


def test_the_command_says_it_in_one_line_with_exit_2(capsys):
    huge = ["env.n_backtests=1048576", "learn.batch=1048576", "learn.per_capacity=16777216"]
    assert (
        __main__.main(["bench", "--device", "cuda", "--config", "seed", *(w for x in huge for w in ("--set", x))]) == 2
    )
    said = capsys.readouterr().err
    said = said[said.index("error: ") :]  # the first line tells what is timed
    assert said.startswith("error: GPU memory: ") and "learn.batch" in said and said.count("\n") == 1, said


def test_memory_that_runs_out_all_the_same_is_an_error_with_advice(device):
    _, all_of_it = device.cp.cuda.runtime.memGetInfo()  # more than the free: the pool gives its blocks back first
    pool = device.cp.get_default_memory_pool()
    used = pool.used_bytes()
    with pytest.raises(MemoryError) as caught:
        device.empty((all_of_it + GIB,), np.uint8)
    found = of_device_error(caught.value, others={})
    assert isinstance(found, DeviceMemory) and "allocating" in str(found) and "env.n_backtests" in str(found)
    pool.free_all_blocks()
    assert pool.used_bytes() <= used, "what was refused is held all the same"


HOLDER = """
import cupy
kept = cupy.zeros(1 << 30, "uint8")
cupy.cuda.Device().synchronize()
print("holding", flush=True)
input()
"""


def test_another_process_on_the_card_is_seen_with_its_size(device):
    management = probe.management(device.cp)
    if management is None:
        pytest.skip("the driver's management library (NVML) is not to be had here")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline().strip() == "holding"
        others = management.others()
        assert holder.pid in others, others
        assert others[holder.pid] is None or others[holder.pid] >= GIB
        assert not management.lost()
        assert CudaDevice().others == others
    finally:
        holder.communicate("\n", timeout=PATIENCE_S)


# -- launches --


def test_a_kernel_that_does_not_compile_is_named_with_file_and_line(device, made):
    text = 'extern "C" __global__ void torn(const float* x, int N) {\n    int y = x[0] +;\n}\n'
    with pytest.raises(FoxhuntError, match=r"^kernel torn does not compile: torn\.cu, line 2: expected an expression"):
        device.launch(made("torn", text, Arg("x", "real", "in", "N")), device.empty((3,), np.float32))


def test_scalars_are_cast_as_the_table_says_whatever_the_caller_gives(device, made):
    text = """extern "C" __global__ void cast(double* out, float r, int i, long long l, unsigned int u, int N) {
    out[0] = r; out[1] = i; out[2] = l; out[3] = u; out[4] = N;
}"""
    kernel = made(
        *("cast", text, Arg("out", "float64", "out", "N"), Arg("r", "real", "scalar"), Arg("i", "int32", "scalar")),
        *(Arg("l", "int64", "scalar"), Arg("u", "uint32", "scalar")),
    )
    out = device.empty((5,), np.float64)
    for values in ((0.5, 7, 1 << 40, 9), (np.float64(0.5), np.int64(7), np.int32(-3), True), (1, np.uint8(7), 0, 0)):
        with device.main.stream:
            device.launch(kernel, out, *values)
        assert device.to_host(out).tolist() == [*map(float, values), 5.0]


def test_products_and_copies_refuse_views(device):
    a, out = device.empty((4, 4), np.float32), device.empty((4, 4), np.float32)
    with pytest.raises(ValueError, match="C-contiguous"):
        device.gemm(a[:, :2], a[:2], out)
    with pytest.raises(ValueError, match="C-contiguous"):
        device.copy(out[:, 0], a[:, 0])


def test_registers_are_those_that_the_card_loads(device):
    arrays = [device.empty(shape, np.float32) for shape in ((512,), (grad_norm.PARTS,), (1,), (grad_norm.SIZE,))]
    for array in arrays:
        device.fill(array, 1)
    with device.main.stream:
        device.launch(grad_norm.KERNEL, *arrays)
    card = f"sm_{device.cp.cuda.Device().compute_capability}"
    for row in source.resources(grad_norm.KERNEL, card):
        loaded = device.functions[f"grad_norm.{row.entry}"]
        assert (row.registers, row.shared) == (loaded.num_regs, loaded.shared_size_bytes), row.entry


def test_what_is_asked_for_is_what_is_opened():
    assert open_device("cuda").tf32 and not open_device("cuda", tf32=False).tf32
    assert open_device("cuda", tf32=False).model.endswith(", TF32 off")
