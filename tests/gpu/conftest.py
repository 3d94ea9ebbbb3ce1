"""Between GPU tests and between their files: nothing is under way, and no memory is held."""

import gc

import pytest

from trainer.device.cuda import why_unavailable

AVAILABLE = why_unavailable() is None


@pytest.fixture(autouse=True)
def nothing_under_way():
    """A test's work ends with it: one device a process works at a time (kernels/last_block.cuh)."""
    yield
    if AVAILABLE:
        import cupy

        cupy.cuda.Device().synchronize()


@pytest.fixture(scope="module", autouse=True)
def memory_given_back():
    """What a file's tests have freed goes back to the card after its last one: cupy's pools keep every block they ever
    had, and later files have processes of their own on the card, or count its memory. Recipes hold themselves in
    cycles, so they are collected first."""
    yield
    if AVAILABLE:
        import cupy

        cupy.cuda.Device().synchronize()  # copies into pinned memory may be under way
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
