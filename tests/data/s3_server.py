"""A small S3 over HTTP on loopback: HEAD, GET with ranges and If-Match, ListObjectsV2 in pages, faults on demand."""

from __future__ import annotations

import hashlib
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class FakeS3:
    """`with FakeS3({"bucket": {"a/b.csv": b"..."}}) as s3:`; `url` is its endpoint, `requests` what it was asked."""

    page = 2  # keys of a listing's page

    def __init__(self, buckets: dict[str, dict[str, bytes]]):
        self.buckets, self.requests = buckets, []
        self.modified = formatdate(usegmt=True)
        self.refuse: dict[str, tuple[int, str]] = {}  # key -> (status, code)
        self.cut = 0  # bytes after which the next answers to GET break off; 0: never
        self.cuts = 0  # how many answers do
        self.etags = True  # False: a store that has none for files put into its folder by hand
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> FakeS3:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def etag(self, bucket: str, key: str) -> str:
        return f'"{hashlib.md5(self.buckets[bucket][key]).hexdigest()}"'

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def log_message(self, *_: object) -> None:
                pass

            def answer(self) -> None:
                parts = urlsplit(self.path)
                bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
                fake.requests.append((self.command, key, self.headers.get("Range", "")))
                if key in fake.refuse:
                    return self.error(*fake.refuse[key])
                if bucket not in fake.buckets:
                    return self.error(404, "NoSuchBucket")
                if not key:
                    return self.listing(bucket, parse_qs(parts.query))
                if key not in fake.buckets[bucket]:
                    return self.error(404, "NoSuchKey")
                return self.object(bucket, key)

            def object(self, bucket: str, key: str) -> None:
                data, etag = fake.buckets[bucket][key], fake.etag(bucket, key)
                if self.headers.get("If-Match", etag) != etag:
                    return self.error(412, "PreconditionFailed")
                first = int((self.headers.get("Range") or "bytes=0-")[6:-1])
                known = {"ETag": etag} if fake.etags else {}
                self.send(206 if first else 200, data[first:], {**known, "Last-Modified": fake.modified})

            def listing(self, bucket: str, query: dict[str, list[str]]) -> None:
                prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]
                keys = [k for k in sorted(fake.buckets[bucket]) if k.startswith(prefix) and k > after]
                shown, more = keys[: fake.page], len(keys) > fake.page
                rows = "".join(
                    f"<Contents><Key>{escape(k)}</Key><Size>{len(fake.buckets[bucket][k])}</Size>"
                    f"<ETag>{escape(fake.etag(bucket, k))}</ETag></Contents>"
                    for k in shown
                )
                token = f"<NextContinuationToken>{shown[-1]}</NextContinuationToken>" if more else ""
                body = (
                    f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
                )
                self.send(200, body.encode(), {"Content-Type": "application/xml"})

            def error(self, status: int, code: str) -> None:
                body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
                self.send(status, body.encode(), {"Content-Type": "application/xml"})

            def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                if fake.cuts and status in (200, 206) and "Last-Modified" in headers:
                    fake.cuts -= 1
                    self.wfile.write(body[: fake.cut])
                    self.close_connection = True
                    return
                self.wfile.write(body)

        return Handler
