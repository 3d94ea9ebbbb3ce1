"""One owner a fold folder: a live one refuses, a dead one is replaced at once, a silent one after the stale time."""

import json
import os
import subprocess
import sys
import time

import pytest

from trainer.errors import Interrupted, LeaseError
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


# -- what the workflow knows of the attempt before --


def in_pod(monkeypatch, retries, code, status, workflow="uid-1"):
    for name, value in {
        "FOXHUNT_POD": f"pod-{retries}",
        "FOXHUNT_WORKFLOW": workflow,
        "FOXHUNT_RETRIES": str(retries),
        "FOXHUNT_LAST_EXIT_CODE": code,
        "FOXHUNT_LAST_STATUS": status,
    }.items():
        monkeypatch.setenv(name, value)


def held_elsewhere(folder, retries, workflow="uid-1"):
    """A lease with a fresh heartbeat, held on another node by attempt `retries`."""
    owner = owner_of_this_process() | {"boot_id": "elsewhere", "pod": f"pod-{retries}"}
    owner |= {"workflow": workflow, "retries": str(retries)}
    (folder / "lease").write_text(json.dumps({"owner": owner, "token": 7, "heartbeat": time.time(), "released": False}))


@pytest.mark.parametrize("code", ["137", "139", "75", "77", "1"])
def test_an_attempt_whose_exit_code_is_known_is_dead(tmp_path, monkeypatch, code):
    held_elsewhere(tmp_path, retries=2)
    in_pod(monkeypatch, 3, code, "Failed")
    with Lease(tmp_path) as lease:
        assert lease.token == 8


@pytest.mark.parametrize(
    ("owner", "here", "code", "status"),
    [
        ((2, "uid-1"), (3, "uid-1"), "-1", "Error"),  # pod deleted: its process may go on behind a cut network
        ((2, "uid-1"), (3, "uid-1"), "0", "Failed"),  # no code known, as after the loss of a node
        ((2, "uid-1"), (3, "uid-1"), "137", "Error"),
        ((1, "uid-1"), (3, "uid-1"), "137", "Failed"),  # the code is another attempt's
        ((3, "uid-1"), (3, "uid-1"), "137", "Failed"),
        ((2, "uid-0"), (3, "uid-1"), "137", "Failed"),  # another workflow's attempt
        ((2, ""), (3, ""), "137", "Failed"),  # no workflow
    ],
)
def test_otherwise_the_heartbeat_decides(tmp_path, monkeypatch, owner, here, code, status):
    held_elsewhere(tmp_path, *owner)
    in_pod(monkeypatch, here[0], code, status, here[1])
    with pytest.raises((LeaseError, Interrupted), match=f"pod pod-{owner[0]} is working in it"):
        Lease(tmp_path).acquire()
    value = json.loads((tmp_path / "lease").read_text())
    (tmp_path / "lease").write_text(json.dumps(value | {"heartbeat": time.time() - 61}))
    with Lease(tmp_path) as lease:
        assert lease.token == 8


def test_an_earlier_attempt_that_works_on_is_waited_for_a_rival_is_a_mistake(tmp_path, monkeypatch):
    in_pod(monkeypatch, 3, "-1", "Error")
    held_elsewhere(tmp_path, retries=2)
    with pytest.raises(Interrupted, match="an earlier attempt that the workflow believes ended") as error:
        Lease(tmp_path).acquire()
    assert error.value.exit_code == 75  # retried
    held_elsewhere(tmp_path, retries=2, workflow="another")
    with pytest.raises(LeaseError) as error:
        Lease(tmp_path).acquire()
    assert error.value.exit_code == 2  # not retried
