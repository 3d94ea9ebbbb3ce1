"""What the machine must have. What can be installed is installed; anything else is a reason to skip."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = {  # Debian package -> a file that tells that it is there
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "iptables",
    "iproute2": "ip",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "openssl": "openssl",
    "gcc": "gcc",
    "libc6-dev": "/usr/include/stdio.h",
}


def reason_to_skip() -> str:
    """Why this machine can't run the cluster, "" when it can. Installs nothing."""
    if platform.system() != "Linux":
        return "the test cluster needs Linux"
    if os.geteuid() != 0:
        return "the test cluster needs root (cgroups, mounts, a bridge)"
    if shutil.which("go") is None:
        return "the test cluster needs Go to build Kubernetes and Argo"
    if missing() and shutil.which("apt-get") is None:
        return f"the test cluster needs {', '.join(missing())}, and there is no apt-get to install them"
    if not any(os.access(f"/sys/fs/cgroup{sub}", os.W_OK) and _writable(sub) for sub in ("", "/pids")):
        return "the test cluster needs to make cgroups, and /sys/fs/cgroup can't be written here"
    return ""


def _writable(sub: str) -> bool:
    """Whether /sys/fs/cgroup<sub> is mounted for writing; root passes access checks on read-only mounts otherwise."""
    try:
        return not os.statvfs(f"/sys/fs/cgroup{sub}").f_flag & os.ST_RDONLY
    except OSError:
        return False


def missing() -> list[str]:
    return [package for package, file in PACKAGES.items() if not _is_there(file)]


def _is_there(file: str) -> bool:
    return Path(file).exists() if file.startswith("/") else shutil.which(file) is not None


def install() -> str:
    """Installs absent packages; returns a reason to skip when they can't be had."""
    wanted = missing()
    if not wanted:
        return ""
    print(f"installing {', '.join(wanted)}", file=sys.stderr, flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *wanted]):
        done = subprocess.run(["apt-get", "-q", *command], capture_output=True, text=True, env=env)
    if done.returncode or missing():
        return f"can't install {', '.join(missing() or wanted)}: {done.stderr.strip().splitlines()[-1:]}"
    return ""
