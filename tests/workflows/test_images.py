"""Image references and what a registry says of them: with and without a login, absent, unreachable."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from workflows.errors import UsageError
from workflows.images import Found, look_up, parse

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "parts", "url"),
    [
        ("ghcr.io/me/foxhunt:v1", ("ghcr.io", "me/foxhunt", "v1", ""), "https://ghcr.io/v2/me/foxhunt/manifests/v1"),
        ("localhost/foxhunt", ("localhost", "foxhunt", "", ""), "http://localhost/v2/foxhunt/manifests/latest"),
        ("reg:5000/a/b:t", ("reg:5000", "a/b", "t", ""), "https://reg:5000/v2/a/b/manifests/t"),
        (f"127.0.0.1:5/a@{DIGEST}", ("127.0.0.1:5", "a", "", DIGEST), f"http://127.0.0.1:5/v2/a/manifests/{DIGEST}"),
        (f"r.io/a:t@{DIGEST}", ("r.io", "a", "t", DIGEST), f"https://r.io/v2/a/manifests/{DIGEST}"),
    ],
)
def test_references(text: str, parts: tuple[str, ...], url: str) -> None:
    image = parse(text)
    assert (image.host, image.name, image.tag, image.digest) == parts
    assert image.manifest_url == url


@pytest.mark.parametrize("text", ["", "A", "a b", "a:", "a@sha256:12", "https://r.io/a", "a/-b", "a:t:t"])
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(UsageError, match="not an image reference"):
        parse(text)


class Registry(BaseHTTPRequestHandler):
    """Wants a token for `private`, which it gives to who logs in; knows the tag `there`."""

    login = base64.b64encode(b"me:secret").decode()
    asked: list[tuple[str, str]] = []  # noqa: RUF012

    def do_HEAD(self) -> None:
        allowed = "/private/" not in self.path or self.headers.get("Authorization") == "Bearer pull-it"
        if not allowed:
            self.send_response(401)
            realm = f"http://{self.headers['Host']}/token"
            self.send_header(
                "WWW-Authenticate", f'Bearer realm="{realm}",service="reg",scope="repository:private:pull"'
            )
        elif self.path.endswith("/broken"):
            self.send_response(500)
        else:
            self.send_response(200 if self.path.endswith("/there") else 404)
            self.send_header("Docker-Content-Digest", DIGEST)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization", "")))
        right = self.headers.get("Authorization") == f"Basic {self.login}"
        body = json.dumps({"token": "pull-it"} if right else {"errors": []}).encode()
        self.send_response(200 if right else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("HOME", str(tmp_path))
    Registry.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_open_repositories(host: str) -> None:
    assert look_up(parse(f"{host}/a:there")) == Found(True, DIGEST)
    assert look_up(parse(f"{host}/a:absent")) == Found(False)
    broken = look_up(parse(f"{host}/a:broken"))
    assert broken.there is None and "answers 500" in broken.why


def test_a_login_gets_a_token(host: str, tmp_path: Path) -> None:
    image = parse(f"{host}/private/a:there")
    without = look_up(image)
    assert without.there is None and "answers 401" in without.why, "not allowed to look is not absent"
    folder = tmp_path / ".config" / "containers"
    folder.mkdir(parents=True)
    (folder / "auth.json").write_text(json.dumps({"auths": {host: {"auth": Registry.login}}}))
    assert look_up(image) == Found(True, DIGEST)
    path, login = Registry.asked[-1]
    assert path == "/token?service=reg&scope=repository%3Aprivate%3Apull" and login.startswith("Basic ")


def test_a_damaged_login_file_is_no_login(host: str, tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text("{")
    assert look_up(parse(f"{host}/a:there")).there


def test_registries_that_cannot_be_asked() -> None:
    assert look_up(parse("foxhunt:latest")) == Found(None, why="it names no registry")
    gone = look_up(parse("127.0.0.1:1/foxhunt:latest"))
    assert gone.there is None and "can't be asked" in gone.why
