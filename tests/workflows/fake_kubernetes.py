"""An API server in this process that lives: objects change, watches hear of it, logs grow, pods are deleted.

It speaks real HTTP to the real client. A pod whose command is `python -c ...` is run, with /claim being a folder, so
that what reads the claim is tested as it is.
"""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from tests.workflows.cluster_objects import NAMESPACE, Study
from tests.workflows.fake_api import ARGO, CORE, VERSION_REST
from tests.workflows.fake_api import status as status_of


class FakeKubernetes:
    """`put` and `remove` change objects as a controller would; watchers hear of it."""

    def __init__(self, claim: Path) -> None:
        self.claim = claim
        self.objects: dict[str, dict[str, dict[str, Any]]] = {"workflows": {}, "pods": {}, "nodes": {}}
        self.events: list[dict[str, Any]] = []
        self.logs: dict[str, list[bytes]] = {}
        self.denied: dict[tuple[str, str], int] = {}  # (method, part of the path) -> status
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.created: list[dict[str, Any]] = []
        self.version, self.oldest = 1, 0
        self.drop_streams = False
        self.finished_logs: set[str] = set()
        self.on_delete: Callable[[str], None] | None = None
        self.watchers: list[tuple[str, queue.Queue[dict[str, Any] | None]]] = []
        self.lock = threading.RLock()
        self.server = _Server(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.end_watches()
        self.server.shutdown()
        self.server.server_close()

    def study(self, study: Study) -> None:
        """Puts a workflow and its pods."""
        self.put("workflows", study.tree)
        for pod in study.pods.values():
            self.put("pods", pod)

    def put(self, kind: str, tree: dict[str, Any]) -> None:
        with self.lock:
            name = tree["metadata"]["name"]
            self.version += 1
            tree = json.loads(json.dumps(tree))
            tree["metadata"]["resourceVersion"] = str(self.version)
            known = name in self.objects[kind]
            self.objects[kind][name] = tree
            self._tell(kind, "MODIFIED" if known else "ADDED", tree)

    def remove(self, kind: str, name: str) -> None:
        with self.lock:
            self.version += 1
            tree = self.objects[kind].pop(name)
            tree["metadata"]["resourceVersion"] = str(self.version)
            self._tell(kind, "DELETED", tree)

    def _tell(self, kind: str, what: str, tree: dict[str, Any]) -> None:
        for watched, waiting in self.watchers:
            if watched == kind:
                waiting.put({"type": what, "object": tree})

    def end_watches(self) -> None:
        """Every watch ends cleanly, as after its timeout."""
        with self.lock:
            for _, waiting in self.watchers:
                waiting.put(None)

    def forget(self) -> None:
        """History up to now is compacted: a watch from an older version gets 410."""
        self.oldest = self.version

    def log(self, pod: str, *lines: str, at: float | None = None) -> None:
        moment = time.time() if at is None else at
        for number, line in enumerate(lines):
            whole, part = divmod(moment + number * 1e-6, 1)
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int(part * 1e9):09d}Z"
            self.logs.setdefault(pod, []).append(f"{stamp} {line}\n".encode())

    def asked(self, method: str, part: str) -> list[dict[str, str]]:
        return [query for verb, path, query, _ in self.requests if verb == method and part in path]

    def run_pod(self, pod: dict[str, Any]) -> None:
        """Runs the command of a pod that mounts the claim."""
        name, command = pod["metadata"]["name"], pod["spec"]["containers"][0]["command"]
        words = [word.replace("/claim", str(self.claim)) for word in command]
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
        self.log(name, *done.stdout.splitlines())
        self.finished_logs.add(name)
        pod["status"] = {"phase": "Succeeded" if done.returncode == 0 else "Failed"}
        self.put("pods", pod)

    def items(self, kind: str, query: dict[str, str]) -> list[dict[str, Any]]:
        with self.lock:
            return [o for o in self.objects[kind].values() if matches(o, query)]


def matches(tree: dict[str, Any], query: dict[str, str]) -> bool:
    """Whether an object is selected, by name or by labels (`a=b`, `a!=b` and `a in (b, c)`)."""
    field = query.get("fieldSelector", "")
    if field.startswith("metadata.name=") and field.partition("=")[2] != tree["metadata"]["name"]:
        return False
    labels = tree["metadata"].get("labels", {})
    for key, listed in re.findall(r"([^,\s]+) in \(([^)]*)\)", query.get("labelSelector", "")):
        if labels.get(key) not in [value.strip() for value in listed.split(",")]:
            return False
    equal = re.sub(r"[^,\s]+ in \([^)]*\)", "", query.get("labelSelector", ""))
    pairs = re.findall(r"([^,=!\s]+)(!?=)([^,]*)", equal)
    return all((labels.get(key) == value) == (sign == "=") for key, sign, value in pairs)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that cuts a stream off is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*_)  # type: ignore[arg-type]


def _handler(fake: FakeKubernetes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self) -> None:
            url = urlparse(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            with fake.lock:
                fake.requests.append((self.command, url.path, query, body))
                denied = next((s for (m, p), s in fake.denied.items() if m == self.command and p in url.path), 0)
            if denied:
                return self._refuse(denied, f"{self.command} {url.path} is not allowed")
            try:
                self._route(url.path, query, body)
            except KeyError as missing:
                self._refuse(404, f"{missing} not found")

        do_GET = do_POST = do_PATCH = do_DELETE = _serve

        def _route(self, path: str, query: dict[str, str], body: Any) -> None:
            if path == "/version":
                return self._answer({"major": "1", "minor": "34", "gitVersion": "v1.34.4", **VERSION_REST})
            if path == f"/api/v1/namespaces/{NAMESPACE}":
                return self._answer({"metadata": {"name": NAMESPACE}})
            if path.startswith("/api/v1/nodes/"):
                return self._answer(fake.objects["nodes"][path.rpartition("/")[2]])
            if path == f"{CORE}/events":
                name = query["fieldSelector"].rpartition("=")[2]
                found = [e for e in fake.events if e["involvedObject"]["name"] == name]
                return self._answer({"items": found, "metadata": {}})
            for kind, base in (("workflows", ARGO), ("pods", CORE)):
                if path.startswith(f"{base}/{kind}"):
                    return self._object(kind, path.removeprefix(f"{base}/{kind}").strip("/"), query, body)
            self._refuse(404, "404 page not found")

        def _object(self, kind: str, name: str, query: dict[str, str], body: Any) -> None:
            if self.command == "POST":
                return self._create(kind, body, query)
            if query.get("watch") == "true":
                return self._watch(kind, query)
            if not name:
                with fake.lock:
                    return self._answer(
                        {"items": fake.items(kind, query), "metadata": {"resourceVersion": str(fake.version)}}
                    )
            if name.endswith("/log"):
                return self._log(name.removesuffix("/log"), query)
            tree = fake.objects[kind][name]
            if self.command == "DELETE":
                fake.remove(kind, name)
                if fake.on_delete:
                    fake.on_delete(name)
            elif self.command == "PATCH":
                assert self.headers["Content-Type"] == "application/merge-patch+json"
                fake.put(kind, {**tree, "spec": {**tree["spec"], **body["spec"]}})
            self._answer(fake.objects[kind].get(name, tree))

        def _create(self, kind: str, body: Any, query: dict[str, str]) -> None:
            if "dryRun" not in query:
                body["metadata"].setdefault("uid", f"uid-{body['metadata']['name']}")
                fake.created.append(body)
                fake.put(kind, {**body, "status": {"phase": "Pending"}} if kind == "pods" else body)
                if kind == "pods":
                    threading.Thread(target=fake.run_pod, args=(body,), daemon=True).start()
            self._answer(body, 201)

        def _watch(self, kind: str, query: dict[str, str]) -> None:
            waiting: queue.Queue[dict[str, Any] | None] = queue.Queue()
            with fake.lock:
                known = int(query["resourceVersion"])
                for tree in fake.items(kind, query):
                    if int(tree["metadata"]["resourceVersion"]) > known:
                        waiting.put({"type": "MODIFIED", "object": tree})
                fake.watchers.append((kind, waiting))
                gone = known < fake.oldest

            def events() -> Iterator[bytes]:
                if gone:
                    told = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                    yield json.dumps({"type": "ERROR", "object": told}).encode() + b"\n"
                    return
                while (event := waiting.get()) is not None:
                    if matches(event["object"], query):
                        yield json.dumps(event).encode() + b"\n"

            self._stream(events())
            with fake.lock:
                fake.watchers.remove((kind, waiting))

        def _log(self, name: str, query: dict[str, str]) -> None:
            if name not in fake.objects["pods"]:
                return self._refuse(404, f'pods "{name}" not found')
            stamps = query.get("timestamps") == "true"
            known = fake.logs.get(name, [])
            start = max(0, len(known) - int(query.get("tailLines", len(known))))

            def lines() -> Iterator[bytes]:
                sent = start
                while True:
                    have = list(fake.logs.get(name, []))
                    for line in have[sent:]:
                        data = line if stamps else line.partition(b" ")[2]
                        yield data[: len(data) // 2]  # anywhere, also within a character
                        yield data[len(data) // 2 :]
                    sent = len(have)
                    over = name in fake.finished_logs or name not in fake.objects["pods"]
                    if query.get("follow") != "true" or (over and sent == len(fake.logs.get(name, []))):
                        return
                    if fake.drop_streams:
                        fake.drop_streams = False
                        raise ConnectionError
                    time.sleep(0.02)

            self._stream(lines())

        def _stream(self, chunks: Iterator[bytes]) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for chunk in chunks:
                    if chunk:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                        self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True

        def _refuse(self, status: int, message: str) -> None:
            self._answer(status_of(status, "Refused", message)[1], status)

        def _answer(self, tree: Any, status: int = 200) -> None:
            data = json.dumps(tree).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
