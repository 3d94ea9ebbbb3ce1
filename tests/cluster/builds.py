"""The Go programs of the cluster, built once and kept in a cache folder keyed by the go.mod and go.sum files.

Kubernetes, etcd and versitygw build from their modules. Argo's module archive lacks a symlink and the built web page,
so its folder is copied and completed first. These old releases serve a throw-away cluster; nothing ships them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

from tests.cluster import host
from tests.cluster.host import run
from tests.cluster.layout import CACHE

SOURCES = Path(__file__).with_name("go")
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
ARGO = ("workflow-controller", "argoexec", "argo")
PROGRAMS = (*KUBERNETES, *ARGO, "etcd", "versitygw")
_ARGO_MODULE = "github.com/argoproj/argo-workflows/v4"
_RECIPE = b"1"  # raise it when the way of building changes
_KEPT = 2  # build folders of earlier keys


def folder() -> Path:
    """Where the programs of the present go.mod files lie."""
    digest = hashlib.sha256(_RECIPE)
    for file in sorted(SOURCES.glob("*/go.*")):
        digest.update(f"{file.parent.name}/{file.name}\0".encode() + file.read_bytes())
    return CACHE / "builds" / digest.hexdigest()[:16]


def program(name: str) -> Path:
    return folder() / "bin" / name


def manifests() -> Path:
    """Argo's own YAML: CRDs and RBAC."""
    return folder() / "argo-manifests"


def build() -> None:
    """Builds what is missing, at low priority; about 15 minutes on two cores with empty Go caches."""
    (folder() / "bin").mkdir(parents=True, exist_ok=True)
    _prune()
    for names, make in ((("etcd",), _etcd), (KUBERNETES, _kubernetes), (ARGO, _argo), (("versitygw",), _versitygw)):
        if all(program(name).is_file() for name in names):
            continue
        if reason := host.time_is_up():
            raise host.Skip(reason)
        started = time.monotonic()
        print(f"building {', '.join(names)}", file=sys.stderr, flush=True)
        make()
        print(f"  {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _prune() -> None:
    old = sorted(folder().parent.iterdir(), key=lambda p: p.stat().st_mtime)
    for path in old[:-_KEPT]:
        if path != folder():
            shutil.rmtree(path, ignore_errors=True)


def _go(where: Path, *argv: str, mode: str = "readonly") -> str:
    env = {
        "CGO_ENABLED": "0",
        "GOFLAGS": f"-buildvcs=false -mod={mode}",
        "GOWORK": "off",
        "GOTOOLCHAIN": os.environ.get("GOTOOLCHAIN", "auto"),
    }
    return run("nice", "-n", "10", "go", *argv, cwd=where, env=env)


def _compile(where: Path, packages: list[str], ldflags: str = "") -> None:
    """Builds into a folder aside and moves each finished program: an interrupted build leaves no half of one."""
    aside = folder() / f"making-{os.getpid()}"
    aside.mkdir(exist_ok=True)
    try:
        _go(where, "build", "-trimpath", "-ldflags", f"-s -w {ldflags}", "-o", f"{aside}/", *packages)
        for file in aside.iterdir():
            file.replace(program("etcd" if file.name == "v3" or file.name == "server" else file.name))
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _etcd() -> None:
    _compile(SOURCES / "etcd", ["go.etcd.io/etcd/server/v3"])


def _versitygw() -> None:
    _compile(SOURCES / "versitygw", ["github.com/versity/versitygw/cmd/versitygw"])


def _kubernetes() -> None:
    """The version is linked in: without it the server calls itself v0.0.0-master and clients complain."""
    where = SOURCES / "kubernetes"
    version = _go(where, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").strip()
    major, minor, _ = version.removeprefix("v").split(".")
    package = "k8s.io/component-base/version"
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    ldflags = " ".join(f"-X {package}.{name}={value}" for name, value in values.items())
    _compile(where, [f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES], ldflags)


def argo_version() -> str:
    """The version in its go.mod."""
    lines = (SOURCES / "argo" / "go.mod").read_text().split()
    return lines[lines.index(_ARGO_MODULE) + 1]


def _argo() -> None:
    found = json.loads(
        _go(SOURCES / "argo", "mod", "download", "-json", f"{_ARGO_MODULE}@{argo_version()}", mode="mod")
    )
    source = folder() / "argo-source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(found["Dir"], source, copy_function=shutil.copyfile)
    signals = source / "workflow" / "executor" / "osspecific"
    shutil.copyfile(signals / "signal_darwin.go", signals / "signal_linux.go")
    page = source / "ui" / "dist" / "app" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<!doctype html><title>no web page in this build</title>\n")
    _compile(source, [f"./cmd/{name}" for name in ARGO], f"-X {_ARGO_MODULE}.version={argo_version()}")
    shutil.rmtree(manifests(), ignore_errors=True)
    shutil.copytree(source / "manifests", manifests())
    shutil.rmtree(source)
