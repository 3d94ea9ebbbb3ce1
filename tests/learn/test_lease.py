"""One owner a fold folder: a live one refuses, a dead one is replaced at once, a silent one after the stale time."""

import json
import os
import subprocess
import sys
import time

import pytest

from trainer.errors import LeaseError
from trainer.learn.lease import Lease, LeaseLost, owner_of_this_process

HOLD = """
import sys, time
from pathlib import Path
from trainer.learn.lease import Lease
Lease(Path(sys.argv[1])).acquire()
print("mine", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "mine\n"
    yield process
    process.kill()
    process.wait()


def test_a_live_owner_is_refused_with_its_pid(tmp_path, other):
    with pytest.raises(LeaseError, match=f"process {other.pid} .* is working in it"):
        Lease(tmp_path).acquire()


def test_a_killed_owner_is_replaced_at_once_and_the_token_rises(tmp_path, other):
    other.kill()
    other.wait()
    started = time.monotonic()
    with Lease(tmp_path) as lease:
        assert lease.token == 2
        assert time.monotonic() - started < 5
    assert json.loads((tmp_path / "lease").read_text())["released"] is True
    with Lease(tmp_path) as lease:
        assert lease.token == 3


def test_a_silent_owner_on_another_machine_is_replaced_when_stale(tmp_path):
    foreign = owner_of_this_process() | {"boot_id": "elsewhere", "host": "node-7", "pod": "alpha-rl-1"}
    value = {"owner": foreign, "token": 4, "heartbeat": time.time() - 30, "released": False}
    (tmp_path / "lease").write_text(json.dumps(value))
    with pytest.raises(LeaseError, match="pod alpha-rl-1"):
        Lease(tmp_path).acquire()
    (tmp_path / "lease").write_text(json.dumps(value | {"heartbeat": time.time() - 61}))
    with Lease(tmp_path) as lease:
        assert lease.token == 5


def test_the_loser_leaves_without_writing(tmp_path):
    first = Lease(tmp_path, heartbeat_s=0.05)
    first.acquire()
    other = {"owner": first.owner | {"pod": "winner"}, "token": first.token + 1, "heartbeat": time.time()}
    (tmp_path / "lease").write_text(json.dumps(other))
    with pytest.raises(LeaseLost, match="pod winner owns it now"):
        first.check()
    time.sleep(0.2)
    first.release()
    assert json.loads((tmp_path / "lease").read_text())["owner"]["pod"] == "winner"


def test_a_claim_left_by_a_dead_taker_does_not_block(tmp_path):
    claim = tmp_path / "lease.claim-1"
    claim.touch()
    with pytest.raises(LeaseError):
        Lease(tmp_path).acquire()
    old = time.time() - 120
    os.utime(claim, (old, old))
    with Lease(tmp_path, wait_s=3):
        pass


def test_many_takers_one_winner(tmp_path):
    code = HOLD.replace("time.sleep(60)", "time.sleep(2)")
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    winners = sum(b"mine" in p.communicate()[0] for p in processes)
    assert winners == 1


def test_an_unwritable_folder_is_one_clear_line(tmp_path):
    with pytest.raises(LeaseError, match="can't write there"):
        Lease(tmp_path / "missing").acquire()
