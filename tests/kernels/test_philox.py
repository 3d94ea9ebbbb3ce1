"""Philox4x32-10 against Random123's published known-answer vectors (kat_vectors, philox 4x32 10)."""

import numpy as np
import pytest

from kernels.philox import Purpose, counter, philox4x32, uniform

FF = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((FF, FF, FF, FF), (FF, FF), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("ctr", "key", "want"), KNOWN)
def test_known_answers(ctr, key, want):
    assert tuple(int(w) for w in philox4x32(*ctr, *key)) == want


def test_uniform_is_exact_in_both_dtypes_and_in_range():
    words = np.array([0, 255, 256, FF], np.uint32)
    u32, u64 = uniform(words, np.float32), uniform(words, np.float64)
    assert (u32.astype(np.float64) == u64).all()
    assert u64[0] == u64[1] == 0.0 and u64[2] == 2.0**-24 and u64[3] < 1.0


def test_counter_separates_step_row_and_purpose():
    draws = [
        counter(np.array([s]), np.arange(4, dtype=np.uint32), p, 7)[0]
        for s in (1, 2, 2**33)
        for p in (Purpose.ACTION, Purpose.RESET)
    ]
    assert len({int(w) for d in draws for w in d}) == 24
