"""All cases of all kernels, and the kernels that must have one."""

from __future__ import annotations

import importlib
import pkgutil

import kernels
from kernels.spec import Kernel

# Importing them fills the registry.
from tests.kernels import cases_env, cases_learn, cases_nets, cases_replay, cases_stem  # noqa: F401
from tests.kernels.registry import CASES, Case

__all__ = ["CASES", "RUNS", "Case", "exported"]

RUNS = [(case, size) for case in CASES for size in case.sizes]


def exported() -> dict[str, Kernel]:
    """The KERNEL of every module in kernels/, by module name."""
    modules = {m.name: importlib.import_module(f"kernels.{m.name}") for m in pkgutil.iter_modules(kernels.__path__)}
    return {name: module.KERNEL for name, module in modules.items() if hasattr(module, "KERNEL")}
