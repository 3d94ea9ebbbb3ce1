"""Shared helpers: where real market data lies, if it is there."""

import os

# Before NumPy is loaded: one BLAS thread, as the command line has it. More would change bits, and on a busy machine
# their waiting for each other costs several times the work.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from pathlib import Path  # noqa: E402

import pytest  # noqa: E402

try:
    from hypothesis import settings
except ImportError:  # a machine with a GPU and little else runs tests/gpu alone
    pass
else:
    # CI tries the same examples at every run: a new one is for a person at work to find, not for a landing to meet.
    settings.register_profile("ci", derandomize=True)
    if os.environ.get("CI"):
        settings.load_profile("ci")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data(relative: str) -> Path:
    """Path of a real market data file beside the checkout; skips the test with the reason where it is absent."""
    path = SHARED_DATA / relative
    if not path.exists():
        pytest.skip(f"real market data {relative} is not beside this checkout (looked in {SHARED_DATA})")
    return path
