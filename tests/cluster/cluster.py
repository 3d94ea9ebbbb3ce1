"""`up` and `down`: the whole cluster, or nothing of it."""

from __future__ import annotations

import secrets
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.cluster import argo, builds, host, images, node, prerequisites, s3
from tests.cluster.control_plane import start_control_plane
from tests.cluster.host import Skip
from tests.cluster.layout import CGROUP, NODES, RUN, Facts


@contextmanager
def _step(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"{time.monotonic() - started:6.1f} s  {what}", file=sys.stderr, flush=True)


def is_up() -> bool:
    """Whether a cluster of ours was started to its end and its API server still runs."""
    running = {e["name"] for e in host.journal("process") if host.is_running(e["pid"])}
    return bool(host.journal("ready")) and {"etcd", "kube-apiserver"} <= running


def prepare() -> tuple[str, dict[str, Path]]:
    """Packages, programs and images, kept from one cluster to the next: (the project's image, image -> archive)."""
    if reason := prerequisites.reason_to_skip() or prerequisites.install():
        raise Skip(reason)
    try:
        with _step("programs"):
            builds.build()
        if reason := host.time_is_up():
            raise Skip(reason)
        with _step("images"):
            image, archive = images.project()
            return image, {**images.tools(), image: archive}
    except host.ClusterError as error:
        if said := host.unreachable(error):
            raise Skip(f"what the test cluster is built of can't be fetched here: {said}") from error
        raise


def up() -> Facts:
    """Starts the cluster; one that is up already is kept. Whatever goes wrong, Ctrl-C too, takes all of it down."""
    with host.exclusive():
        if is_up():
            return _refresh(Facts.read())
        image, archives = prepare()
        if leftover := host.undo():
            print(f"cleaned after an earlier cluster: {', '.join(leftover)}", file=sys.stderr)
        with _all_or_nothing():
            return _start(image, archives)


def _refresh(facts: Facts) -> Facts:
    """A cluster that is up gets the image and the templates of the code as it is now."""
    image, archive = images.project()
    if image != facts.image:
        with _step(f"{image} on every node"), ThreadPoolExecutor() as pool:
            list(pool.map(lambda spec: node.load(spec, archive), NODES))
        facts = replace(facts, image=image)
        facts.write()
    argo.install_templates(facts)
    return facts


@contextmanager
def _all_or_nothing() -> Iterator[None]:
    """SIGTERM counts as Ctrl-C while starting."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    except BaseException:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        host.undo()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _start(image: str, archives: dict[str, Path]) -> Facts:
    started = time.monotonic()
    host.remember_sysctls()
    facts = Facts(host.free_prefix(), image, images.branch(), secrets.token_hex(8), secrets.token_hex(16))
    facts.write()
    host.make_bridge(facts.gateway)
    host.make_cgroup(CGROUP)
    with ThreadPoolExecutor() as pool:
        machines = pool.submit(_start_machines, facts, archives)
        with _step("control plane"):
            start_control_plane(facts)
        with _step("S3, Argo's objects, templates"):
            s3.start_s3(facts)
            argo.install(facts)
            argo.install_templates(facts)
        with _step("machines with their images"):
            machines.result()
    with _step("nodes ready"):
        for spec in NODES:
            node.start_kubelet(spec, facts)
        for spec in NODES:
            node.finish_node(spec)
    with _step("Argo's controller"):
        argo.wait_for_controller()
        argo.wait_for_claim()
    host.note("ready", seconds=round(time.monotonic() - started, 1))
    return facts


def _start_machines(facts: Facts, archives: dict[str, Path]) -> None:
    seed = images.seed(archives)
    for spec in NODES:
        node.start_containerd(spec, facts, seed)


def down() -> list[str]:
    """Ends and removes everything, whatever state it is in; what was built stays in the cache folder."""
    with host.exclusive():
        return host.undo()


def status() -> str:
    if not RUN.exists():
        return "down"
    lines = ["up" if is_up() else "broken: run `python -m tests.cluster down`"]
    for entry in host.journal("process"):
        state = "running" if host.is_running(entry["pid"]) else "ended"
        lines.append(f"  {entry['name']:<28} pid {entry['pid']:<8} {state}")
    if is_up():
        facts = Facts.read()
        lines += [f"  API server {facts.api}, S3 http://{facts.s3}, image {facts.image}"]
        lines += [
            f"  export KUBECONFIG={RUN}/pki/admin.kubeconfig",
            f"  {builds.program('kubectl')}, {builds.program('argo')}",
        ]
    return "\n".join(lines)
