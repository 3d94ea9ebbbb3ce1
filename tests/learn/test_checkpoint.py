"""Checkpoints are whole or not there; each way of being wrong has its own message; a failed write loses nothing."""

import errno

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import CheckpointError, Interrupted
from trainer.learn import checkpoint as ck

META = {"config.env.fee_ticks": "0.1", "data.digest": "abc", "device": "cpu", "version.numpy": "2"}
ARRAYS = {
    "param.flat": np.arange(7, dtype=np.float32),
    "clock.step": np.array([1000], np.int64),
    "replay.mask": np.eye(3, dtype=np.uint8),
    "empty": np.zeros((0, 4), np.float32),
}


def write(tmp_path, step=1000, meta=META, arrays=ARRAYS):
    path = ck.checkpoint_path(tmp_path, step)
    ck.write_checkpoint(path, step, arrays, meta)
    return path


def test_round_trip_is_bit_exact(tmp_path):
    found = ck.read_checkpoint(write(tmp_path))
    assert found.step == 1000 and found.meta == META
    assert ck.state_hash(found.arrays) == ck.state_hash(ARRAYS)
    assert found.arrays["empty"].shape == (0, 4)


def test_header_is_the_documented_one(tmp_path):
    raw = write(tmp_path).read_bytes()
    assert raw[:4] == b"FOXH" and raw[4:8] == b"\x01\0\0\0" and raw[8:16] == (1000).to_bytes(8, "little")
    assert raw[16:20] == (len(ARRAYS) + 2).to_bytes(4, "little")
    assert raw[20:22] == b"\x08\0" and raw[22:30] == b"manifest"
    assert raw[-4 - 8 - 6 : -12] == b"crc32c"


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_flipped_bit_or_cut_is_noticed(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("ck"))
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(CheckpointError) as error:
        ck.read_checkpoint(path)
    assert str(path) in str(error.value) and error.value.exit_code == 2


def test_each_fault_has_its_own_message(tmp_path):
    path = write(tmp_path)
    raw = path.read_bytes()
    for damaged, words in [
        (raw[:10], "not even a header"),
        (raw[:-9], "truncated"),
        (raw[:40] + bytes([raw[40] ^ 1]) + raw[41:], "CRC32C"),
        (raw[:4] + b"\x07\0\0\0" + raw[8:], "format version 7"),
        (b"PK\x03\x04" + raw[4:], "not a foxhunt checkpoint"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=words):
            ck.read_checkpoint(path)
    with pytest.raises(CheckpointError, match="no such file"):
        ck.read_checkpoint(tmp_path / "checkpoint-1.bin")


def test_newest_valid_falls_back_and_says_so(tmp_path, caplog):
    write(tmp_path, 500)
    newest = write(tmp_path, 1000)
    newest.write_bytes(newest.read_bytes()[:-20])
    assert ck.newest_valid(tmp_path).step == 500
    assert ck.newest_valid(tmp_path / "nowhere") is None


def test_other_config_data_and_machine(tmp_path):
    ck.check_same(META, META, tmp_path)
    with pytest.raises(CheckpointError, match=r"another config: env.fee_ticks was 0.1, now 0.2"):
        ck.check_same(META, META | {"config.env.fee_ticks": "0.2"}, tmp_path)
    with pytest.raises(CheckpointError, match=r"another data set: digest was abc, now def"):
        ck.check_same(META, META | {"data.digest": "def"}, tmp_path)
    assert ck.check_same(META, META | {"device": "NVIDIA H200"}, tmp_path) == ["device was cpu, now NVIDIA H200"]


def test_writer_keeps_two_and_copies_nothing_late(tmp_path):
    writer = ck.CheckpointWriter(tmp_path, META)
    for step in (1, 2, 3):
        writer.submit(step, lambda step=step: {"a": np.full(3, step)})
    writer.close()
    assert [p.name for p in ck.list_checkpoints(tmp_path)] == ["checkpoint-3.bin", "checkpoint-2.bin"]
    assert not list(tmp_path.glob("*.tmp")) and not list(tmp_path.glob(".*.tmp"))


def test_a_full_disk_keeps_the_old_file_and_ends_in_75_after_three(tmp_path, monkeypatch):
    write(tmp_path, 1)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ck, "write_checkpoint", full)
    writer = ck.CheckpointWriter(tmp_path, META)
    for step in (2, 3):
        writer.submit(step, lambda: ARRAYS)
        writer.drain()
    monkeypatch.undo()
    writer.submit(4, lambda: ARRAYS)
    writer.drain()
    assert writer.failures == 0 and writer.last_step == 4
    monkeypatch.setattr(ck, "write_checkpoint", full)
    with pytest.raises(Interrupted, match=r"3 writes in a row failed.*No space left"):
        for step in (5, 6, 7, 8):
            writer.submit(step, lambda: ARRAYS)
            writer.drain()
    assert [ck.read_checkpoint(p).step for p in ck.list_checkpoints(tmp_path)] == [4, 1]


def test_a_call_off_before_the_rename_leaves_nothing(tmp_path):
    def lost():
        raise Interrupted("lease lost")

    with pytest.raises(Interrupted):
        ck.write_checkpoint(ck.checkpoint_path(tmp_path, 1), 1, ARRAYS, META, before_rename=lost)
    assert list(tmp_path.iterdir()) == []


def failing(*_):
    raise RuntimeError("the card is gone")


@pytest.mark.parametrize("how", ["load", "verify", "before_rename"])
def test_what_fails_on_the_thread_is_raised_by_the_next_call(tmp_path, how):
    """None of these is a disk fault: no second attempt, and the older file stays."""
    write(tmp_path, 1)
    hooks = {name: failing for name in ("verify", "before_rename") if name == how}
    writer = ck.CheckpointWriter(tmp_path, META, **hooks)
    writer.submit(2, failing if how == "load" else lambda: ARRAYS)
    with pytest.raises(RuntimeError, match="the card is gone"):
        writer.drain()
    for call in (writer.check, writer.close, lambda: writer.submit(3, lambda: ARRAYS)):
        with pytest.raises(RuntimeError, match="the card is gone"):
            call()
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-1.bin"]


def test_arrays_are_verified_before_they_are_written(tmp_path):
    seen = []
    writer = ck.CheckpointWriter(tmp_path, META, verify=lambda step, arrays: seen.append((step, arrays)))
    writer.submit(7, lambda: ARRAYS)
    writer.close()
    assert seen == [(7, ARRAYS)] and writer.last_step == 7


def test_an_array_larger_than_a_piece_keeps_its_checksum(tmp_path):
    big = np.random.default_rng(0).integers(0, 256, 2 * ck.PIECE + 17, np.uint8)
    found = ck.read_checkpoint(write(tmp_path, arrays={"big": big, "small": big[:3]}))
    assert np.array_equal(found.arrays["big"], big) and np.array_equal(found.arrays["small"], big[:3])
