"""Shared helpers: where real market data lies, if it is there."""

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data(relative: str) -> Path:
    """Path of a real market data file beside the checkout; skips the test with the reason where it is absent."""
    path = SHARED_DATA / relative
    if not path.exists():
        pytest.skip(f"real market data {relative} is not beside this checkout (looked in {SHARED_DATA})")
    return path
