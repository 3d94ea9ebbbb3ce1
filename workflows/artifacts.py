"""Artifacts of a workflow, from the bucket that Argo put them into, with this machine's credentials (AWS_...)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from workflows.argo_nodes import Tree, task_nodes
from workflows.errors import UsageError, WorkflowError


@dataclass(frozen=True)
class Artifact:
    """One object. `endpoint` is a URL, "" for AWS itself."""

    name: str
    path: str
    bucket: str
    key: str
    endpoint: str = ""


def has_artifacts(workflow: Tree) -> bool:
    return bool(artifacts_of(workflow))


def artifacts_of(workflow: Tree) -> list[Artifact]:
    """What tasks put out (a failed attempt's own are left out), without the logs that Argo archives."""
    status = workflow.get("status") or {}
    repository = (status.get("artifactRepositoryRef") or {}).get("artifactRepository") or {}
    found: dict[str, Artifact] = {}
    for node in task_nodes(status.get("nodes") or {}):
        inputs = {p["name"]: p.get("value") for p in (node.get("inputs") or {}).get("parameters") or []}
        for one in (node.get("outputs") or {}).get("artifacts") or []:
            place = {**(repository.get("s3") or {}), **(one.get("s3") or {})}
            if one.get("name") == "main-logs" or not (one.get("s3") or {}).get("key") or not place.get("bucket"):
                continue
            file = os.path.basename(str(one.get("path") or one["name"]))
            path = f"fold{inputs['fold']}/{file}" if inputs.get("fold") else file
            found[path] = Artifact(one["name"], path, place["bucket"], place["key"], _endpoint(place))
    return list(found.values())


def _endpoint(place: dict[str, Any]) -> str:
    host = str(place.get("endpoint") or "")
    return "" if not host or host == "s3.amazonaws.com" else f"{'http' if place.get('insecure') else 'https'}://{host}"


def read_artifacts(workflow: Tree) -> dict[str, bytes]:
    """Contents by the path they get here.

    Raises UsageError without boto3, credentials or the right to read, WorkflowError for a store that fails.
    """
    wanted = artifacts_of(workflow)
    if not wanted:
        raise UsageError(f"workflow {workflow['metadata']['name']}: no artifacts on S3\nread the claim: --source claim")
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise UsageError("artifacts on S3 need boto3\npip install boto3") from None
    found: dict[str, bytes] = {}
    for one in wanted:
        endpoint = os.environ.get("AWS_ENDPOINT_URL") or one.endpoint or None
        try:
            client = boto3.client("s3", endpoint_url=endpoint)
            found[one.path] = client.get_object(Bucket=one.bucket, Key=one.key)["Body"].read()
        except (BotoCoreError, ClientError) as error:
            raise (UsageError if _is_ours(error) else WorkflowError)(
                f"s3://{one.bucket}/{one.key}: {error}\nset AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, "
                "where the bucket's address differs from here, AWS_ENDPOINT_URL"
            ) from None
    return found


def _is_ours(error: Exception) -> bool:
    """Whether other credentials or another address would help, rather than another try."""
    from botocore import exceptions as known

    unset = (known.NoCredentialsError, known.PartialCredentialsError, known.ProfileNotFound, known.InvalidConfigError)
    answer = getattr(error, "response", None) or {}
    status = int((answer.get("ResponseMetadata") or {}).get("HTTPStatusCode") or 0)
    return isinstance(error, unset) or (400 <= status < 500 and status not in (408, 429))
