"""The cluster behind a kubeconfig: connects, reads and creates; every failure is one message with what to type.

The kubernetes client takes half a second to import and pydantic's strict types with it, so that happens in `connect`.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from typing import Any, TypeVar

from workflows import login, no_answer
from workflows.errors import UsageError, nearest
from workflows.login import in_cluster, kubeconfig

GROUP, VERSION = "argoproj.io", "v1alpha1"
NAMESPACE = "foxhunt"
RUN_ID_LABEL = "foxhunt.dev/run-id"
TEMPLATE_LABEL = "workflows.argoproj.io/workflow-template"
WORKFLOW_LABEL = "workflows.argoproj.io/workflow"
ENDED = ("Succeeded", "Failed", "Error")

_CONNECT, _READ = 5.0, 30.0  # seconds until an API server counts as gone
_STREAM_READ = 330.0  # silence allowed on a watch or a followed log
_PAGE = 500
_ZSTD = b"\x28\xb5\x2f\xfd"
T = TypeVar("T")


class ClusterError(UsageError):
    """The API server refused or didn't answer. `status` is the HTTP status, 0 when there was no answer."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Kube:
    """One context and namespace of a cluster: `core`, `apps`, `auth` and `custom` are the client's APIs."""

    def __init__(self, api: Any, context: str, namespace: str, asked: str = "", helper: str = "") -> None:
        from kubernetes import client

        self.asked = asked  # the context that a person named, so that what we tell to type names it too
        self.helper = helper  # the command that gives the credentials, "" when they are in the kubeconfig
        self.context, self.namespace, self.server = context, namespace, str(api.configuration.host)
        self.api = api
        self.core, self.apps, self.auth = client.CoreV1Api(api), client.AppsV1Api(api), client.AuthorizationV1Api(api)
        self.custom = client.CustomObjectsApi(api)

    @classmethod
    def connect(cls, context: str = "", namespace: str = "") -> Kube:
        """Reads the kubeconfig, or inside a pod its service account. Asks the server nothing yet.

        Raises UsageError: no kubeconfig, a damaged one, an unknown context.
        """
        path, asked = kubeconfig(), context
        if not path and not in_cluster():
            raise UsageError(login.no_cluster())
        from kubernetes import client, config

        settings, helper = client.Configuration(), ""
        if path:
            context = login.choose_context(path, context)
            if helper := login.helper_of(path, context):
                login.HELPER_LOG.listen()
            try:
                config.load_kube_config(path, context=context, client_configuration=settings)
            except (config.ConfigException, OSError, KeyError, TypeError, ValueError) as error:
                says = f"{path}: context {context!r} can't be used: {error}"
                raise UsageError(f"{says}\n{login.CHECK_CONTEXTS}") from None
        else:
            context = context or "in-cluster"
            config.load_incluster_config(client_configuration=settings)
            namespace = namespace or login.TOKEN.with_name("namespace").read_text().strip()
        settings.retries = _retries()
        api = client.ApiClient(settings)
        _limit_waits(api.rest_client)
        return cls(api, context, namespace or NAMESPACE, asked, helper)

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Calls a client's method; its exceptions become ClusterError (or UsageError for arguments it refuses)."""
        import pydantic
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return function(*args, **options)
        except ApiException as error:
            raise self._refused(error) from None
        except HTTPError as error:
            why = no_answer.explain(error)
            todo = why.todo or self._log_in()
            raise ClusterError(f"{self.who()}{why.says}\n{todo}", why.status, why.reason) from None
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{getattr(function, '__name__', 'call')}: {where}: {first['msg']}") from None

    def server_version(self, seconds: float = _READ) -> str:
        """Such as "v1.34.4"; the cheapest question that tells whether the cluster answers."""
        from kubernetes import client

        told = self.call(client.VersionApi(self.api).get_code, _request_timeout=seconds)
        return str(told.git_version)

    def workflow(self, name: str) -> dict[str, Any]:
        """One Workflow with its nodes unpacked. Raises ClusterError (404 with the nearest name)."""
        try:
            return unpacked(self.get("workflows", name))
        except ClusterError as error:
            if error.status != 404:
                raise
            names = [w["metadata"]["name"] for w in self.workflows()]
            raise self._absent("workflow", name, names, "see python -m workflows.list") from None

    def workflows(self, selector: str = "") -> list[dict[str, Any]]:
        """Workflows of the namespace with these labels, nodes unpacked, newest first."""
        found = [unpacked(item) for item in self.list_of("workflows", selector)]
        return sorted(found, key=lambda w: str(w["metadata"].get("creationTimestamp", "")), reverse=True)

    def template(self, name: str) -> dict[str, Any]:
        """One WorkflowTemplate. Raises ClusterError (404 with the nearest name)."""
        try:
            return self.get("workflowtemplates", name)
        except ClusterError as error:
            if error.status != 404:
                raise
            names = [t["metadata"]["name"] for t in self.list_of("workflowtemplates")]
            raise self._absent("WorkflowTemplate", name, names, self.install_hint()) from None

    def get(self, plural: str, name: str) -> dict[str, Any]:
        return dict(self.call(self.custom.get_namespaced_custom_object, **self._kind(plural), name=name))

    def list_of(self, plural: str, selector: str = "") -> list[dict[str, Any]]:
        def page(token: str | None) -> tuple[list[dict[str, Any]], str]:
            options = {"limit": _PAGE, "label_selector": selector or None, "_continue": token}
            told = self.call(self.custom.list_namespaced_custom_object, **self._kind(plural), **options)
            return told["items"], told["metadata"].get("continue", "")

        return _pages(page)

    def create(self, plural: str, body: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
        """Creates a custom object; the server refuses fields that it doesn't know. Returns what it made of it."""
        options = {"field_validation": "Strict", **({"dry_run": "All"} if dry_run else {})}
        made = self.call(self.custom.create_namespaced_custom_object, **self._kind(plural), body=body, **options)
        return dict(made)

    def replace(self, plural: str, name: str, body: dict[str, Any]) -> None:
        """Writes the whole object; the server refuses it when it changed since it was read (409)."""
        options = {"field_validation": "Strict", "name": name, "body": body}
        self.call(self.custom.replace_namespaced_custom_object, **self._kind(plural), **options)

    def pods(self, selector: str = "") -> list[Any]:
        """Pods of the namespace as the client's V1Pod."""

        def page(token: str | None) -> tuple[list[Any], str]:
            options = {"limit": _PAGE, "label_selector": selector or None, "_continue": token}
            told = self.call(self.core.list_namespaced_pod, self.namespace, **options)
            return told.items, told.metadata.var_continue or ""

        return _pages(page)

    def events(self, name: str = "", kind: str = "Pod") -> list[Any]:
        """Events of one object, or of all objects of that kind, oldest first."""
        selector = f"involvedObject.kind={kind}" + (f",involvedObject.name={name}" if name else "")
        told = self.call(self.core.list_namespaced_event, self.namespace, field_selector=selector)
        return sorted(told.items, key=lambda e: str(e.last_timestamp or e.event_time or e.first_timestamp or ""))

    def allowed(self, verb: str, resource: str, group: str = "", *, cluster: bool = False) -> bool:
        """Whether these credentials may do it. `resource` may name a subresource: "pods/log"."""
        from kubernetes import client

        plural, _, subresource = resource.partition("/")
        wanted = client.V1ResourceAttributes(
            verb=verb,
            group=group,
            resource=plural,
            subresource=subresource or None,
            namespace=None if cluster else self.namespace,
        )
        review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=wanted))
        return bool(self.call(self.auth.create_self_subject_access_review, review).status.allowed)

    def namespace_exists(self) -> bool | None:
        """None: may not be read."""
        try:
            self.call(self.core.read_namespace, self.namespace)
        except ClusterError as error:
            if error.status == 404:
                return False
            if error.status == 403:
                return None
            raise
        return True

    def missing_namespace(self) -> ClusterError:
        """The error for a namespace that is not there, with the nearest name where names may be read."""
        try:
            names = [str(n.metadata.name) for n in self.call(self.core.list_namespace).items if n.metadata]
        except ClusterError:
            names = []
        hint = nearest(self.namespace, names)
        todo = f"name another with --namespace, or make it: {self.kubectl(f'create namespace {self.namespace}')}"
        return ClusterError(f"namespace {self.namespace!r}: not on {self.who()}{hint}\n{todo}", 404)

    def kubectl(self, words: str) -> str:
        """A kubectl line for the same cluster."""
        flag = f" --context {self.asked}" if self.asked else ""
        return f"kubectl{flag} {words}"

    def install_hint(self) -> str:
        return f"install it: python -m workflows.render --apply{self.flags()}"

    def preflight(self) -> str:
        return f"python -m workflows.preflight{self.flags()}"

    def flags(self) -> str:
        """What a command of ours needs to reach the same place, "" for the default."""
        return (f" --context {self.asked}" if self.asked else "") + (
            "" if self.namespace == NAMESPACE else f" --namespace {self.namespace}"
        )

    def _kind(self, plural: str) -> dict[str, str]:
        return {"group": GROUP, "version": VERSION, "namespace": self.namespace, "plural": plural}

    def who(self) -> str:
        return f"cluster {self.server}" + (f" (context {self.context})" if self.context else "")

    def _absent(self, kind: str, name: str, names: list[str], todo: str) -> ClusterError:
        if not names and self.namespace_exists() is False:
            return self.missing_namespace()
        hint = nearest(name, names) or (f"; there: {', '.join(names[:8])}" if names else "")
        return ClusterError(f"{kind} {name!r}: not in namespace {self.namespace}{hint}\n{todo}", 404)

    def _refused(self, error: Any) -> ClusterError:
        """The server's own words and what to do about them."""
        status, reason, said = int(error.status or 0), "", str(error.reason or "")
        try:
            told = json.loads(error.body or "")
            reason, said = str(told.get("reason", "")), str(told.get("message", said))
        except (ValueError, AttributeError):
            said = (error.body or said).strip()[:500] if isinstance(error.body or said, str) else said
        if status == 404 and f'namespaces "{self.namespace}" not found' in said:
            return self.missing_namespace()
        if status == 404 and said.strip() in _UNKNOWN_KIND:
            said = f"{self.who()} has no Argo Workflows (no {GROUP}/{VERSION})"
            return ClusterError(f"{said}\ninstall it, or choose another context with --context", status, reason)
        if status == 403 and _NOBODY in said:
            return self.nobody()
        todo = {
            401: self._log_in(),
            403: f"ask the cluster's owner for this right; all that are needed: {self.preflight()}",
            404: "check the name, --namespace and --context",
            409: "it is there already; choose another name",
            400: "correct what it names",
            422: "correct what it names",
            429: "the server is busy; try again",
        }.get(status, "try again; if it stays so, ask the cluster's owner")
        what = f"{self.who()}" + {401: " refuses the credentials", 403: " forbids it"}.get(status, "")
        failed = self._helper_failed() if status == 401 else ""
        return ClusterError(f"{what}: {said} ({status}){failed}\n{todo}", status, reason)

    def nobody(self) -> ClusterError:
        """The error for credentials that never reached the server: as good as wrong ones, whatever it answered."""
        says = f"{self.who()}: no credentials were sent, it takes us for nobody (system:anonymous)"
        return ClusterError(f"{says}{self._helper_failed()}\n{self._log_in()}", 401, "Unauthorized")

    def _helper_failed(self) -> str:
        said = login.HELPER_LOG.said if self.helper else ""
        return f"; the kubeconfig's helper {self.helper!r} failed: {said}" if said else ""

    def _log_in(self) -> str:
        check = f"check with: {self.kubectl('auth whoami')}"
        if self.helper:
            return f"log in again: the kubeconfig takes its credentials from {self.helper!r}, see that it runs; {check}"
        return f"log in again, or name a context with credentials by --context; {check}"


# What an API server says of a group, or of a kind in a known group, that it doesn't serve.
_UNKNOWN_KIND = ("404 page not found", "the server could not find the requested resource")
# How it speaks of whoever sent no credentials that it could use: it forbids all, the question who we are included.
_NOBODY = 'User "system:anonymous"'


def unpacked(workflow: dict[str, Any]) -> dict[str, Any]:
    """A big workflow's nodes come as base64 of gzip (of zstd from 4.1 on) instead of as a tree."""
    status = workflow.get("status") or {}
    packed = status.get("compressedNodes")
    if not packed:
        return workflow
    data = base64.b64decode(packed)
    if data.startswith(_ZSTD):
        import zstandard

        text = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    else:
        text = gzip.decompress(data)
    return {**workflow, "status": {**status, "nodes": json.loads(text), "compressedNodes": ""}}


def _pages(page: Callable[[str | None], tuple[list[T], str]]) -> list[T]:
    """All items of a list that the server gives page by page; one that changed underneath is read anew."""
    for last in (False, True):
        found: list[T] = []
        token: str | None = None
        try:
            while True:
                items, more = page(token)
                found += items
                if not more:
                    return found
                token = more
        except ClusterError as error:
            if error.status != 410 or last:
                raise
    raise AssertionError("unreachable")


def _retries() -> Any:
    """One more try where a kept connection was closed under us; a server that isn't there is told at once."""
    from urllib3.util.retry import Retry

    return Retry(total=1, connect=0, read=1, redirect=2, status=0, other=0)


def _limit_waits(rest: Any) -> None:
    """No call waits for ever: the client has no default timeout."""
    request = rest.request

    def patient(method: str, url: str, *args: Any, _request_timeout: Any = None, **options: Any) -> Any:
        stream = "watch=true" in url or "follow=true" in url
        limit = _request_timeout or (_CONNECT, _STREAM_READ if stream else _READ)
        return request(method, url, *args, _request_timeout=limit, **options)

    rest.request = patient
