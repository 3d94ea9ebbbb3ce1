"""Marks of the tests that need a GPU: skipped, with the reason, where there is none."""

import pytest

from trainer.device.cuda import why_unavailable
from trainer.device.source import missing_sources

NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))]
NEEDS_ALL_KERNELS = [
    *NEEDS_GPU,
    pytest.mark.skipif(bool(missing_sources()), reason=f"no CUDA source yet: {', '.join(missing_sources())}"),
]
