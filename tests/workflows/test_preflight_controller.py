"""preflight on Argo's controller: found however it was installed, or known by its work."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.workflows.conftest import Commands
from tests.workflows.fake_api import ARGO, FakeApi, status
from tests.workflows.fit_cluster import CONTROLLER, findings, make_fit, put_controller


@pytest.fixture
def fit(api: FakeApi) -> FakeApi:
    return make_fit(api)


HELM = "/apis/apps/v1/namespaces/tools/deployments/wf-argo-workflows-workflow-controller"
HELM_LABELS = {"app.kubernetes.io/component": "workflow-controller"}


def test_the_controller_of_a_helm_chart(command: Commands, fit: FakeApi) -> None:
    del fit.objects[CONTROLLER]
    put_controller(fit, HELM, HELM_LABELS, "app.kubernetes.io/component")
    found = findings(command)[1]["controller"]
    assert found["says"] == "tools/wf-argo-workflows-workflow-controller runs, 4.0.5"


@pytest.mark.parametrize("space", ["argo", "foxhunt"])
def test_a_controller_in_a_likely_namespace(command: Commands, fit: FakeApi, space: str) -> None:
    """Renamed, so that only the label of its pods tells; or in a cluster whose deployments may not all be listed."""
    del fit.objects[CONTROLLER]
    put_controller(fit, f"/apis/apps/v1/namespaces/{space}/deployments/own-controller")
    put_controller(fit, f"/apis/apps/v1/namespaces/{space}/deployments/server", key="other")["status"] = {}
    assert findings(command)[1]["controller"]["says"] == f"{space}/own-controller runs, 4.0.5"
    elsewhere = fit.answer

    def answer(request: Any, token: str) -> tuple[int, Any]:
        if request.path == "/apis/apps/v1/deployments":
            return status(403, "Forbidden", "deployments.apps is forbidden")
        return elsewhere(request, token)

    fit.answer = answer  # type: ignore[method-assign]
    assert findings(command)[1]["controller"]["says"] == f"{space}/own-controller runs, 4.0.5"


def test_a_controller_for_another_namespace_is_not_ours(command: Commands, fit: FakeApi) -> None:
    other = "/apis/apps/v1/namespaces/team/deployments/workflow-controller"
    put_controller(fit, other, args=("--namespaced",))["status"] = {}
    assert findings(command)[1]["controller"]["state"] == "ok", "theirs is down, ours runs"
    put_controller(fit, CONTROLLER, args=("--namespaced", "--managed-namespace", "foxhunt"))
    assert findings(command)[1]["controller"]["state"] == "ok"
    put_controller(fit, CONTROLLER, args=("--namespaced", "--managed-namespace=team"))
    assert findings(command)[1]["controller"]["state"] == "not checked"


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")


WORK = {
    # phase, seconds since its last change: what is said
    ("Running", 5): ("ok", "at work "),
    ("Running", 120): ("not checked", "last seen at work 12"),  # a controller that died leaves it so
    ("Succeeded", 5): ("not checked", "no workflow runs"),
    ("", 5): ("not checked", "too young to tell"),
}


@pytest.mark.parametrize(("phase", "since"), WORK)
def test_the_controller_is_known_by_its_work(command: Commands, fit: FakeApi, phase: str, since: float) -> None:
    """A controller outside the cluster has no deployment."""
    del fit.objects[CONTROLLER]
    assert findings(command)[1]["controller"]["state"] == "not checked"
    nodes = {"n": {"startedAt": ago(since)}}
    state = {"phase": phase, "startedAt": ago(900), "nodes": nodes} if phase else None
    fit.put(f"{ARGO}/workflows/w", metadata={"creationTimestamp": ago(since)}, **({"status": state} if state else {}))
    found = findings(command)[1]["controller"]
    assert found["state"] == WORK[phase, since][0] and WORK[phase, since][1] in found["says"]
