"""The exit handler's words, from what Argo's controller passes to it."""

import json

import pytest

from tests.workflows.conftest import Commands
from workflows.summary import failed_pods

FAILED = [
    {"displayName": "train(1)", "phase": "Failed", "message": "workflow shutdown with strategy:  Stop", "podName": "x"},
    {"displayName": "train(1)", "phase": "Failed", "message": "workflow shutdown with strategy:  Stop", "podName": "y"},
]


@pytest.mark.parametrize("text", [json.dumps(FAILED), json.dumps(json.dumps(FAILED))])
def test_failures_are_read_as_the_controller_quotes_them(command: Commands, text: str) -> None:
    done = command("summary", "--status", "Failed", "--failures", text, "--run-id", "r")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["study r: Failed", "  train(1): Failed workflow shutdown with strategy:  Stop"]


@pytest.mark.parametrize(("text", "lines"), [("", []), ("null", []), ("[]", []), ("{{x}}", ["failures: {{x}}"])])
def test_failures_that_are_none_or_no_list(text: str, lines: list[str]) -> None:
    assert failed_pods(text) == lines
