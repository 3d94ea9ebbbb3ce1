"""The guard finds the process's own limit in any cgroup layout, fires above its share, and memory grows as it must."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import CrashLoop, OutOfMemory
from trainer.learn.ledger import OUT_OF_MEMORY, Ledger, read_attempts
from trainer.learn.memory_guard import LIMIT_SHARE, MemoryGuard, find_cgroup, require_memory
from workflows.expressions import evaluate
from workflows.substitute import resolve
from workflows.templates import RETRY_EXPRESSION, grown_memory

MIB = 1 << 20
V1_UNLIMITED = 9223372036854771712  # what an unlimited cgroup of version 1 says on x86


class Tree:
    """A fake root with /proc/self and cgroup folders; limits are bytes or the kernel's word for none."""

    def __init__(self, root: Path, own: str, mounts: str):
        self.root = root
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(own)
        (root / "proc/self/mountinfo").write_text(mounts)

    def v1(self, path: str, limit: int, usage: int = 0, inactive: int = 0) -> Path:
        folder = self.root / "sys/fs/cgroup/memory" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
        (folder / "memory.stat").write_text(f"cache 1\ninactive_file 7\ntotal_inactive_file {inactive}\n")
        return folder

    def v2(self, path: str, limit: int | str, usage: int = 0, inactive: int = 0) -> Path:
        folder = self.root / "sys/fs/cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{usage}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\nactive_file 9\n")
        return folder


V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def test_a_container_with_its_own_cgroup_namespace(tmp_path):
    tree = Tree(tmp_path, "0::/\n", V2_MOUNT.format(root="/"))
    folder = tree.v2("", 512 * MIB, usage=300 * MIB, inactive=100 * MIB)
    found = find_cgroup(tmp_path)
    assert (found.folder, found.limit, found.working_set()) == (folder, 512 * MIB, 200 * MIB)


def test_the_smallest_limit_upwards_counts(tmp_path):
    tree = Tree(tmp_path, "0::/user.slice/app.slice/run\n", V2_MOUNT.format(root="/"))
    tree.v2("user.slice", 800 * MIB, usage=799 * MIB)
    tree.v2("user.slice/app.slice", 500 * MIB, usage=450 * MIB)
    tree.v2("user.slice/app.slice/run", "max", usage=40 * MIB)
    tree.v2("other.slice", 1 * MIB)
    found = find_cgroup(tmp_path)
    assert found.folder.name == "app.slice" and found.working_set() == 450 * MIB


def test_version_1_in_a_container_that_sees_the_hosts_path(tmp_path):
    path = "/kubepods/burstable/pod1/abc"
    tree = Tree(tmp_path, f"9:cpu:/x\n4:memory:{path}\n0::/\n", V1_MOUNT.format(root=path))
    folder = tree.v1("", 256 * MIB, usage=200 * MIB, inactive=20 * MIB)
    found = find_cgroup(tmp_path)
    assert (found.folder, found.limit, found.working_set()) == (folder, 256 * MIB, 180 * MIB)


def test_version_1_on_a_host_beside_a_version_2_without_memory(tmp_path):
    mounts = V1_MOUNT.format(root="/") + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    tree = Tree(tmp_path, "4:memory:/jobs/one\n1:name=systemd:/\n0::/\n", mounts)
    (tmp_path / "sys/fs/cgroup/unified").mkdir(parents=True)
    tree.v1("", V1_UNLIMITED)
    tree.v1("jobs", 100 * MIB)
    tree.v1("jobs/one", V1_UNLIMITED)
    assert find_cgroup(tmp_path).folder.name == "jobs"


@pytest.mark.parametrize(
    ("own", "mounts"),
    [
        ("", ""),
        ("0::/\n", ""),
        ("nonsense\n", "nonsense\n - \n1 2 3 - cgroup2\n"),
        ("0::/gone/deep\n", V2_MOUNT.format(root="/")),
        ("4:memory:/\n", V1_MOUNT.format(root="/")),
    ],
)
def test_without_a_limit_there_is_no_guard(tmp_path, own, mounts):
    tree = Tree(tmp_path, own, mounts)
    tree.v2("", "max")
    tree.v1("", V1_UNLIMITED)
    assert find_cgroup(tmp_path) is None


def test_a_path_outside_of_the_mount_means_the_mount(tmp_path):
    tree = Tree(tmp_path, "0::/../../elsewhere\n", V2_MOUNT.format(root="/"))
    tree.v2("", 64 * MIB)
    assert find_cgroup(tmp_path).limit == 64 * MIB


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 10**12), st.integers(0, 10**12), st.integers(0, 10**12))
def test_fires_above_its_share_of_the_limit_and_only_there(limit, usage, inactive):
    with TemporaryDirectory() as folder:
        tree = Tree(Path(folder), "0::/\n", V2_MOUNT.format(root="/"))
        tree.v2("", limit, usage, inactive)
        guard = MemoryGuard(find_cgroup(Path(folder)))
        assert guard.look() == (max(usage - inactive, 0) > LIMIT_SHARE * limit)


def test_the_thread_sets_the_flag_and_it_stays(tmp_path):
    tree = Tree(tmp_path, "0::/\n", V2_MOUNT.format(root="/"))
    tree.v2("", 100 * MIB, usage=50 * MIB)
    with MemoryGuard(find_cgroup(tmp_path), period_s=0.01) as guard:
        time.sleep(0.05)
        assert not guard.exceeded
        guard.require_room("before anything")
        tree.v2("", 100 * MIB, usage=95 * MIB)
        deadline = time.monotonic() + 5
        while not guard.exceeded and time.monotonic() < deadline:
            time.sleep(0.01)
        tree.v2("", 100 * MIB, usage=1 * MIB)
        assert guard.exceeded and guard.describe() == "memory: 95 MiB in use of a limit of 100 MiB"
        with pytest.raises(OutOfMemory, match="95 MiB in use of a limit of 100 MiB, before anything") as error:
            guard.require_room("before anything")
    assert error.value.exit_code == 77


def test_files_that_vanish_do_not_end_the_watch(tmp_path):
    tree = Tree(tmp_path, "0::/\n", V2_MOUNT.format(root="/"))
    folder = tree.v2("", 100 * MIB, usage=99 * MIB)
    cgroup = find_cgroup(tmp_path)
    for text in ("", "nonsense"):
        (folder / "memory.current").write_text(text)
        assert cgroup.working_set() is None
    (folder / "memory.current").unlink()
    assert not MemoryGuard(cgroup).look()


def test_it_can_be_switched_off(tmp_path, monkeypatch):
    tree = Tree(tmp_path, "0::/\n", V2_MOUNT.format(root="/"))
    tree.v2("", 100 * MIB, usage=99 * MIB)
    monkeypatch.setenv("FOXHUNT_MEMORY_GUARD", "off")
    with MemoryGuard(find_cgroup(tmp_path)) as guard:
        assert guard.limit is None and not guard.look()


# -- growth over attempts --


@pytest.mark.parametrize(
    ("pod", "last", "limit", "too_small", "error"),
    [
        ("p", "0", 100, None, None),  # no attempt ran out of memory
        ("p", "75", 200, 100, None),  # more than was too small
        ("p", "75", 100, 100, OutOfMemory),  # an interruption took the growth away
        ("p", "-1", 50, 100, OutOfMemory),
        ("p", "77", 200, 200, CrashLoop),  # grown, and still not more
        ("p", "137", 100, 100, CrashLoop),
        ("", "77", 100, 100, None),  # no workflow gives memory here
        ("p", "75", None, 100, None),  # no limit, or no guard
    ],
)
def test_what_is_known_to_be_too_small_is_refused(monkeypatch, pod, last, limit, too_small, error):
    monkeypatch.setenv("FOXHUNT_POD", pod)
    monkeypatch.setenv("FOXHUNT_LAST_EXIT_CODE", last)
    sizes = [None if n is None else n * MIB for n in (limit, too_small)]
    if error is None:
        require_memory(*sizes)
        return
    with pytest.raises(error, match=f"ran out of memory at {too_small} MiB, and this pod has {limit} MiB"):
        require_memory(*sizes)


def test_the_last_word_says_which_parameter_to_raise(monkeypatch):
    monkeypatch.setenv("FOXHUNT_POD", "p")
    monkeypatch.setenv("FOXHUNT_LAST_EXIT_CODE", "77")
    with pytest.raises(CrashLoop, match=r"larger parameter memory-mi \(now it grows to 200\)"):
        require_memory(200 * MIB, 200 * MIB)


class Workflow:
    """Argo's part: the retry rule and the memory of each attempt, from the template's own expressions."""

    def __init__(self, folder: Path, base: int, patch: pytest.MonkeyPatch):
        self.folder, self.base, self.patch = folder, base, patch
        self.last: dict[str, str] | None = None
        self.trained_under: list[int] = []
        patch.setenv("FOXHUNT_POD", "pod")

    def memory(self) -> int:
        scope = {"workflow": {"parameters": {"memory-mi": str(self.base)}}}
        text = resolve(grown_memory("memory-mi"), scope | ({"lastRetry": self.last} if self.last else {}))
        return int(text.removesuffix("Mi")) * MIB

    def attempt(self, need: int, event: str) -> str:
        """One pod: the exit code that Argo sees, "-1" for a deleted pod."""
        last = self.last or {"exitCode": "0", "status": "", "message": ""}
        for name, value in last.items():
            self.patch.setenv("FOXHUNT_LAST_" + {"exitCode": "EXIT_CODE"}.get(name, name.upper()), value)
        limit, ledger = self.memory(), Ledger(self.folder)
        try:
            ledger.start(500, limit)
            require_memory(limit, ledger.memory_too_small)
        except (OutOfMemory, CrashLoop) as error:
            ledger.end(500, OUT_OF_MEMORY, error.exit_code)
            return str(error.exit_code)
        self.trained_under.append(limit)
        if limit < need * MIB:
            if event == "guard":
                ledger.end(500, OUT_OF_MEMORY, 77)
            return "77" if event == "guard" else "137"
        if event == "deleted":
            return "-1"
        if event == "interrupted":
            ledger.end(500, "interrupted", 75)
            return "75"
        ledger.end(900, "done", 0)
        return "0"

    def ended(self, code: str) -> bool:
        """Takes the end of an attempt in; True when there will be no other."""
        message = "OOMKilled (exit code 137)" if code == "137" else ""
        self.last = {"exitCode": code, "status": "Error" if code == "-1" else "Failed", "message": message}
        return code == "0" or not evaluate(RETRY_EXPRESSION, {"lastRetry": self.last})


EVENTS = st.lists(st.sampled_from(["guard", "kill", "deleted", "interrupted"]), max_size=12)


@settings(deadline=None, max_examples=80)
@given(need=st.integers(1, 400), events=EVENTS)
def test_memory_is_kept_over_interruptions_and_never_asked_for_for_ever(need, events):
    """Whatever interrupts the attempts: it ends, as it must, in two attempts for each event and a few at the end."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        workflow, queue, attempts = Workflow(Path(folder), 100, patch), list(events), 0
        while True:
            attempts += 1
            assert attempts <= 2 * len(events) + 4, read_attempts(Path(folder))
            before = len(workflow.trained_under)
            event = queue[0] if queue else "guard" if need > 200 else "finish"
            code = workflow.attempt(need, event)
            if len(workflow.trained_under) > before and queue:
                queue.pop(0)
            if workflow.ended(code):
                break
        assert code == ("0" if need <= 200 else "76")
        failed = [limit for limit in workflow.trained_under if limit < need * MIB]
        assert len(failed) == len(set(failed)), "trained again under a limit that was too small"
