"""A study on a cluster: settles and checks every parameter, says who the run is, creates the Workflow.

Nothing is created before everything that can be known here is known to be right: names and ranges of the parameters,
the settings (by the trainer's own check), the data's address, the image, and that no live workflow works on the run.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

from workflows import identity, images
from workflows.argo_nodes import run_id_of
from workflows.errors import UsageError, nearest
from workflows.kube import ENDED, GROUP, RUN_ID_LABEL, TEMPLATE_LABEL, VERSION, ClusterError, Kube

COMPLETED_LABEL = "workflows.argoproj.io/completed"
COMMAND_ANNOTATION = "foxhunt.dev/command"
TITLE = "workflows.argoproj.io/title"
CLAIM_MOUNT = "/feature-cache"
INTERRUPTED_BY_HAND = 130  # what a shell gives for Ctrl-C

# Numbers a parameter may have; empty is allowed where the template's default is empty.
RANGES = {
    "folds": (1, identity.MAX_FOLDS),
    "n-steps": (1, 10**9),
    "n-backtests": (1, 2**20),
    "per-capacity": (1, 2**30),
    "memory-mi": (512, 2**22),
    "cpu-memory-mi": (512, 2**22),
    "attempt-deadline-s": (60, 30 * 86400),
}
HEX = re.compile(r"[0-9a-f]{40,64}")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_BRANCH = re.compile(r"[^\s~^:?*\[\\-][^\s~^:?*\[\\]{0,199}")
_S3 = re.compile(r"s3://[^/]+/.*")
S3_FORM = "write s3://bucket/key, or s3://bucket/prefix/ for every file below it"
_CPUS = re.compile(r"[1-9]\d{0,3}|\d{1,3}\.\d{1,3}|[1-9]\d{0,6}m")
FORMS = {
    "gpu-pool": (_LABEL, "the value of a node label: letters, digits, '.', '_' and '-', at most 63 characters"),
    "cpu-pool": (_LABEL, "the value of a node label: letters, digits, '.', '_' and '-', at most 63 characters"),
    "claim": (_NAME, "the name of a persistent volume claim: small letters, digits, '-' and '.'"),
    "s3-secret": (_NAME, "the name of a secret: small letters, digits, '-' and '.'"),
    "git-branch": (_BRANCH, "the name of a branch"),
    "cpus": (_CPUS, "a number of CPU cores such as 4, 0.5 or 500m"),
}
FOLDERS = {"runs": "checkpoints", "cache": "features"}  # parameter -> what would be lost with the pod elsewhere
POOLS = {"gpu-pool": "pool", "cpu-pool": "pool"}  # parameter -> the node label that it is the value of
_MAY_BE_EMPTY = ("n-steps", "n-backtests", "per-capacity", "git-branch")
_MAX_NAME, _SUFFIX = 63, 5  # a workflow's name is a label's value, too


@dataclass(frozen=True)
class Settled:
    """A study ready to be created. `notes` tells a person where each setting comes from."""

    template: str
    run_id: str
    parameters: dict[str, str]
    notes: dict[str, str] = field(default_factory=dict)


def settle(kube: Kube, template_name: str, asked: dict[str, str], offline: dict[str, Any] | None = None) -> Settled:
    """The template's defaults with what was asked on top, every value checked, the run-id derived.

    `offline` stands in for the cluster's template in a dry run without a cluster.
    Raises UsageError with the nearest name for a parameter that the cluster's template doesn't have.
    """
    template = offline or kube.template(template_name)
    defaults = default_parameters(template)
    refuse_unknown(asked, defaults, kube)
    parameters = {**defaults, **asked}
    notes = {}
    data = asked.get("data", "")
    parameters["data"] = cluster_data(data, defaults.get("data", ""), parameters.get("claim", ""), kube)
    notes["data"] = "as asked" if data else "the cluster's default"
    check_values(parameters)
    identity.check_branch(parameters.get("git-branch", ""))
    if offline is None:
        refuse_absent_claim(kube, parameters.get("claim", ""))
    identity.check_folds(int(parameters["folds"]))
    if "only-folds" in parameters:
        parameters["only-folds"] = identity.check_only_folds(parameters["only-folds"], int(parameters["folds"]))
    config_is_a_profile(parameters["config"])
    joined = identity.join_overrides(
        *(parameters.get(n, "") for n in ("n-steps", "n-backtests", "per-capacity", "folds", "set"))
    )
    settings = identity.config_identity(parameters["data"], parameters["config"], joined)
    parameters["image"], code, notes["image"] = settle_image(
        parameters["image"], parameters.get("git-branch", ""), asked_for="image" in asked
    )
    if settings.get("data_unchecked"):
        notes["data"] += f"; size and version not checked: {settings['data_unchecked']}"
    notes["run-id"] = "as asked"
    if not parameters.get("run-id"):
        digest = settings["config_digest"]
        parameters["run-id"] = identity.derive_run_id(code, digest, settings.get("data", parameters["data"]))
        notes["run-id"] = (
            f"from code {code[:12] if HEX.fullmatch(code) else code}, config {digest[:12]} and the data's address"
        )
    identity.check_run_id(parameters["run-id"])
    return Settled(template_name, parameters["run-id"], parameters, notes)


def default_parameters(template: dict[str, Any]) -> dict[str, str]:
    given = template["spec"].get("arguments", {}).get("parameters", [])
    return {p["name"]: str(p.get("value", p.get("default", ""))) for p in given}


def refuse_unknown(asked: dict[str, str], known: dict[str, str], kube: Kube) -> None:
    for name in asked:
        if name not in known:
            hint = nearest(name, list(known)) or f"; it has {', '.join(known)}"
            raise UsageError(
                f"parameter {name!r}: the template on the cluster has none of that name{hint}\n"
                f"where it is older than this code, renew it: python -m workflows.render --apply{kube.flags()}"
            )


def check_values(parameters: dict[str, str]) -> None:
    """Raises UsageError for a number out of range or a name that Kubernetes would refuse, before anything is made."""
    for name, (low, high) in RANGES.items():
        value = parameters.get(name)
        if value is None or (value == "" and name in _MAY_BE_EMPTY):
            continue
        if not re.fullmatch(r"-?\d{1,18}", value):
            raise UsageError(f"parameter {name} {value!r}: not a whole number\nsay one from {low} to {high}")
        if not low <= int(value) <= high:
            raise UsageError(f"parameter {name} {value}: out of range\nsay one from {low} to {high}")
    for name, (form, what) in FORMS.items():
        value = parameters.get(name)
        if value is None or (value == "" and name in _MAY_BE_EMPTY):
            continue
        if not form.fullmatch(value):
            raise UsageError(f"parameter {name} {value!r}: not {what}\ncorrect it")
    for name, what in FOLDERS.items():
        value = parameters.get(name)
        if value is not None and not on_claim(value):
            raise UsageError(
                f"parameter {name} {value!r}: not a folder of the claim, which pods have as {CLAIM_MOUNT}; "
                f"{what} would be lost with their pod\nname {CLAIM_MOUNT} or a folder below it"
            )
    images.parse(parameters["image"])


def on_claim(path: str) -> bool:
    """Whether a path of a pod lies on the claim's mount, whatever `..` it has."""
    return f"{posixpath.normpath(path)}/".startswith(f"{CLAIM_MOUNT}/")


def cluster_data(asked: str, default: str, claim: str, kube: Kube) -> str:
    """What the pods read: as asked, else the data set configured on the cluster; never synthetic data unasked."""
    if not asked:
        if not default:
            raise UsageError(
                "--data: none given, and the template on the cluster has no default data set\n"
                "say which: --data s3://BUCKET/KEY or a path on the claim; "
                "for the synthetic market ask for it: --data synthetic:signal=0.75"
            )
        if is_synthetic(default):
            raise UsageError(
                f"--data: none given, and the cluster's default is {default}: GPUs train on it only when asked\n"
                f"say so with --data {default}, or name market data"
            )
        return default
    for item in [asked] if is_synthetic(asked) else asked.split(","):  # a synthetic address has commas of its own
        refuse_local(item.strip(), claim, kube)
    return asked


def is_synthetic(data: str) -> bool:
    return data.partition(":")[0] == "synthetic"


def refuse_local(item: str, claim: str, kube: Kube) -> None:
    """Raises UsageError for a file of this machine, with the two ways to bring it where pods can read it."""
    if is_synthetic(item) or on_claim(item):
        return
    if item.startswith(f"{CLAIM_MOUNT}/"):
        raise UsageError(f"--data {item}: leads out of the claim, to a pod's own files\nwrite the path without '..'")
    if item.startswith("s3:"):
        if not _S3.fullmatch(item):
            raise UsageError(f"--data {item}: not an S3 address\n{S3_FORM}")
        return
    if "://" in item and not item.startswith("file://"):
        raise UsageError(f"--data {item}: pods read s3:// addresses and paths on the claim\nput it on S3 first")
    path = item.removeprefix("file://").rstrip("/")
    name = path.rpartition("/")[2] or "DATA"
    copy = kube.kubectl(f"cp {path} {kube.namespace}/POD:{CLAIM_MOUNT}/{name}")
    raise UsageError(
        f"--data {item}: a file of this machine; pods can't read it\n"
        f"put it on S3:      aws s3 cp {path} s3://BUCKET/{name}   then --data s3://BUCKET/{name}\n"
        f"or on the claim:   {copy}   then --data {CLAIM_MOUNT}/{name}\n"
        f"                   (POD: any pod that mounts the claim {claim or 'feature-cache'})"
    )


def config_is_a_profile(config: str) -> None:
    """Raises UsageError for a TOML file: pods only have the profiles of their image."""
    if config.endswith(".toml"):
        raise UsageError(
            f"--config {config}: a file of this machine; pods have the profiles of their image\n"
            "name a profile (small, seed, cpu-demo) and say what differs with --set section.key=value"
        )


def settle_image(image: str, branch: str, *, asked_for: bool) -> tuple[str, str, str]:
    """branch -> commit -> image -> digest, as far as it can be known here.

    Returns the image that every pod gets, what identifies its code in the run-id, and a note. The pod `resolve` refuses
    an image of another branch, so what can't be known here is still never run by mistake.
    """
    reference = images.parse(image)
    commit = identity.branch_commit(branch) if branch else ""
    if commit and not asked_for:
        built = images.Image(reference.host, reference.name, commit[:12], "")
        found = images.look_up(built)
        if found.there:
            return pinned(built, found.digest), commit, f"built from {branch} at {commit[:12]}"
    if reference.digest:
        return image, reference.digest.removeprefix("sha256:"), "a digest"
    found = images.look_up(reference)
    if found.there is False:
        raise UsageError(f"image {image}: its registry has no such tag\nname another with --image, or push it")
    if found.digest:
        settled = pinned(reference, found.digest)
        return settled, found.digest.removeprefix("sha256:"), f"what {image} names now"
    return image, image, f"a tag, taken as it is: {found.why or 'its registry tells no digest'}"


def pinned(image: images.Image, digest: str) -> str:
    return str(images.Image(image.host, image.name, "" if digest else image.tag, digest))


def workflow_object(settled: Settled, namespace: str, command: str) -> dict[str, Any]:
    """The Workflow that references the template; all it adds is arguments, labels and annotations."""
    folds = settled.parameters.get("only-folds") or settled.parameters["folds"]
    which = f"folds {folds}" if settled.parameters.get("only-folds") else f"{folds} folds"
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Workflow",
        "metadata": {
            "name": workflow_name(settled.template, settled.run_id),
            "namespace": namespace,
            "labels": {TEMPLATE_LABEL: settled.template, RUN_ID_LABEL: settled.run_id},
            "annotations": {
                TITLE: f"{settled.template} {settled.run_id}: {which}",
                COMMAND_ANNOTATION: command,
            },
        },
        "spec": {
            "workflowTemplateRef": {"name": settled.template},
            "arguments": {"parameters": [{"name": n, "value": v} for n, v in settled.parameters.items()]},
        },
    }


def workflow_name(template: str, run_id: str) -> str:
    """`alpha-rl-<run-id>-<suffix>`; a run-id may have characters that a name may not."""
    room = _MAX_NAME - len(template) - _SUFFIX - 2
    slug = re.sub(r"[^a-z0-9]+", "-", run_id.lower())[:room].strip("-")
    return f"{template}-{slug}-{secrets.token_hex(3)[:_SUFFIX]}"


def phase_of(workflow: dict[str, Any]) -> str:
    """ "Pending" before the controller has seen it."""
    return str((workflow.get("status") or {}).get("phase") or "Pending")


def refuse_unknown_pools(kube: Kube, asked: dict[str, str]) -> None:
    """A pool that was named and has no node: pods would wait for ever.

    Where nodes may not be read nothing is said: the scheduler knows. The template's own pools are its owner's matter.
    """
    for name in POOLS.keys() & asked.keys():
        label = POOLS[name]
        try:
            if kube.call(kube.core.list_node, label_selector=f"{label}={asked[name]}", limit=1).items:
                continue
            nodes = kube.call(kube.core.list_node, label_selector=label).items
        except ClusterError:
            return
        there = sorted({node.metadata.labels[label] for node in nodes})
        raise UsageError(
            f"{name} {asked[name]}: no node has the label {label}={asked[name]}{nearest(asked[name], there)}\n"
            f"pools with nodes: {', '.join(there) or 'none'}; for one that scales from zero say --scales-from-zero"
        )


def refuse_absent_claim(kube: Kube, name: str) -> None:
    """A claim that is not there: pods would wait for it. Where claims may not be read nothing is said."""
    try:
        kube.call(kube.core.read_namespaced_persistent_volume_claim, name, kube.namespace)
        return
    except ClusterError as error:
        if error.status != 404:
            return
    there = claims_there(kube)
    raise UsageError(
        f"parameter claim {name}: no such claim in namespace {kube.namespace}{nearest(name, there)}\n"
        f"claims there: {', '.join(there) or 'none'}; name one with --parameter claim=NAME, "
        f"or see how to make it: {kube.preflight()}"
    )


def claims_there(kube: Kube) -> list[str]:
    """Names of the namespace's claims, [] where they may not be listed."""
    try:
        found = kube.call(kube.core.list_namespaced_persistent_volume_claim, kube.namespace).items
    except ClusterError:
        return []
    return sorted(claim.metadata.name for claim in found)


def refuse_run_in_use(kube: Kube, run_id: str) -> None:
    """Two workflows on one run would fight for its fold folders.

    All live ones are looked at: those that `argo submit` made have no label of ours.
    """
    for workflow in kube.workflows(f"{COMPLETED_LABEL}!=true"):
        if phase_of(workflow) not in ENDED and run_id_of(workflow) == run_id:
            name = workflow["metadata"]["name"]
            raise UsageError(
                f"run {run_id}: workflow {name} works on it ({phase_of(workflow)})\n"
                f"watch it: python -m workflows.watch {name}{kube.flags()}\n"
                f"stop it:  python -m workflows.stop {name}{kube.flags()}\n"
                "or start another run with --run-id NAME"
            )
