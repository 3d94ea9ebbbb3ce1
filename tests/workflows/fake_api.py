"""An API server in this process: keeps objects by path, answers as Kubernetes does, records what it was asked."""

from __future__ import annotations

import json
import ssl
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

ARGO = "/apis/argoproj.io/v1alpha1/namespaces/foxhunt"
CORE = "/api/v1/namespaces/foxhunt"
NOBODY = "system:anonymous"
LISTS = {
    "namespaces": "NamespaceList",
    "nodes": "NodeList",
    "pods": "PodList",
    "persistentvolumeclaims": "PersistentVolumeClaimList",
    "events": "EventList",
    "resourcequotas": "ResourceQuotaList",
    "limitranges": "LimitRangeList",
    "workflows": "WorkflowList",
    "workflowtemplates": "WorkflowTemplateList",
    "deployments": "DeploymentList",
}


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any


@dataclass
class FakeApi:
    """`objects`: path -> object. `answers`: path -> (status, body) instead. `denied`: (verb, resource) of no right.

    `denied_to`: the same for other users than the one who asks. Whoever sends no token is nobody, as on a real server:
    told the version, and forbidden everything else, the question who one is included.
    """

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    denied: set[tuple[str, str]] = field(default_factory=set)
    denied_to: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    token: str = "right"
    user: str = "me"
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def put(self, path: str, **tree: Any) -> dict[str, Any]:
        tree.setdefault("metadata", {}).setdefault("name", path.rpartition("/")[2])
        self.objects[path] = tree
        return tree

    def asked(self, method: str, part: str = "") -> list[Request]:
        return [r for r in self.requests if r.method == method and part in r.path]

    def answer(self, request: Request, token: str) -> tuple[int, Any]:
        user = self.user if token else NOBODY
        if token and token != f"Bearer {self.token}":
            return status(401, "Unauthorized", "Unauthorized")
        if request.path == "/version":
            return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.4", **VERSION_REST}
        verb = self.verb(request)
        resource = request.path.split("/")[-1 if verb in ("list", "create") else -2]
        if user == NOBODY or (verb, resource) in self.denied:
            return forbidden(user, verb, resource, request.path)
        if request.path in self.answers:
            return self.answers[request.path]
        if resource.endswith("accessreviews"):
            return 201, self.review(request.body)
        if resource == "selfsubjectreviews":
            return 201, {**request.body, "status": {"userInfo": {"username": user}}}
        return getattr(self, verb)(request, resource)

    def verb(self, request: Request) -> str:
        if request.method == "GET":
            return "list" if request.path.rpartition("/")[2] in LISTS else "get"
        return {"POST": "create", "PUT": "update"}[request.method]

    def get(self, request: Request, resource: str) -> tuple[int, Any]:
        name = request.path.rpartition("/")[2]
        found = self.objects.get(request.path)
        return (200, found) if found else status(404, "NotFound", f'{resource} "{name}" not found')

    def list(self, request: Request, resource: str) -> tuple[int, Any]:
        wanted = [pair for pair in request.query.get("labelSelector", "").split(",") if pair]
        name = request.query.get("fieldSelector", "").partition("metadata.name=")[2]
        prefix, _, plural = request.path.rpartition("/")

        def asked_for(path: str) -> bool:
            parent = path.rpartition("/")[0]
            inside = parent.startswith(f"{prefix}/namespaces/") and parent.endswith(f"/{plural}")
            return parent == request.path or ("/namespaces/" not in request.path and inside)

        items = [tree for path, tree in self.objects.items() if asked_for(path)]
        items = [t for t in items if not name or t["metadata"]["name"] == name]
        items = [t for t in items if all(selects(pair, t["metadata"].get("labels", {})) for pair in wanted)]
        return 200, {"kind": LISTS[resource], "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}

    def create(self, request: Request, resource: str) -> tuple[int, Any]:
        space = request.path.split("/namespaces/")[1].split("/")[0]
        if f"/api/v1/namespaces/{space}" not in self.objects:
            return status(404, "NotFound", f'namespaces "{space}" not found')
        made = json.loads(json.dumps(request.body))
        made["metadata"].setdefault("name", made["metadata"].get("generateName", "") + "abcde")
        path = f"{request.path}/{made['metadata']['name']}"
        if path in self.objects:
            return status(409, "AlreadyExists", f'{resource} "{made["metadata"]["name"]}" already exists')
        if request.query.get("dryRun") != "All":
            self.objects[path] = made
        return 201, made

    def update(self, request: Request, resource: str) -> tuple[int, Any]:
        if request.path not in self.objects:
            return status(404, "NotFound", f"{resource} not found")
        if request.query.get("dryRun") != "All":
            self.objects[request.path] = request.body
        return 200, request.body

    def review(self, body: Any) -> dict[str, Any]:
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        denied = self.denied_to.get(body["spec"]["user"], set()) if "user" in body["spec"] else self.denied
        return {**body, "status": {"allowed": (asked["verb"], resource) not in denied}}


def forbidden(user: str, verb: str, resource: str, path: str) -> tuple[int, Any]:
    """In a real server's words."""
    parts = path.split("/")
    group = parts[2] if parts[1] == "apis" else ""
    where = f'in the namespace "{parts[parts.index("namespaces") + 1]}"' if "namespaces" in parts[:-1] else ""
    full = f"{resource}.{group}" if group else resource
    says = f'{full} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group "{group}" '
    return status(403, "Forbidden", says + (where or "at the cluster scope"))


def selects(pair: str, labels: dict[str, str]) -> bool:
    """`key=value`, `key!=value` or `key`."""
    if "=" not in pair:
        return pair in labels
    key, equal, value = pair.partition("!=") if "!=" in pair else pair.partition("=")
    return (labels.get(key) == value) == (equal == "=")


VERSION_REST = {
    "buildDate": "2026-01-01T00:00:00Z",
    "compiler": "gc",
    "gitCommit": "0",
    "gitTreeState": "clean",
    "goVersion": "go1.26",
    "platform": "linux/amd64",
}


def status(code: int, reason: str, message: str) -> tuple[int, Any]:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return code, {**body, "code": code, "metadata": {}}


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A client that leaves or trusts us not is no error of the server's."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*_)


class Server:
    """Serves a FakeApi on a loopback port while the `with` block runs, over TLS when it gets a context for that."""

    def __init__(self, api: FakeApi, tls: ssl.SSLContext | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                url = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                query = {k: v[-1] for k, v in parse_qs(url.query).items()}
                request = Request(self.command, url.path.rstrip("/"), query, body)
                api.requests.append(request)
                code, tree = api.answer(request, self.headers.get("Authorization", ""))
                raw = isinstance(tree, str)
                data = tree.encode() if raw else json.dumps(tree).encode()
                self.send_response(code)
                self.send_header("Content-Type", "text/plain" if raw else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

            def log_message(self, *args: Any) -> None:
                pass

        self.http = _Quiet(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        if tls:  # the handshake in the connection's own thread, so that one that fails leaves the server alone
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True, do_handshake_on_connect=False)
        api.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.http.server_port}"

    def __enter__(self) -> Server:
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


def write_kubeconfig(
    path: Path, server: str, token: str = "right", user: dict[str, Any] | None = None, authority: str = ""
) -> Path:
    """A kubeconfig with two contexts, `here` (current) and `elsewhere`. `user`: in place of the token."""
    cluster = {"server": server, **({"certificate-authority": authority} if authority else {})}
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "fake", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": token} if user is None else user}],
        "contexts": [{"name": name, "context": {"cluster": "fake", "user": "me"}} for name in ("here", "elsewhere")],
    }
    path.write_text(yaml.safe_dump(tree))
    return path
