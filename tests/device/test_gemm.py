"""What a matrix product is called, and the tables of algorithms that come with the code."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.device.base import NumpyDevice
from trainer.device.gemm import ALIGN, TABLES, Gemms, Plan, Product, alignment, table_path
from trainer.device.recording import RecordingDevice
from trainer.errors import UsageError


def test_a_product_is_named_by_all_that_its_algorithm_depends_on():
    assert str(Product(3, 4, 5, False, True, False, True)) == "3x4x5 tb bias"
    assert str(Product(3, 4, 5, True, False, True, False)) == "3x4x5 ta add"
    assert str(Product(3, 4, 5, False, False, False, False, align=64)) == "3x4x5 align 64"


@pytest.mark.parametrize(
    ("addresses", "bytes_"),
    [((512, 1024), ALIGN), ((512,), ALIGN), ((512, 64), 64), ((256, 16, 48), 16), ((4,), 4)],
)
def test_alignment_is_that_of_the_worst_array(addresses, bytes_):
    assert alignment(*addresses) == bytes_


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_a_product_is_known_from_its_arrays(ta, tb):
    a, b, out = np.empty((5, 3) if ta else (3, 5)), np.empty((4, 5) if tb else (5, 4)), np.empty((3, 4))
    assert Product.of(a, b, out, ta=ta, tb=tb, beta=1.0) == Product(3, 4, 5, ta, tb, True, False)
    assert Product.of(a, b, out, ta=ta, tb=tb, bias=out[0]) == Product(3, 4, 5, ta, tb, False, True)
    for wrong in ((a[:-1], b, out), (a, b[:-1], out), (a, b, out[:-1])):
        with pytest.raises(ValueError, match="gemm: shapes"):
            Product.of(*wrong, ta=ta, tb=tb)


def test_tables_hold_whole_algorithms_that_are_faster_than_the_first_choice():
    tables = sorted(TABLES.glob("*.json"))
    assert table_path("90", 130100) in tables
    for table in tables:
        entries = json.loads(table.read_text())
        assert entries, table
        for name, entry in entries.items():
            size, *flags = name.split(" ")
            product = Product(*map(int, size.split("x")), *(flag in flags for flag in ("ta", "tb", "add", "bias")))
            assert str(product) == name, (table.name, name)
            assert len(bytes.fromhex(entry["algorithm"])) == 64 and entry["us"] < entry["first_us"], (table.name, name)


@pytest.mark.parametrize("device", [NumpyDevice(), RecordingDevice()], ids=["numpy", "recording"])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_bias_is_added_to_every_row(device, beta):
    rng = np.random.default_rng(0)
    a, b, bias, start = (rng.standard_normal(shape) for shape in ((5, 3), (4, 3), (4,), (5, 4)))
    out = start.copy()
    region = device.region(lambda: device.gemm(a, b, out, tb=True, beta=beta, bias=bias), "product")
    want = start
    for _ in range(region.WARMUP + 2):
        region()
        want = a @ b.T + beta * want + bias
        np.testing.assert_allclose(out, want, rtol=1e-12)


class FakeError(RuntimeError):
    def __init__(self, status):
        self.status = status


def fake_library(answer):
    """cuBLASLt as far as a plan asks it; `answer(found, count)` is its heuristic."""
    names = SimpleNamespace(TRANSA=0, TRANSB=1, EPILOGUE=2, BIAS_POINTER=3)
    preferences = type(
        "Names", (), {"REDUCTION_SCHEME_MASK": 0, "MAX_WORKSPACE_BYTES": 1, "__iter__": lambda _: iter(())}
    )
    destroyed = []
    return SimpleNamespace(
        MatmulDescAttribute=names,
        MatmulPreferenceAttribute=preferences(),
        ReductionScheme=SimpleNamespace(COMPUTE_TYPE=2, OUTPUT_TYPE=4),
        matmul_desc_create=lambda *_: 1,
        matmul_desc_set_attribute=lambda *_: None,
        matrix_layout_create=lambda *_: 2,
        matmul_preference_create=lambda: 3,
        matmul_preference_set_attribute=lambda *_: None,
        matmul_preference_destroy=destroyed.append,
        matmul_heuristic_result_dtype=np.dtype((np.void, 128)),
        matmul_algo_get_heuristic=lambda *_: answer(),
        destroyed=destroyed,
    )


def plan_of(answer):
    gemms = Gemms.__new__(Gemms)  # without the library
    gemms.lt, gemms.handle, gemms.compute, gemms.algorithms = fake_library(answer), 0, 77, {}
    gemms.card, gemms.library = "sm_80", "cuBLASLt 130100"
    return gemms, lambda: Plan(gemms, Product(3, 4, 5, False, True, False, False))


@pytest.mark.parametrize("status", [None, 15])
def test_a_product_that_the_library_has_no_algorithm_for_is_named_with_card_and_library(status):
    def nothing():
        if status is not None:
            raise FakeError(status)

    gemms, make = plan_of(nothing)
    with pytest.raises(UsageError) as caught:
        make()
    said = "product 3x4x5 tb: cuBLASLt 130100 has no algorithm for it on sm_80\n"
    assert str(caught.value).startswith(said) and "--no-tf32" in str(caught.value)
    assert gemms.lt.destroyed == [3]


def test_other_errors_of_the_heuristic_stay_what_they_are():
    def broken():
        raise FakeError(7)

    gemms, make = plan_of(broken)
    with pytest.raises(FakeError):
        make()
    assert gemms.lt.destroyed == [3]
