"""`s3://bucket/key` and `s3://bucket/prefix/` as files: downloaded once into `<cache>/inputs/`, by any S3 endpoint.

Credentials, region and endpoint are boto3's own (AWS_ACCESS_KEY_ID, AWS_PROFILE, a pod's identity; AWS_ENDPOINT_URL).
A file's folder is named by a hash of version (ETag), size and address, so a changed object is another file; a complete
one is there under its own name or not at all, so two pods at once end with one valid file.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import structlog

from trainer.errors import DataError, FoxhuntError, Interrupted, UsageError, of_os_error

SCHEME = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_BLOCK = 1 << 20  # bytes
_STALE_PART_S = 86_400.0  # a part this old belongs to a process that died
_BROKEN_OFF = 5  # answers in a row that ended without a new byte
_NOT_DATA = re.compile(r"(^|/)[._][^/]*$|\.json$|\.md5$|\.txt$|/$")  # what data vendors put beside the data

log = structlog.get_logger()
T = TypeVar("T")


@dataclass(frozen=True)
class S3Object:
    bucket: str
    key: str
    size: int  # bytes
    version: str  # its ETag in quotes; where the server has none, when it was last modified

    @property
    def uri(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    def place(self, cache: Path) -> Path:
        """Where the file lies in the cache."""
        identity = "\n".join((self.version, str(self.size), self.uri))
        return cache / "inputs" / hashlib.sha256(identity.encode()).hexdigest()[:32] / self.name


def is_s3(uri: str | Path) -> bool:
    return str(uri).startswith(SCHEME)


def fetch_inputs(uris: Sequence[str | Path], cache: str | Path, client: Any = None) -> list[str]:
    """The same inputs with every s3:// address replaced by local files, in key order where it is a prefix.

    Raises DataError for a wrong address or key, UsageError for credentials and rights, Interrupted (to be tried again)
    for an endpoint that doesn't answer.
    """
    if not any(is_s3(uri) for uri in uris):
        return [str(uri) for uri in uris]
    client = client or make_client()
    files: list[str] = []
    for uri in map(str, uris):
        files += [str(fetch(client, one, Path(cache))) for one in find(client, uri)] if is_s3(uri) else [uri]
    return files


def identity(uris: Sequence[str | Path], client: Any = None) -> tuple[str, str]:
    """(addresses with size and ETag of every object, why they are only addresses or ""); never raises.

    Where there are no credentials or another store answers than the one that the data will be read from, an address
    is all that is known.
    """
    texts = [str(uri) for uri in uris]
    known = ",".join(texts)
    try:
        if client is None and _no_credentials():
            return known, "no credentials for S3 here"
        client = client or make_client(patient=False)
        for i, uri in enumerate(texts):
            if is_s3(uri):
                texts[i] = " ".join(f"{one.uri}:{one.size}:{one.version}".replace('"', "") for one in find(client, uri))
    except FoxhuntError as error:
        return known, str(error).splitlines()[0]
    return ",".join(texts), ""


def _no_credentials() -> bool:
    import boto3

    _drop_empty_settings()
    return _translated(lambda: boto3.Session().get_credentials(), SCHEME) is None


def make_client(patient: bool = True) -> Any:
    """boto3's client with its own settings; `patient`: it tries for minutes, not for seconds."""
    import boto3
    from botocore.config import Config

    _drop_empty_settings()
    attempts = {"mode": "standard", "max_attempts": 5 if patient else 1}
    config = Config(connect_timeout=10 if patient else 3, read_timeout=60 if patient else 5, retries=attempts)
    # A store of one's own has no regions, but the signature wants one.
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    own_store = {} if region or not os.environ.get("AWS_ENDPOINT_URL") else {"region_name": "us-east-1"}
    return _translated(lambda: boto3.Session().client("s3", config=config, **own_store), SCHEME)


def _drop_empty_settings() -> None:
    """An empty variable of a template or a secret is no setting."""
    for name in [name for name, value in os.environ.items() if name.startswith("AWS_") and not value]:
        del os.environ[name]


def parse(uri: str) -> tuple[str, str]:
    """(bucket, key or prefix)."""
    bucket, slash, key = uri.removeprefix(SCHEME).partition("/")
    if not _BUCKET.fullmatch(bucket) or not slash:
        raise DataError(
            f"{uri}: not an S3 address\nwrite s3://bucket/key, or s3://bucket/prefix/ for every file below it"
        )
    return bucket, key


def find(client: Any, uri: str) -> list[S3Object]:
    """The object of a key, or the objects below a prefix (an address that ends with a slash), in key order."""
    bucket, key = parse(uri)
    if key and not key.endswith("/"):
        head = _translated(lambda: client.head_object(Bucket=bucket, Key=key), uri)
        if not head["ContentLength"]:
            raise DataError(f"{uri}: the object is empty\nput it there again")
        return [S3Object(bucket, key, int(head["ContentLength"]), _version(head))]
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
    found = _translated(lambda: [item for page in pages for item in page.get("Contents", [])], uri)
    objects = [
        S3Object(bucket, item["Key"], int(item["Size"]), _version(item))
        for item in sorted(found, key=lambda item: str(item["Key"]))
        if item["Size"] and not _NOT_DATA.search(item["Key"])
    ]
    if not objects:
        raise DataError(f"{uri}: no market data below this prefix ({len(found)} objects)\ncheck bucket and prefix")
    log.info("objects below the prefix", uri=uri, files=len(objects), skipped=len(found) - len(objects))
    return objects


def _version(answer: Any) -> str:
    # Listings may know parts of a second that other answers don't.
    return str(answer.get("ETag") or answer["LastModified"].replace(microsecond=0).isoformat())


def fetch(client: Any, what: S3Object, cache: Path) -> Path:
    """The object's local file, downloaded when it is not there yet."""
    path = what.place(cache)
    if path.is_file() and path.stat().st_size == what.size:
        log.info("s3 hit", uri=what.uri, path=str(path))
        return path
    log.info("s3 download", uri=what.uri, mib=round(what.size / 2**20, 1), path=str(path))
    started = time.monotonic()
    part = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.part")
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        try:
            with part.open("wb") as file:
                _download(client, what, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    log.info("s3 downloaded", uri=what.uri, seconds=round(time.monotonic() - started, 1))
    return path


def _download(client: Any, what: S3Object, file: BinaryIO) -> None:
    """All bytes of one version of the object; an answer that breaks off is continued where it ended."""
    from botocore.exceptions import HTTPClientError, IncompleteReadError, ResponseStreamingError

    broken = 0
    while file.tell() < what.size:
        before = file.tell()
        asked = {"Bucket": what.bucket, "Key": what.key}
        if what.version.endswith('"'):
            asked["IfMatch"] = what.version
        if before:
            asked["Range"] = f"bytes={before}-"
        answer = _translated(lambda asked=asked: client.get_object(**asked), what.uri)  # type: ignore[misc]
        if _version(answer) != what.version:
            raise _changed(what.uri)
        with suppress(IncompleteReadError, ResponseStreamingError, HTTPClientError), closing(answer["Body"]) as body:
            for block in iter(lambda body=body: body.read(_BLOCK), b""):  # type: ignore[misc]
                file.write(block)
        if file.tell() > what.size:
            raise _changed(what.uri)
        broken = 0 if file.tell() > before else broken + 1
        if broken == _BROKEN_OFF:
            raise Interrupted(
                f"{what.uri}: the endpoint broke off after {before} of {what.size} bytes, {broken} times in a row\n"
                "run the same command again"
            )


def _changed(uri: str) -> Interrupted:
    return Interrupted(f"{uri}: the object changed while it was downloaded\nrun the same command again")


def _sweep(folder: Path) -> None:
    for part in folder.glob(".*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _STALE_PART_S:
                part.unlink()


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise (of_os_error(error) or error) from None


def _translated(call: Callable[[], T], uri: str) -> T:
    """boto3's own errors as ours, one clear line and what to do."""
    from botocore import exceptions as boto

    try:
        return call()
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound) as error:
        raise UsageError(f"{uri}: no credentials for S3 ({_one_line(error)})\n{_CREDENTIALS}") from None
    except boto.ClientError as error:
        raise _of_answer(error, uri) from None
    except (boto.NoRegionError, boto.InvalidRegionError, ValueError) as error:  # ValueError: no URL in AWS_ENDPOINT_URL
        raise UsageError(f"{uri}: {_one_line(error)}\nset AWS_ENDPOINT_URL and AWS_REGION for your store") from None
    except (boto.ConnectionError, boto.HTTPClientError) as error:
        where = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_S3") or "AWS"
        raise Interrupted(
            f"{uri}: the S3 endpoint ({where}) can't be reached: {_one_line(error)}\n"
            "check AWS_ENDPOINT_URL and the network, then run the same command again"
        ) from None
    except boto.BotoCoreError as error:
        raise DataError(f"{uri}: {_one_line(error)}\ncheck the address and the AWS_... settings") from None


_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; on a cluster put them into the secret that the "
    "parameter s3-secret names"
)


def _of_answer(error: Any, uri: str) -> FoxhuntError:
    """What the server's refusal means. A HEAD has no body, so its code is the bare status."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    bucket, key = parse(uri)
    match code:
        case "NoSuchBucket":
            return DataError(f"{uri}: no bucket {bucket!r} at this endpoint\ncheck the name and AWS_ENDPOINT_URL")
        case "NoSuchKey" | "404" | "NotFound":
            return DataError(f"{uri}: no such object, or no such bucket\ncheck both names; a prefix ends with a slash")
        case "PreconditionFailed" | "412" | "InvalidRange" | "416":
            return _changed(uri)
        case "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken" | "401":
            return UsageError(f"{uri}: S3 refuses the credentials ({code})\n{_CREDENTIALS}")
        case "AccessDenied" | "403" | "AllAccessDisabled" | "Forbidden":
            needed = "s3:GetObject" if key and not key.endswith("/") else "s3:ListBucket and s3:GetObject"
            return UsageError(f"{uri}: access denied\nthese credentials are wrong, or need {needed} on bucket {bucket}")
    if status >= 500 or status == 429 or code in ("SlowDown", "Throttling", "RequestTimeout", "InternalError"):
        return Interrupted(f"{uri}: S3 answers {code or status}\nrun the same command again")
    return DataError(f"{uri}: S3 answers {_one_line(error)}\ncheck the address and the AWS_... settings")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
