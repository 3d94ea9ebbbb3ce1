"""versitygw, an S3 server over a folder: Argo's artifacts, and s3:// paths of the project."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.builds import program
from tests.cluster.host import start, until
from tests.cluster.layout import BUCKET, RUN, Facts


def start_s3(facts: Facts) -> None:
    folder: Path = RUN / "s3"
    folder.mkdir(exist_ok=True)
    keys = {"ROOT_ACCESS_KEY": facts.s3_key, "ROOT_SECRET_KEY": facts.s3_secret}
    start("versitygw", program("versitygw"), "--port", facts.s3, "--iam-dir", _iam(), "posix", folder, env=keys)
    client = s3_client(facts)
    until("the S3 server answers", lambda: _answers(client), 30, "versitygw")
    client.create_bucket(Bucket=BUCKET)


def _iam() -> Path:
    folder = RUN / "s3-users"
    folder.mkdir(exist_ok=True)
    return folder


def s3_client(facts: Facts):  # type: ignore[no-untyped-def]
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=f"http://{facts.s3}",
        aws_access_key_id=facts.s3_key,
        aws_secret_access_key=facts.s3_secret,
        region_name="us-east-1",
    )


def _answers(client) -> bool:  # type: ignore[no-untyped-def]
    try:
        client.list_buckets()
    except Exception:
        return False
    return True
