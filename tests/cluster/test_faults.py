"""Every way to lose a pod, and the study ends as if nothing had happened: same state hash, same fold result."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import node
from tests.cluster.layout import Facts, node_spec
from tests.cluster.live import Live, eventually, main_task
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster
Own = tuple[Live, Facts]
CHECKPOINT_EVERY = 100
BEYOND = CHECKPOINT_EVERY + 50  # a step by which the first checkpoint is certainly written
MEMORY = 512  # MiB, the least that submit accepts; the study needs half of it
# Run inside the pod: {deed} is done to the trainer's process.
_TO_TRAINER = """
import glob, os, signal
for path in glob.glob('/proc/[0-9]*/cmdline'):
    words = open(path, 'rb').read().split(b'\\0')
    pid = int(path.split('/')[2])
    if b'python' in words[0] and b'trainer' in words and pid != os.getpid():
        {deed}
"""
# Memory is used up to where the guard acts and the kernel doesn't yet, and then the trainer goes on.
_FILL = (
    """
import time
from trainer.learn.memory_guard import find_cgroup
cgroup, held = find_cgroup(), []
while cgroup.working_set() < 0.95 * cgroup.limit:
    held.append(b'x' * (2 << 20))
"""
    + _TO_TRAINER.format(deed="os.kill(pid, signal.SIGCONT)")
    + "time.sleep(60)\n"
)
# The held trainer, whose guard can't act, is made the kernel's first choice; then memory is used up at once by
# processes that are each smaller than it, since the kernel looks at the size, too.
_EAT = (
    _TO_TRAINER.format(deed="open(f'/proc/{pid}/oom_score_adj', 'w').write('1000')")
    + f"""
import time
for _ in range({MEMORY} // 32):
    if os.fork() == 0:
        block = b'x' * (32 << 20)
        break
time.sleep(60)
"""
)


@dataclass(frozen=True)
class Held:
    """A training pod whose trainer stands still (SIGSTOP), so that it can't finish before a fault gets there."""

    pod: dict[str, Any]
    pid: int  # of the trainer, as this machine sees it
    step: int  # that its log had told by then

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def hold(live: Live, workflow: str, fold: int, beyond: int = BEYOND) -> Held:
    """Waits until a fold's trainer is beyond a step and stops it there."""
    pod = live.running_pod(workflow, fold)
    name, pid = pod["metadata"]["name"], trainer_pid(pod)
    eventually(f"fold {fold} is beyond step {beyond}", lambda: live.step(workflow, fold, name) > beyond, 60)
    os.kill(pid, signal.SIGSTOP)
    return Held(pod, pid, live.step(workflow, fold, name))


def trainer_pid(pod: dict[str, Any]) -> int:
    spec, container = main_task(pod)
    pids = [int(line.split()[0]) for line in node.ctr(spec, "tasks", "ps", container).splitlines()[1:]]
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids}
    return next(pid for pid, words in commands.items() if b"python" in words[0] and b"trainer" in words)


def lost_steps(lines: list[dict[str, Any]], at_least: int = 0) -> int:
    """Steps that were done twice over all attempts; `at_least` is the step that was seen before a kill."""
    starts = {line["attempt"]: line for line in lines if line["event"] == "start"}
    ends = {line["attempt"]: line for line in lines if line["event"] == "end"}
    lost = 0
    for attempt in sorted(starts)[1:]:
        past = ends.get(attempt - 1, {}).get("last_step")
        lost += max(at_least if past is None else int(past), 0) - int(starts[attempt]["resumed_step"])
    return lost


def assert_as_undisturbed(live: Live, run_id: str, name: str, undisturbed: Undisturbed) -> None:
    assert live.wait(name) == "Succeeded", live.explain(name)
    assert {fold: live.done(run_id, fold) for fold in range(3)} == undisturbed.folds


@dataclass(frozen=True)
class Hurt:
    """A study of which each fold suffered another fault, to its end: by fold, what was held and what its pods did."""

    run: str
    phase: str
    held: dict[int, Held]
    again_s: dict[int, float]  # seconds from the fault to training again, where that was waited for


@pytest.fixture(scope="module")
def pods_lost(own: Own) -> Hurt:
    """Fold 0: its pod is deleted. Fold 1: its trainer is killed. Fold 2: its container's first process is killed."""
    live, _ = own
    run = "pods-lost"
    name = live.submit(run)
    live.keep(name)
    held = {fold: hold(live, name, fold) for fold in range(3)}
    live.kubectl("delete", "pod", held[0].name, "--wait=false")
    held[0].go_on()
    os.kill(held[1].pid, signal.SIGKILL)
    kill_main(held[2].pod)
    hurt, again_s = time.monotonic(), {}
    for fold, was in held.items():
        live.running_pod(name, fold, after=frozenset({was.uid}))
        again_s[fold] = time.monotonic() - hurt
    return Hurt(run, live.wait(name), held, again_s)


def assert_fold_as_undisturbed(live: Live, hurt: Hurt, fold: int, undisturbed: Undisturbed) -> None:
    assert hurt.phase == "Succeeded"
    assert live.done(hurt.run, fold) == undisturbed.folds[fold]


def test_deleted_pod_loses_no_step(own: Own, pods_lost: Hurt, undisturbed: Undisturbed, measured: Any) -> None:
    live, _ = own
    assert_fold_as_undisturbed(live, pods_lost, 0, undisturbed)
    lines = live.attempts(pods_lost.run, 0)
    measured("deleted pod: seconds to training again", pods_lost.again_s[0])
    measured("deleted pod: steps lost", lost_steps(lines))
    assert [line["why"] for line in lines if line["event"] == "end"] == ["interrupted", "done"]
    assert lost_steps(lines) == 0
    assert [line for line in lines if line["event"] == "start"][1]["resumed_step"] > 0


def test_killed_trainer_goes_on_from_its_checkpoint(
    own: Own, pods_lost: Hurt, undisturbed: Undisturbed, measured: Any
) -> None:
    """kill -9 of the trainer; the container's first process lives on and reports 137."""
    live, _ = own
    assert_fold_as_undisturbed(live, pods_lost, 1, undisturbed)
    lines = live.attempts(pods_lost.run, 1)
    measured("killed trainer: seconds to training again", pods_lost.again_s[1])
    measured("killed trainer: steps lost", lost_steps(lines, pods_lost.held[1].step))
    first, second = [line for line in lines if line["event"] == "start"]
    assert first["resumed_step"] == 0
    assert second["resumed_step"] >= CHECKPOINT_EVERY and second["resumed_step"] % CHECKPOINT_EVERY == 0


def test_dead_first_process_is_cleared_away_by_argo(
    own: Own, pods_lost: Hurt, undisturbed: Undisturbed, measured: Any
) -> None:
    """Argo's controller ends what is left of the pod by a command inside it."""
    live, _ = own
    assert_fold_as_undisturbed(live, pods_lost, 2, undisturbed)
    measured("dead first process: seconds to training again", pods_lost.again_s[2])
    measured("dead first process: steps lost", lost_steps(live.attempts(pods_lost.run, 2), pods_lost.held[2].step))


@contextmanager
def controller_may_not_exec(live: Live) -> Iterator[None]:
    """Without that right, Argo waits for ever for a main container whose first process was killed."""
    role = live.get("role", "argo-role")
    fewer = json.loads(json.dumps(role))
    for rule in fewer["rules"]:
        rule["resources"] = [r for r in rule["resources"] if r != "pods/exec"]
    live.kubectl("replace", "-f", "-", stdin=json.dumps(fewer))
    try:
        yield
    finally:
        del role["metadata"]["resourceVersion"]
        live.kubectl("replace", "-f", "-", stdin=json.dumps(role))


def test_dead_first_process_is_named_and_healed_by_watch(own: Own, undisturbed: Undisturbed, measured: Any) -> None:
    live, _ = own
    with controller_may_not_exec(live):
        name = live.submit("pid-one-watched")
        held = hold(live, name, 2)
        kill_main(held.pod)
        killed = time.monotonic()
        watched = live.foxhunt("watch", name)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert "main container dead" in watched.stdout
    measured("dead first process, no exec: seconds to the study's end under watch", time.monotonic() - killed)
    assert_as_undisturbed(live, "pid-one-watched", name, undisturbed)
    measured("dead first process, no exec: steps lost", lost_steps(live.attempts("pid-one-watched", 2), held.step))


def test_dead_first_process_is_cured_by_the_deadline_unattended(own: Own, undisturbed: Undisturbed) -> None:
    live, _ = own
    with controller_may_not_exec(live):
        name = live.submit("pid-one-alone", "-p", "attempt-deadline-s=60")
        kill_main(hold(live, name, 0).pod)
        assert_as_undisturbed(live, "pid-one-alone", name, undisturbed)
    ends = [line["why"] for line in live.attempts("pid-one-alone", 0) if line["event"] == "end"]
    assert len(ends) == 2 and ends[-1] == "done", ends


def kill_main(pod: dict[str, Any]) -> None:
    """SIGKILL to the main container's first process, from outside its namespace, where it can't be refused."""
    spec, container = main_task(pod)
    os.kill(node.pid_in(spec, container), signal.SIGKILL)


@pytest.fixture(scope="module")
def memory_used_up(own: Own) -> Hurt:
    """Fold 0: the guard acts. Fold 1: the kernel does, before it can: something in the pod eats the rest at once."""
    live, _ = own
    run = "little-memory"
    name = live.submit(run, "-p", f"memory-mi={MEMORY}")
    live.keep(name)
    held = {fold: hold(live, name, fold) for fold in (0, 1)}
    for fold, deed in ((0, _FILL), (1, _EAT)):
        live.kubectl("exec", held[fold].name, "-c", "main", "--", "python", "-c", deed, check=False)
    return Hurt(run, live.wait(name), held, {})


def test_memory_guard_saves_and_the_retry_gets_more(
    own: Own, memory_used_up: Hurt, undisturbed: Undisturbed, measured: Any
) -> None:
    live, _ = own
    assert_fold_as_undisturbed(live, memory_used_up, 0, undisturbed)
    lines = live.attempts(memory_used_up.run, 0)
    measured("memory used up: steps lost", lost_steps(lines))
    assert [line["exit_code"] for line in lines if line["event"] == "end"] == [77, 0]
    assert lost_steps(lines) == 0
    assert_grown(lines)


def test_oom_kill_is_told_from_a_crash_and_gets_more_memory(
    own: Own, memory_used_up: Hurt, undisturbed: Undisturbed, measured: Any
) -> None:
    live, _ = own
    assert_fold_as_undisturbed(live, memory_used_up, 1, undisturbed)
    lines = live.attempts(memory_used_up.run, 1)
    first = next(line for line in lines if line["event"] == "end")
    measured("eaten memory: exit code of the attempt", float(first["exit_code"] or 0))
    measured("eaten memory: steps lost", lost_steps(lines, memory_used_up.held[1].step))
    assert first["why"] == "out of memory"
    assert_grown(lines)


def assert_grown(lines: list[dict[str, Any]]) -> None:
    limits = [line["memory_limit"] for line in lines if line["event"] == "start"]
    assert limits == [MEMORY << 20, 2 * MEMORY << 20]


def test_lost_node_moves_its_folds(own: Own, undisturbed: Undisturbed, measured: Any) -> None:
    """A machine dies for good; once its node object is deleted, the fold goes on elsewhere from its checkpoint."""
    live, facts = own
    name = live.submit("node-lost")
    held = hold(live, name, 1)
    spec = node_spec(held.pod["spec"]["nodeName"])
    node.lose(spec)
    try:
        lost = time.monotonic()
        eventually("the node is not ready", lambda: not node.is_ready(spec.name), 90)
        measured("lost node: seconds to NotReady", time.monotonic() - lost)
        live.kubectl("delete", "node", spec.name)
        assert_as_undisturbed(live, "node-lost", name, undisturbed)
        measured("lost node: seconds to the study's end", time.monotonic() - lost)
        measured("lost node: steps lost", lost_steps(live.attempts("node-lost", 1), held.step))
    finally:
        node.bring_back(spec, facts)


def test_a_fold_that_fails_for_good_leaves_the_others_and_a_report(own: Own, undisturbed: Undisturbed) -> None:
    live, _ = own
    folder = live.folder("one-fails")
    folder.mkdir(parents=True, mode=0o777)
    folder.chmod(0o777)
    (folder / "fold1").write_text("in the way\n")  # where a folder must be
    name = live.submit("one-fails")
    assert live.wait(name) == "Failed"
    (failed,) = [n for n in live.nodes(name, "train", "Retry") if n["phase"] != "Succeeded"]
    assert failed["displayName"].startswith("fold-1-")
    (attempt,) = [n for n in live.nodes(name, "train") if n["phase"] != "Succeeded"]  # a mistake is not retried
    assert "exit code 2" in attempt["message"]
    (gate,), (report,) = (live.nodes(name, leaf) for leaf in ("gate", "report"))
    assert (gate["phase"], report["phase"]) == ("Failed", "Succeeded")
    assert "exit code 3" in gate["message"]
    assert {fold: live.done("one-fails", fold) for fold in (0, 2)} == {fold: undisturbed.folds[fold] for fold in (0, 2)}
    assert "fold 1" in live.read("one-fails", "report.html")
    assert live.foxhunt("watch", name).returncode == 2, "the fold's own code says more than the gate's"
