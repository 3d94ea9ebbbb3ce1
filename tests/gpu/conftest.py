"""Memory between the files of GPU tests."""

import gc

import pytest

from trainer.device.cuda import why_unavailable


@pytest.fixture(scope="module", autouse=True)
def memory_given_back():
    """What a file's tests have freed goes back to the card after its last one: cupy's pools keep every block they ever
    had, and later files have processes of their own on the card, or count its memory. Recipes hold themselves in
    cycles, so they are collected first."""
    yield
    if why_unavailable() is None:
        import cupy

        cupy.cuda.Device().synchronize()  # copies into pinned memory may be under way
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
