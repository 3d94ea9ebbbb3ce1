"""Matrix products through cuBLASLt: one plan for each product of a run, its algorithm pinned.

cupy refuses cuBLAS while a stream is capturing, and cuBLAS chooses algorithms by itself. Here a product's algorithm is
that of `products/*.json`, where `python -m benchmarks.gemms` put the fastest of the library's candidates, else the
library's first candidate. Both depend on nothing but product, card and library version, never on a timing of the run:
so every process on such a card, and a resumed run, has the same bits. Candidates that may add in another order at each
call (split-K in place) are not asked for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainer.errors import UsageError

WORKSPACE = 32 << 20  # bytes a branch; what Hopper's algorithms ask for
ALIGN = 256  # bytes; arrays start at multiples of it, and algorithms are chosen for it
TABLES = Path(__file__).with_name("products")
_F32, _COMPUTE_F32, _COMPUTE_TF32 = 0, 68, 77  # CUDA_R_32F, CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32
_NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED: how the heuristic says that it has nothing
_WORDS = 8  # of 64 bits: a cublasLtMatmulAlgo_t, which may be stored and used again with the same library version


class Product(NamedTuple):
    """out [m, n] = op(a) op(b) (+ out) (+ bias [n]), row-major; op transposes where ta, tb say so."""

    m: int
    n: int
    k: int
    ta: bool
    tb: bool
    add: bool
    bias: bool
    align: int = ALIGN  # bytes that all four pointers are multiples of

    @classmethod
    def of(
        cls, a: Any, b: Any, out: Any, *, ta: bool = False, tb: bool = False, beta: float = 0.0, bias: Any = None
    ) -> Product:
        """What `Device.gemm` is asked for with these values, all of them aligned. Raises ValueError for shapes."""
        (m, k), (depth, n) = (a.shape[::-1] if ta else a.shape), (b.shape[::-1] if tb else b.shape)
        if depth != k or (m, n) != out.shape:
            raise ValueError(f"gemm: shapes {a.shape} {b.shape} -> {out.shape}, ta={ta}, tb={tb}")
        return cls(m, n, k, ta, tb, bool(beta), bias is not None)

    def __str__(self) -> str:
        words = [f"{self.m}x{self.n}x{self.k}", *(name for name in ("ta", "tb", "add", "bias") if getattr(self, name))]
        return " ".join(words + ([] if self.align == ALIGN else [f"align {self.align}"]))


class Plan:
    """A product's descriptors and algorithm. `run` is all that happens at a call."""

    def __init__(self, gemms: Gemms, product: Product):
        lt, p = gemms.lt, product
        self.gemms, self.product = gemms, p
        # Row-major out = A B is the column-major product out^T = B^T A^T, so the operands change places.
        self.description = lt.matmul_desc_create(gemms.compute, _F32)
        attributes = lt.MatmulDescAttribute
        self._describe(attributes.TRANSA, int(p.tb), np.int32)
        self._describe(attributes.TRANSB, int(p.ta), np.int32)
        if p.bias:
            self._describe(attributes.EPILOGUE, int(lt.Epilogue.BIAS), np.int32)
            self._describe(attributes.BIAS_POINTER, ALIGN, np.uint64)  # any, until there is one
        sides = (p.k, p.n) if p.tb else (p.n, p.k), (p.m, p.k) if p.ta else (p.k, p.m), (p.n, p.m)
        self.layouts = [lt.matrix_layout_create(_F32, rows, columns, rows) for rows, columns in sides]
        pinned = gemms.pinned(p)
        self.algorithm: np.ndarray = self._favourite() if pinned is None else pinned

    def _favourite(self) -> np.ndarray:
        """The library's first choice. Raises UsageError where it has none."""
        found = self.candidates(1)
        if not found:
            raise UsageError(
                f"product {self.product}: {self.gemms.library} has no algorithm for it on {self.gemms.card}\n"
                "take another version of cuBLASLt or another card, --no-tf32, or --device cpu"
            )
        return found[0]

    def _describe(self, attribute: int, value: int, dtype: Any) -> None:
        word = np.array([value], dtype)
        self.gemms.lt.matmul_desc_set_attribute(self.description, int(attribute), word.ctypes.data, word.nbytes)

    def candidates(self, most: int) -> list[np.ndarray]:
        """The library's algorithms for this product, its favourite first: uint64 [8] each; none where it has none."""
        lt, names = self.gemms.lt, self.gemms.lt.MatmulPreferenceAttribute
        schemes = lt.ReductionScheme
        preference = lt.matmul_preference_create()
        align = [(name, self.product.align, np.uint32) for name in names if name.name.startswith("MIN_ALIGNMENT")]
        fixed_order = int(schemes.COMPUTE_TYPE) | int(schemes.OUTPUT_TYPE)
        scheme = names.REDUCTION_SCHEME_MASK, fixed_order, np.uint32
        for name, value, dtype in (*align, scheme, (names.MAX_WORKSPACE_BYTES, WORKSPACE, np.uint64)):
            word = np.array([value], dtype)
            lt.matmul_preference_set_attribute(preference, int(name), word.ctypes.data, word.nbytes)
        found = np.zeros((most, lt.matmul_heuristic_result_dtype.itemsize // 8), np.uint64)  # an algorithm comes first
        count = np.zeros(1, np.int32)
        a, b, out = self.layouts
        try:
            lt.matmul_algo_get_heuristic(
                *(self.gemms.handle, self.description, a, b, out, out, preference, most),
                *(found.ctypes.data, count.ctypes.data),
            )
        except Exception as error:
            if getattr(error, "status", None) != _NOT_SUPPORTED:
                raise
        finally:
            lt.matmul_preference_destroy(preference)
        return [row[:_WORDS].copy() for row in found[: int(count[0])]]

    def run(self, a: Any, b: Any, out: Any, bias: Any, workspace: Any, stream: Any) -> None:
        if bias is not None:
            self._describe(self.gemms.lt.MatmulDescAttribute.BIAS_POINTER, bias.data.ptr, np.uint64)
        one, factor = self.gemms.one, self.gemms.one if self.product.add else self.gemms.nil
        to, (la, lb, lo) = out.data.ptr, self.layouts
        self.gemms.lt.matmul(
            self.gemms.handle, self.description, one.ctypes.data, b.data.ptr, la, a.data.ptr, lb, factor.ctypes.data,
            to, lo, to, lo, self.algorithm.ctypes.data, workspace.data.ptr, WORKSPACE, stream.ptr,
        )  # fmt: skip


class Gemms:
    """A device's products: `plan(product)` makes a plan at the first call, and gives it at every later one."""

    def __init__(self, capability: str, tf32: bool):
        from nvmath.bindings import cublasLt as lt

        self.lt, self.handle = lt, lt.create()
        self.compute = _COMPUTE_TF32 if tf32 else _COMPUTE_F32
        self.one, self.nil = np.ones(1, np.float32), np.zeros(1, np.float32)
        self.table = table_path(capability, lt.get_version())
        self.card, self.library = f"sm_{capability}", f"cuBLASLt {lt.get_version()}"
        entries = json.loads(self.table.read_text()) if tf32 and self.table.exists() else {}
        self.algorithms = {name: np.frombuffer(bytes.fromhex(e["algorithm"]), np.uint64) for name, e in entries.items()}
        self.plans: dict[Product, Plan] = {}

    def plan(self, product: Product) -> Plan:
        if product not in self.plans:
            self.plans[product] = Plan(self, product)
        return self.plans[product]

    def pinned(self, product: Product) -> np.ndarray | None:
        return self.algorithms.get(str(product))


def table_path(capability: str, version: int) -> Path:
    """Where the algorithms for cards of a compute capability ("90") and a version of cuBLASLt are."""
    return TABLES / f"sm{capability}-cublaslt{version}.json"


def alignment(*addresses: int) -> int:
    """Bytes, at most ALIGN, that all addresses are multiples of."""
    together = ALIGN
    for address in addresses:
        together |= address
    return together & -together
