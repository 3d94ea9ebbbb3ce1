"""Is Argo there and fit, are we allowed to, and is what the template needs installed?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from workflows import images
from workflows.argo import is_synthetic, refuse_local
from workflows.controller_checks import CONTROLLER_NAMESPACE
from workflows.errors import UsageError
from workflows.findings import Finding, Scope, State, Unreadable, readable
from workflows.kube import GROUP, ClusterError

# Fields of a workflow's templates that Argo 3 doesn't know and we use.
NEEDED_FIELDS = ("annotations", "podSpecPatch", "retryStrategy")

# What Argo's executor does in a pod, as the template's service account, to report how it ended.
RESULTS, RESULT_VERBS = "workflowtaskresults", ("create", "patch")

# verb, API group, resource, what needs it
RIGHTS = [
    ("create", GROUP, "workflows", "submit"),
    ("get", GROUP, "workflows", "watch"),
    ("list", GROUP, "workflows", "list"),
    ("watch", GROUP, "workflows", "watch"),
    ("patch", GROUP, "workflows", "stop"),
    ("get", GROUP, "workflowtemplates", "submit"),
    ("list", GROUP, "workflowtemplates", "submit"),
    ("get", "", "pods", "watch"),
    ("list", "", "pods", "watch"),
    ("watch", "", "pods", "watch"),
    ("create", "", "pods", "fetch and logs of pods that are gone"),
    ("delete", "", "pods", "watch, to heal a pod whose main container is dead"),
    ("get", "", "pods/log", "logs"),
    ("list", "", "events", "watch, to say why a pod is Pending"),
]


def argo_crds(scope: Scope) -> Iterator[Finding]:
    """The definitions are there and know the fields that we use."""
    kube = scope.kube
    install = (
        "install Argo Workflows 4.0.5 or newer with its full CRDs: "
        + kube.kubectl("apply --server-side -f https://github.com/argoproj/argo-workflows/releases/download/")
        + "v4.0.5/install.yaml"
    )
    try:
        kube.list_of("workflowtemplates")
    except ClusterError as error:
        if error.status == 404:
            yield Finding("argo", State.failed, f"no {GROUP}/v1alpha1 on the cluster", install)
            return
        if error.status != 403:
            raise
    definition: dict[str, Any] = readable(lambda: _definition(scope), {}) or {}
    schema = _schema(definition)
    if not schema:
        yield Finding("argo", State.unknown, "the CRDs are there, minimal ones: their fields can't be compared")
        return
    missing = [name for name in NEEDED_FIELDS if name not in schema]
    if missing:
        yield Finding("argo", State.failed, f"the CRDs are too old: templates have no {', '.join(missing)}", install)
    else:
        yield Finding("argo", State.ok, "full CRDs with the fields that the templates use")


def _definition(scope: Scope) -> dict[str, Any]:
    from kubernetes import client

    api = client.CustomObjectsApi(scope.kube.api)
    plural, name = "customresourcedefinitions", f"workflowtemplates.{GROUP}"
    return dict(scope.kube.call(api.get_cluster_custom_object, "apiextensions.k8s.io", "v1", plural, name))


def _schema(definition: dict[str, Any]) -> dict[str, Any]:
    """Properties of one entry of `spec.templates`, {} for minimal CRDs."""
    for version in definition.get("spec", {}).get("versions", []):
        tree = version.get("schema", {}).get("openAPIV3Schema", {})
        for word in ("spec", "templates"):
            tree = tree.get("properties", {}).get(word, {})
        if properties := tree.get("items", {}).get("properties"):
            return dict(properties)
    return {}


def rights(scope: Scope) -> Iterator[Finding]:
    """One finding for each right that is missing."""
    missing = 0
    for verb, group, resource, what in RIGHTS:
        if scope.kube.allowed(verb, resource, group):
            continue
        missing += 1
        full = f"{resource}.{group}" if group else resource
        role = f"foxhunt-{verb}-{resource.replace('/', '-')}"
        todo = "ask the cluster's owner for: " + grant(
            scope, role, f"--verb={verb} --resource={full}", f"--user={scope.user or 'USER'}"
        )
        yield Finding("rights", State.failed, f"may not {verb} {full} (needed by {what})", todo)
    if not missing:
        yield Finding("rights", State.ok, f"all {len(RIGHTS)} that the commands use")


def grant(scope: Scope, role: str, rules: str, whom: str) -> str:
    """The two kubectl lines that give somebody a right in the namespace."""
    kube = scope.kube
    make = kube.kubectl(f"-n {kube.namespace} create role {role} {rules}")
    bind = kube.kubectl(f"-n {kube.namespace} create rolebinding {role} --role={role} {whom}")
    return f"{make} && {bind}"


def template(scope: Scope) -> Iterator[Finding]:
    """The cluster's template is the one of this code, whatever defaults it was given."""
    from workflows.render import DIGEST, rendered_templates

    there = scope.template
    if scope.installed is None:
        raise Unreadable("forbidden")
    if not scope.installed:
        yield Finding("template", State.failed, "alpha-rl is not installed", scope.kube.install_hint())
        return
    name = there["metadata"]["name"]
    ours = rendered_templates()[name]["metadata"]["annotations"][DIGEST]
    theirs = there["metadata"].get("annotations", {}).get(DIGEST, "")
    renew = scope.kube.install_hint().replace("install it", "renew it")
    if not theirs:
        yield Finding("template", State.failed, f"{name} has no {DIGEST}: it is older than this code", renew)
    elif theirs != ours:
        yield Finding("template", State.failed, f"{name} {theirs} is not this code's {ours}", renew)
    else:
        yield Finding("template", State.ok, f"{name} {theirs}, that of this code")


def account(scope: Scope) -> Iterator[Finding]:
    """The pods' service account: there, and allowed to report a pod's end, or its workflow never hears of it."""
    kube, name = scope.kube, scope.template["spec"].get("serviceAccountName", "default")
    rules = f"--verb={','.join(RESULT_VERBS)} --resource={RESULTS}.{GROUP}"
    right = grant(scope, f"{name}-results", rules, f"--serviceaccount={kube.namespace}:{name}")
    found = readable(lambda: kube.call(kube.core.read_namespaced_service_account, name, kube.namespace))
    if found is None:
        todo = kube.kubectl(f"-n {kube.namespace} create serviceaccount {name}")
        yield Finding("account", State.failed, f"no service account {name}", f"{todo} && {right}")
        return
    verbs = " and ".join(RESULT_VERBS)
    try:
        missing = [verb for verb in RESULT_VERBS if not readable(partial(_may_report, scope, name, verb))]
    except Unreadable:
        says = f"service account {name}: whether it may {verbs} {RESULTS}.{GROUP} may not be asked"
        yield Finding("account", State.unknown, says)
        return
    if missing:
        says = f"service account {name} may not {' and '.join(missing)} {RESULTS}.{GROUP}: pods can't report their end"
        yield Finding("account", State.failed, says, f"ask the cluster's owner for: {right}")
    else:
        yield Finding("account", State.ok, f"service account {name}, may {verbs} {RESULTS}")


def _may_report(scope: Scope, account: str, verb: str) -> bool:
    """Its groups are told too: a binding may be to all service accounts."""
    from kubernetes import client

    kube, space = scope.kube, scope.kube.namespace
    wanted = client.V1ResourceAttributes(verb=verb, group=GROUP, resource=RESULTS, namespace=space)
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{space}", "system:authenticated"]
    spec = client.V1SubjectAccessReviewSpec(
        resource_attributes=wanted, user=f"system:serviceaccount:{space}:{account}", groups=groups
    )
    review = client.V1LocalSubjectAccessReview(metadata=client.V1ObjectMeta(namespace=space), spec=spec)
    told = kube.call(kube.auth.create_namespaced_local_subject_access_review, space, review)
    return bool(told.status.allowed)


def secrets(scope: Scope) -> Iterator[Finding]:
    """Secrets that the template names: in environments, for images, for artifacts. One for s3:// data may be absent."""
    kube = scope.kube
    named = {fill(name, scope.parameters): optional for name, optional in secret_names(scope.template["spec"])}
    for name, optional in sorted(named.items()):
        if readable(partial(kube.call, kube.core.read_namespaced_secret, name, kube.namespace)) is not None:
            yield Finding("secrets", State.ok, f"secret {name}")
            continue
        todo = kube.kubectl(f"-n {kube.namespace} create secret generic {name} --from-literal=KEY=VALUE")
        if not optional:
            yield Finding("secrets", State.failed, f"no secret {name}", todo)
        elif scope.parameter("data").startswith("s3://"):
            says = f"no secret {name}: s3:// data can only be read where pods have an identity of their own"
            yield Finding("secrets", State.warning, says, todo)
        else:
            yield Finding("secrets", State.ok, f"no secret {name}, and none is needed")
    if not named:
        yield Finding("secrets", State.ok, "the template names none")


def fill(text: str, parameters: dict[str, str]) -> str:
    """`{{workflow.parameters.x}}` by its value."""
    for name, value in parameters.items():
        text = text.replace(f"{{{{workflow.parameters.{name}}}}}", value)
    return text


def secret_names(tree: Any) -> Iterator[tuple[str, bool]]:
    """Name of each secret referred to anywhere below, and whether it may be absent."""
    keys = ("secretKeyRef", "secretRef", "accessKeySecret", "secretKeySecret", "imagePullSecrets", "secret")
    if isinstance(tree, dict):
        for key, value in tree.items():
            for one in value if isinstance(value, list) else [value]:
                name = (one.get("name") or one.get("secretName")) if key in keys and isinstance(one, dict) else None
                if name:
                    yield str(name), bool(one.get("optional"))
            yield from secret_names(value)
    elif isinstance(tree, list):
        for one in tree:
            yield from secret_names(one)


def data(scope: Scope) -> Iterator[Finding]:
    """Which market data a study reads, when it says nothing else."""
    given = scope.parameter("data")
    if not given:
        todo = f"name it at each submission with --data, or once: {scope.kube.install_hint().partition(': ')[2]}"
        yield Finding("data", State.warning, "the cluster has no default data set", f"{todo} --default data=s3://...")
        return
    if is_synthetic(given):
        yield Finding("data", State.ok, f"{given}, which a submission has to ask for")
        return
    try:
        for item in given.split(","):
            refuse_local(item.strip(), scope.parameter("claim"), scope.kube)
    except UsageError as error:
        first, *rest = str(error).splitlines()
        yield Finding("data", State.failed, first, "; ".join(" ".join(line.split()) for line in rest))
        return
    yield Finding("data", State.unknown, f"{given}: only pods can read it; the task resolve looks first")


def image(scope: Scope) -> Iterator[Finding]:
    """The image is there: in its registry, or on every node of the pools."""
    reference = images.parse(scope.parameter("image"))
    found = images.look_up(reference)
    if found.there:
        pinned = "" if reference.digest else f", now {found.digest[:19]}; submit pins it"
        yield Finding("image", State.ok, f"{reference}: in its registry{pinned}")
        return
    nodes = [node for pool in scope.nodes.values() for node in pool]
    without = [node.metadata.name for node in nodes if not _has_image(node, str(reference))]
    if nodes and not without:
        yield Finding("image", State.ok, f"{reference}: on {_all_of(len(nodes))} of the pools")
    elif found.there is False:
        todo = "build and push it, or name another with --image"
        yield Finding("image", State.failed, f"{reference}: not in its registry", todo)
    else:
        yield Finding("image", State.unknown, f"{reference}: {found.why}")


def _all_of(nodes: int) -> str:
    return "the 1 node" if nodes == 1 else f"all {nodes} nodes"


def _has_image(node: Any, reference: str) -> bool:
    """A node tells its fifty biggest images; short names it writes in full."""
    names = {name for image in node.status.images or [] for name in image.names or []}
    return bool(names & {reference, f"docker.io/{reference}", f"docker.io/library/{reference}"})


def artifacts(scope: Scope) -> Iterator[Finding]:
    """Where the report goes: without an artifact repository the step that writes it fails."""
    kube = scope.kube
    parts = scope.template["spec"].get("templates", [])
    if not any(part.get("outputs", {}).get("artifacts") for part in parts):
        yield Finding("artifacts", State.ok, "the template writes none")
        return
    places = [(kube.namespace, "artifact-repositories")]
    places += [(space, "workflow-controller-configmap") for space in (kube.namespace, CONTROLLER_NAMESPACE)]
    hidden = 0
    for space, name in places:
        try:
            found = readable(partial(kube.call, kube.core.read_namespaced_config_map, name, space))
        except Unreadable:
            hidden += 1
            continue
        if found is not None and (name != places[-1][1] or "artifactRepository" in (found.data or {})):
            yield Finding("artifacts", State.ok, f"repository configured in {space}/{name}")
            return
    if hidden:
        yield Finding("artifacts", State.unknown, "where the report goes: these credentials may not read it")
        return
    todo = f"make the ConfigMap artifact-repositories in {kube.namespace}, with bucket, endpoint and secret"
    yield Finding("artifacts", State.failed, "no artifact repository: the report has nowhere to go", todo)
