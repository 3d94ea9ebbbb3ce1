"""What an image reference names: asks the registry for the digest behind a tag, so that every attempt runs the same.

An image that a registry doesn't know and a registry that doesn't answer are different things: only the first is wrong.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflows.errors import UsageError

_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
REFERENCE = re.compile(
    r"(?:(?P<host>localhost(?::\d+)?|[\w.-]+\.[\w.-]+(?::\d+)?|[\w-]+:\d+|\[[0-9a-f:]+\](?::\d+)?)/)?"
    rf"(?P<name>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
# Manifests and indexes, of OCI and of Docker: without them a registry answers with an obsolete form, or 404.
_ACCEPT = ", ".join(
    [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Image:
    """A reference in its parts; `str()` puts it together again."""

    host: str
    name: str
    tag: str
    digest: str

    def __str__(self) -> str:
        base = f"{self.host}/{self.name}" if self.host else self.name
        return f"{base}@{self.digest}" if self.digest else f"{base}:{self.tag or 'latest'}"

    @property
    def manifest_url(self) -> str:
        here = re.fullmatch(
            r"(localhost|127\.[\d.]+|\[::1\])(:\d+)?", self.host
        )  # as Docker does: plain HTTP on loopback
        what = self.digest or self.tag or "latest"
        return f"{'http' if here else 'https'}://{self.host}/v2/{self.name}/manifests/{what}"


@dataclass(frozen=True)
class Found:
    """What the registry said. `there` is None when it could not be asked; then `why` says what happened."""

    there: bool | None
    digest: str = ""
    why: str = ""


def parse(reference: str) -> Image:
    match = REFERENCE.fullmatch(reference)
    if not match:
        raise UsageError(
            f"image {reference!r}: not an image reference\nwrite it as registry/name:tag or name@sha256:..."
        )
    return Image(*(match[part] or "" for part in ("host", "name", "tag", "digest")))


def look_up(image: Image, seconds: float = 3.0) -> Found:
    """Asks the image's registry, with the login that docker, podman or buildah keeps."""
    if not image.host:  # mostly an image that was loaded into the nodes
        return Found(None, why="it names no registry")
    request = urllib.request.Request(image.manifest_url, method="HEAD", headers={"Accept": _ACCEPT})
    login = _login(image.host)
    if login:
        request.add_header("Authorization", f"Basic {login}")
    try:
        try:
            return _digest(request, seconds)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or not challenge.lower().startswith("bearer"):
                raise
            request.add_header("Authorization", f"Bearer {_token(challenge, login, seconds)}")
            return _digest(request, seconds)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return Found(False)
        return Found(None, why=f"its registry answers {error.code} {error.reason}")
    except (OSError, ValueError, KeyError) as error:
        return Found(None, why=f"its registry can't be asked: {getattr(error, 'reason', error)}")


def _digest(request: urllib.request.Request, seconds: float) -> Found:
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return Found(True, answer.headers.get("Docker-Content-Digest", ""))


def _token(challenge: str, login: str, seconds: float) -> str:
    """The pull token that a registry's `WWW-Authenticate: Bearer realm=...,service=...,scope=...` asks for."""
    parts = dict(_CHALLENGE.findall(challenge))
    url = parts.pop("realm") + "?" + urllib.parse.urlencode(parts)
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"} if login else {})
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        told = json.load(answer)
    return str(told.get("token") or told["access_token"])


def _login(host: str) -> str:
    """base64 of user:password for a registry; "" when none is kept in a file (credential helpers are not asked)."""
    for path in (Path.home() / ".docker/config.json", Path.home() / ".config/containers/auth.json"):
        try:
            auths: dict[str, Any] = json.loads(path.read_text()).get("auths", {})
        except (OSError, ValueError):
            continue
        login = str(auths.get(host, {}).get("auth", ""))
        if login and b":" in base64.b64decode(login):
            return login
    return ""
