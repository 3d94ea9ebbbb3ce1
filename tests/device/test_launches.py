"""Which variant of a kernel runs where a block gets little shared memory, shown with faked limits."""

from types import SimpleNamespace

import numpy as np
import pytest

from kernels import mamba2_mixer, mamba2_mixer_bwd
from kernels.spec import Arg, Kernel
from kernels.vectors import mixer_vectors, place
from trainer import bench
from trainer.config import load_config
from trainer.device import launches
from trainer.device.cuda import CudaDevice
from trainer.errors import UsageError
from trainer.nets.dry import dry_pass

KIB = 1 << 10
BACKWARD, FORWARD = "mamba2_mixer_bwd", "mamba2_mixer"
SCALARS = {"eps": 1e-5, "tf32": 1}


def backward_arguments(heads, windows=3, k=32, n=64, p=64):
    """Arrays of one launch of the mixer's backward kernel; 4 heads are the small size, 8 the seed size."""
    inner = heads * p
    channels, width = inner + 2 * n, 2 * inner + 2 * n + heads
    letters = {"R": windows, "K": k, "DI": inner, "E": width, "CH": channels, "HD": heads}
    letters["V"] = place(mixer_vectors(channels, heads, inner))[1]
    values = []
    for arg in mamba2_mixer_bwd.KERNEL.args:
        shape = tuple(int(d) if d.isdigit() else letters[d] for d in arg.dims)
        values.append(SCALARS[arg.name] if arg.role == "scalar" else np.zeros(shape, np.float32))
    return values


def entries(heads, limit):
    kernel, values = mamba2_mixer_bwd.KERNEL, backward_arguments(heads)
    return [entry for entry, *_ in launches.phases(kernel, kernel.bind(values), SCALARS, limit)]


@pytest.mark.parametrize(
    ("heads", "arch", "entry"),
    [
        (8, "sm_90", BACKWARD),
        (8, "sm_80", f"{BACKWARD}_any"),
        (8, "sm_86", f"{BACKWARD}_any"),
        (4, "sm_80", BACKWARD),
        (4, "sm_86", f"{BACKWARD}_any"),
        (4, "sm_120", f"{BACKWARD}_any"),
    ],
)
def test_the_cards_limit_alone_chooses_the_variant(heads, arch, entry):
    assert entries(heads, launches.limit_of(arch)) == [entry]


def test_the_limit_itself_still_fits():
    assert entries(8, 205_376) == [BACKWARD] and entries(8, 205_375) == [f"{BACKWARD}_any"]
    assert entries(8, None) == [BACKWARD]


def test_a_device_launches_what_fits_it():
    launched = []

    def function(kernel, entry, shared):
        return lambda grid, block, packed, **options: launched.append((entry, grid, block, options["shared_mem"]))

    device = CudaDevice.__new__(CudaDevice)  # without a GPU: what a launch asks of it is here
    device._bound, device._function, device.current = {}, function, SimpleNamespace(stream=None)
    values = backward_arguments(8)
    for device.shared_limit in (227 * KIB, 163 * KIB):
        device.launch(mamba2_mixer_bwd.KERNEL, *values)
    assert launched == [(BACKWARD, (3,), (512,), 205_376), (f"{BACKWARD}_any", (3,), (256,), 50_560)]


def test_no_variant_left_is_refused_with_what_is_needed_at_least():
    kernel, values = mamba2_mixer_bwd.KERNEL, backward_arguments(4)
    with pytest.raises(UsageError) as caught:
        launches.phases(kernel, kernel.bind(values), SCALARS, 48 * KIB)
    assert str(caught.value).startswith(f"kernel {BACKWARD}: these sizes need 49.4 KiB of shared memory a block, and")
    assert "has 48\n" in str(caught.value) and "net.window" in str(caught.value)


def test_sizes_that_the_general_variant_serves_anyway_have_no_other():
    kernel, values = mamba2_mixer_bwd.KERNEL, backward_arguments(2, k=16)
    (only,) = launches.variants(kernel, kernel.bind(values), SCALARS)
    assert only[0][0] == f"{BACKWARD}_any"


@pytest.mark.parametrize(
    "arch, kib", [("sm_90a", 227), ("sm_80", 163), ("compute_89", 99), ("sm_999", None), ("x", None)]
)
def test_limits_by_architecture(arch, kib):
    assert launches.limit_of(arch) == (kib and kib * KIB)


@pytest.mark.parametrize("profile", ["seed", "small"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_every_profile_for_a_gpu_can_be_launched_on_every_card(profile, arch):
    dry = dry_pass(load_config(profile).net, 56, launches.limit_of(arch))
    assert dry.refused == {} and {kernel for kernel, _ in dry.launches} >= {FORWARD, BACKWARD}


def test_one_pass_over_one_window_meets_every_large_request_of_a_whole_run():
    cfg = load_config("seed")
    whole, one = bench.launches(cfg), dry_pass(cfg.net, 56, None).launches
    large = {key: row["dynamic"] for key, row in whole.items() if row["dynamic"] > KIB}
    assert len(large) == 8 and large == {key: row["dynamic"] for key, row in one.items() if row["dynamic"]}


def test_a_dry_run_tells_what_was_left_out_and_what_can_not_run():
    device = launches.DryDevice(163 * KIB)
    device.launch(mamba2_mixer_bwd.KERNEL, *backward_arguments(8))
    use = {entry: row["use"] for (_, entry), row in device.launches.items()}
    assert use == {BACKWARD: "exceeds", f"{BACKWARD}_any": "launched"}
    assert device.left_out() == [BACKWARD] and device.refused == {}
    greedy = Kernel("greedy", (Arg("x", "real", "in", "N"),), lambda x: None, lambda sizes, _: ((1,), (1,), 200 * KIB))
    device.launch(greedy, np.zeros(4, np.float32))
    assert "need 200.0 KiB" in str(device.refused["greedy"])


def test_the_forward_mixer_has_a_general_variant_as_well():
    assert mamba2_mixer.KERNEL.general is not None


@pytest.mark.parametrize("tf32, entry", [(1, BACKWARD), (0, f"{BACKWARD}_exact")])
def test_products_are_as_exact_as_float32_unless_tf32_is_allowed(tf32, entry):
    kernel, values = mamba2_mixer_bwd.KERNEL, backward_arguments(8)
    (only,) = launches.phases(kernel, kernel.bind(values), SCALARS | {"tf32": tf32}, None)
    assert only[0] == entry
