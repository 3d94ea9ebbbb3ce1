"""Kernel pairs: NAME.cu (CUDA) and NAME.py (its NumPy reference, which is the definition, and its argument table)."""

from kernels.spec import REAL, Arg, Kernel

__all__ = ["REAL", "Arg", "Kernel"]
