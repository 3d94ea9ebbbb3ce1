"""Images: pause, Argo's executor, and the project's own, built on a Debian base without any image registry."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster import node
from tests.cluster.builds import argo_version, program
from tests.cluster.host import kill_cgroup, run
from tests.cluster.layout import CACHE, CGROUP, NodeSpec
from tests.cluster.node import PAUSE

ROOT = Path(__file__).resolve().parents[2]
BASE = "localhost/foxhunt-base:bookworm"
EXECUTOR = f"localhost/argoexec:{argo_version()}"
CONTROLLER_IMAGE = f"localhost/workflow-controller:{argo_version()}"
_BASE_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_PAUSE_C = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
/* Holds a pod's namespaces: sleeps, reaps what is handed to it, ends on a signal. */
static void end(int signum) { (void)signum; _exit(0); }
int main(void) {
    signal(SIGTERM, end);
    signal(SIGINT, end);
    for (;;) { while (waitpid(-1, 0, WNOHANG) > 0) {} pause(); }
}
"""
_CONTENT = ("Dockerfile", ".dockerignore", "pyproject.toml", "trainer", "kernels", "workflows")
_KEPT = 3  # archives of earlier versions of the project's image


def buildah(*argv: str | Path) -> str:
    """buildah with storage of its own, which no other container tool of this machine sees."""
    storage = ("--root", CACHE / "storage", "--runroot", CACHE / "storage-run", "--storage-driver", "overlay")
    return run("nice", "-n", "10", "buildah", *storage, *argv)


def has(image: str) -> bool:
    return image in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _scratch(image: str, files: dict[str, Path], *config: str) -> None:
    """An image from nothing but some files."""
    container = buildah("from", "scratch").strip()
    try:
        for where, file in files.items():
            buildah("copy", "--chmod", "755", container, file, where)
        buildah("config", *config, container)
        buildah("commit", "--quiet", container, image)
    finally:
        buildah("rm", container)


def archive(image: str, key: str) -> Path:
    """The image as a file to import, without compression: it never leaves this machine."""
    name = image.removeprefix("localhost/").replace(":", "-")
    path = CACHE / "images" / f"{name}-{key}.tar"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        buildah("push", "--quiet", "--disable-compression", image, f"oci-archive:{aside}:{image}")
        aside.replace(path)
        others = sorted(path.parent.glob(f"{name.partition('-')[0]}-*.tar"), key=lambda p: p.stat().st_mtime)
        for old in others[:-_KEPT]:
            old.unlink()
    return path


def pause() -> Path:
    key = hashlib.sha256(_PAUSE_C.encode()).hexdigest()[:12]
    if not has(PAUSE) or not (CACHE / "images" / f"pause-1-{key}.tar").is_file():
        with tempfile.TemporaryDirectory() as folder:
            source, binary = Path(folder, "pause.c"), Path(folder, "pause")
            source.write_text(_PAUSE_C)
            run("gcc", "-static", "-Os", "-o", binary, source)
            _scratch(PAUSE, {"/pause": binary}, "--entrypoint", '["/pause"]', "--user", "65535:65535")
    return archive(PAUSE, key)


def argo(image: str, name: str) -> Path:
    """One of Argo's programs, alone in an image."""
    binary = program(name)
    key = binary.parents[1].name
    if not (CACHE / "images" / f"{name}-{argo_version()}-{key}.tar").is_file():
        where = f"/bin/{name}"
        _scratch(image, {where: binary}, "--entrypoint", f'["{where}"]', "--user", "8737")
    return archive(image, key)


def tools() -> dict[str, Path]:
    """Image -> archive of everything but the project."""
    names = {EXECUTOR: "argoexec", CONTROLLER_IMAGE: "workflow-controller"}
    return {PAUSE: pause(), **{image: argo(image, name) for image, name in names.items()}}


def _mirror() -> str:
    """The Debian mirror that this machine itself uses."""
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    words = [word for file in files if file.is_file() for word in file.read_text().split()]
    found = [w for w in words if w.startswith("http") and w.rstrip("/").endswith("/debian")]
    return found[0] if found else "http://deb.debian.org/debian"


def base() -> None:
    """Debian with Python, as the Dockerfile's base."""
    if has(BASE):
        return
    started = time.monotonic()
    _say("making the base image")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="debootstrap-") as folder:
        os.chmod(folder, 0o755)
        options = ("--variant=minbase", f"--include={_BASE_PACKAGES}")
        run("nice", "-n", "10", "debootstrap", *options, "bookworm", folder, _mirror())
        for waste in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
            shutil.rmtree(Path(folder, waste), ignore_errors=True)
        container = buildah("from", "scratch").strip()
        try:
            buildah("copy", "--quiet", container, folder, "/")
            buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
            buildah("commit", "--quiet", container, BASE)
        finally:
            buildah("rm", container)
    _say(f"  {time.monotonic() - started:.0f} s")


def _git(*argv: str) -> str:
    return run("git", "-C", ROOT, *argv).strip()


def branch() -> str:
    """The branch of this checkout; a clone in a pipeline may have none."""
    name = _git("rev-parse", "--abbrev-ref", "HEAD")
    return "main" if name == "HEAD" else name


def project_key() -> str:
    """Over what goes into the image: tracked and new files outside of tests and docs, and the branch's name.

    The commit inside is the first one with these files: another that changes tests alone needs no other image.
    """
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_CONTENT).split("\0")
    digest = hashlib.sha256(branch().encode())
    for name in sorted(filter(None, listed)):
        file = ROOT / name
        if file.is_file():
            digest.update(f"{name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def project() -> tuple[str, Path]:
    """(name, archive) of the project's CPU image: its own Dockerfile on the local base."""
    key = project_key()
    image = f"localhost/foxhunt:{key}"
    if (CACHE / "images" / f"foxhunt-{key}-{key}.tar").is_file():
        return image, archive(image, key)
    base()
    started = time.monotonic()
    _say(f"building {image}")
    arguments = {"BASE": BASE, "COMMIT": _git("rev-parse", "HEAD"), "BRANCH": branch()}
    options = ["--isolation", "chroot", "--pull-never", "--network", "host", "--layers", "--quiet"]
    if certificate := os.environ.get("PIP_CERT"):
        options += ["--volume", f"{certificate}:/etc/ssl/certs/ca-certificates.crt:ro"]
    for name, value in arguments.items():
        options += ["--build-arg", f"{name}={value}"]
    buildah("bud", *options, "--tag", image, ROOT)
    _say(f"  {time.monotonic() - started:.0f} s")
    return image, archive(image, key)


def seed(archives: dict[str, Path]) -> Path:
    """A containerd root that holds these images, imported once and kept until they change.

    It starts from the one before it, which has most of the layers.
    """
    key = hashlib.sha256(" ".join(sorted(path.name for path in archives.values())).encode()).hexdigest()[:16]
    path = CACHE / "seeds" / key
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    earlier = sorted(path.parent.iterdir(), key=lambda p: p.stat().st_mtime)
    importer = NodeSpec("seed", "", 0, 0, (0, 0))
    importer.folder.mkdir()
    if earlier:
        node.copy_root(earlier[-1], importer.folder / "root")
    node.run_containerd(importer)
    for file in archives.values():
        node.load(importer, file)
    for image in node.ctr(importer, "images", "ls", "-q").split():
        if image.startswith("localhost/") and image not in archives:
            node.ctr(importer, "images", "rm", "--sync", image)
    kill_cgroup(f"{CGROUP}/{node.services(importer)}")
    aside = path.with_suffix(".making")
    run("mv", importer.folder / "root", aside)
    aside.rename(path)
    for folder in earlier:
        shutil.rmtree(folder)
    return path
