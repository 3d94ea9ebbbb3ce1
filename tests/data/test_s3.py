"""s3:// inputs: fetched once, whole or not at all, from any endpoint; every refusal is one clear message."""

import hashlib
import json
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.response import StreamingBody
from botocore.stub import Stubber

from tests.data.s3_server import FakeS3
from trainer.data import s3
from trainer.data.inputs import input_digest
from trainer.errors import DataError, FoxhuntError, Interrupted, UsageError

DATA = bytes(range(256)) * 20_000  # several blocks
ROWS = b"ts_event,bid_px_00,ask_px_00,bid_sz_00,ask_sz_00\n"


@pytest.fixture
def aws(monkeypatch, tmp_path):
    """No settings of this machine's user."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def server(aws, monkeypatch):
    objects = {
        "es/2024/1.csv": b"one",
        "es/2024/2.csv": b"two",
        "es/2024/3.csv": b"three",
        "es/2024/": b"",
        "es/2024/manifest.json": b"{}",
        "es/2024/_SUCCESS": b"x",
        "es/big.dbn": DATA,
        "es/empty.csv": b"",
        "es/no.csv": b"x",
    }
    with FakeS3({"market": objects, "void": {}}) as fake:
        fake.refuse = {"es/no.csv": (403, "AccessDenied")}
        monkeypatch.setenv("AWS_ENDPOINT_URL", fake.url)
        yield fake


def gets(server):
    return [key for method, key, _ in server.requests if method == "GET"]


def test_an_object_is_fetched_once(server, tmp_path):
    (path,) = s3.fetch_inputs(["s3://market/es/big.dbn"], tmp_path)
    assert open(path, "rb").read() == DATA
    assert path.startswith(str(tmp_path / "inputs")) and path.endswith("/big.dbn")
    assert input_digest([path]) == hashlib.sha256(DATA).hexdigest()
    assert s3.fetch_inputs(["s3://market/es/big.dbn"], tmp_path) == [path]
    assert gets(server) == ["es/big.dbn"]
    assert not list(tmp_path.rglob("*.part"))


def test_a_changed_object_is_another_file(server, tmp_path):
    (before,) = s3.fetch_inputs(["s3://market/es/2024/1.csv"], tmp_path)
    server.buckets["market"]["es/2024/1.csv"] = b"ONE"
    (after,) = s3.fetch_inputs(["s3://market/es/2024/1.csv"], tmp_path)
    assert before != after and open(after).read() == "ONE"


def test_a_prefix_is_its_market_files_in_key_order(server, tmp_path):
    files = s3.fetch_inputs(["s3://market/es/2024/"], tmp_path)
    assert [open(f).read() for f in files] == ["one", "two", "three"]
    assert len([r for r in server.requests if r[0] == "GET" and not r[1]]) == 3  # pages of two of six keys


def test_local_and_synthetic_inputs_are_left_alone(tmp_path):
    assert s3.fetch_inputs(["a.csv", "synthetic:signal=0"], tmp_path) == ["a.csv", "synthetic:signal=0"]


def test_an_answer_that_breaks_off_is_continued(server, tmp_path):
    server.cut, server.cuts = 3_000_001, 1
    (path,) = s3.fetch_inputs(["s3://market/es/big.dbn"], tmp_path)
    assert open(path, "rb").read() == DATA
    assert server.requests[-1] == ("GET", "es/big.dbn", "bytes=3000001-")


def test_an_endpoint_that_only_breaks_off_is_tried_again_later(server, tmp_path):
    server.cut, server.cuts = 0, 99
    with pytest.raises(Interrupted, match="broke off after 0 of 5120000 bytes, 5 times in a row"):
        s3.fetch_inputs(["s3://market/es/big.dbn"], tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_an_object_that_changes_meanwhile_is_not_mixed(server, tmp_path):
    client = s3.make_client()
    (what,) = s3.find(client, "s3://market/es/big.dbn")
    server.buckets["market"]["es/big.dbn"] = DATA[::-1]
    with pytest.raises(Interrupted, match="changed while it was downloaded"):
        s3.fetch(client, what, tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_two_at_once_end_with_one_valid_file(server, tmp_path):
    cache = tmp_path / "cache"
    code = "import sys; from trainer.data.s3 import fetch_inputs; fetch_inputs(sys.argv[1:2], sys.argv[2])"
    command = [sys.executable, "-c", code, "s3://market/es/big.dbn", str(cache)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    (path,) = s3.fetch_inputs(["s3://market/es/big.dbn"], cache)
    assert gets(server) == ["es/big.dbn"] * len(gets(server)) and len(gets(server)) <= 2
    assert [p for p in cache.rglob("*") if p.is_file()] == [Path(path)]
    assert open(path, "rb").read() == DATA


def test_a_torn_part_of_a_dead_process_is_swept(server, tmp_path):
    (path,) = s3.fetch_inputs(["s3://market/es/2024/1.csv"], tmp_path)
    folder = Path(path).parent
    old, new = folder / ".1.csv.h.1.part", folder / ".1.csv.h.2.part"
    for part in (old, new):
        part.write_bytes(b"o")
    os.utime(old, (1, 1))
    Path(path).write_bytes(b"torn")  # not its size: fetched again
    assert open(s3.fetch_inputs(["s3://market/es/2024/1.csv"], tmp_path)[0]).read() == "one"
    assert not old.exists() and new.exists()


@pytest.mark.parametrize(
    ("uri", "kind", "says"),
    [
        ("s3://market/es/none.csv", DataError, "no such object"),
        ("s3://nowhere/es/none.csv", DataError, "no such object, or no such bucket"),
        ("s3://nowhere/es/", DataError, "no bucket 'nowhere'"),
        ("s3://void/", DataError, r"no market data below this prefix \(0 objects\)"),
        ("s3://market/es/empty.csv", DataError, "the object is empty"),
        (
            "s3://market/es/no.csv",
            UsageError,
            "access denied\nthese credentials are wrong, or need s3:GetObject on bucket market",
        ),
        ("s3://market", DataError, "not an S3 address"),
        ("s3:///key", DataError, "not an S3 address"),
    ],
)
def test_refusals(server, tmp_path, uri, kind, says):
    with pytest.raises(kind, match=says) as error:
        s3.fetch_inputs([uri], tmp_path)
    assert str(error.value).startswith(uri)
    assert error.value.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_no_credentials(server, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "")
    with pytest.raises(UsageError, match=r"no credentials for S3.*\nset AWS_ACCESS_KEY_ID"):
        s3.fetch_inputs(["s3://market/es/big.dbn"], tmp_path)
    assert s3.identity(["s3://market/es/big.dbn"]) == ("s3://market/es/big.dbn", "no credentials for S3 here")


def test_an_unreachable_endpoint_is_tried_again_later(server, tmp_path, monkeypatch):
    server.server.server_close()
    monkeypatch.setattr(s3, "make_client", lambda patient=True, make=s3.make_client: make(False))
    with pytest.raises(Interrupted, match=rf"the S3 endpoint \({server.url}\) can't be reached"):
        s3.fetch_inputs(["s3://market/es/big.dbn"], tmp_path)


def test_an_endpoint_that_is_no_address(aws, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "minio:9000")
    with pytest.raises(UsageError, match="set AWS_ENDPOINT_URL"):
        s3.fetch_inputs(["s3://market/es/big.dbn"], tmp_path)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("SignatureDoesNotMatch", 403, UsageError),
        ("InvalidAccessKeyId", 403, UsageError),
        ("ExpiredToken", 400, UsageError),
        ("AccessDenied", 403, UsageError),
        ("NoSuchKey", 404, DataError),
        ("SlowDown", 503, Interrupted),
        ("InternalError", 500, Interrupted),
        ("PermanentRedirect", 301, DataError),
    ],
)
def test_answers_by_botocores_own_stub(aws, tmp_path, code, status, kind):
    client = boto3.client("s3", region_name="eu-west-1", config=Config(retries={"max_attempts": 0}))
    with Stubber(client) as stub:
        stub.add_client_error("head_object", code, http_status_code=status)
        with pytest.raises(FoxhuntError, match="s3://b0b/k: ") as error:
            s3.fetch_inputs(["s3://b0b/k"], tmp_path, client)
    assert type(error.value) is kind


def test_the_request_asks_for_the_very_version_that_was_looked_up(aws, tmp_path):
    client = boto3.client("s3", region_name="eu-west-1")
    with Stubber(client) as stub:
        stub.add_response("head_object", {"ContentLength": 3, "ETag": '"v1"'}, {"Bucket": "b0b", "Key": "a/k"})
        body = StreamingBody(BytesIO(b"abc"), 3)
        wanted = {"Bucket": "b0b", "Key": "a/k", "IfMatch": '"v1"'}
        stub.add_response("get_object", {"Body": body, "ETag": '"v1"'}, wanted)
        (path,) = s3.fetch_inputs(["s3://b0b/a/k"], tmp_path, client)
        stub.assert_no_pending_responses()
    assert open(path).read() == "abc"


def test_a_store_without_etags_is_known_by_time(server, tmp_path):
    server.etags = False
    (path,) = s3.fetch_inputs(["s3://market/es/big.dbn"], tmp_path)
    assert open(path, "rb").read() == DATA
    known, why = s3.identity(["s3://market/es/big.dbn"])
    assert known.startswith(f"s3://market/es/big.dbn:{len(DATA)}:20") and not why


def test_a_full_disk_says_so(server, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(s3.os, "fsync", full)
    with pytest.raises(Interrupted, match=r"big\.dbn: No space left on device"):
        s3.fetch_inputs(["s3://market/es/big.dbn"], tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_identity_is_address_size_and_etag(server):
    uri = "s3://market/es/2024/1.csv"
    etag = server.etag("market", "es/2024/1.csv").strip('"')
    assert s3.identity([uri]) == (f"{uri}:3:{etag}", "")
    assert s3.identity(["s3://market/es/2024/"])[0].count(":") == 3 * 3
    known, why = s3.identity(["s3://market/es/none.csv", "a.csv"])
    assert known == "s3://market/es/none.csv,a.csv" and "no such object" in why
    assert not gets(server) or set(gets(server)) == {""}  # nothing was downloaded


def test_the_command_reads_its_data_from_s3(server, tmp_path):
    rows = [f"2024-01-02T09:{i // 60:02d}:{i % 60:02d}Z,{100 + i % 3},{101 + i % 3},5,5" for i in range(3000)]
    server.buckets["market"]["es/day.csv"] = ROWS + "\n".join(rows).encode()
    common = ["--run-id", "r", "--runs", str(tmp_path / "runs"), "--cache", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "trainer", "precompute", "--data", "s3://market/es/day.csv", "--folds", "1"]
    settings = ["--set", "data.tick_size=1", "--set", "data.label_rows=5", "--set", "env.episode_len=12"]
    done = subprocess.run([*command, *common, *settings], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    study = json.loads((tmp_path / "runs/alpha-rl-runs/r/study.json").read_text())
    assert study["data"] == ["s3://market/es/day.csv"]
    assert study["data_digest"] == hashlib.sha256(server.buckets["market"]["es/day.csv"]).hexdigest()
