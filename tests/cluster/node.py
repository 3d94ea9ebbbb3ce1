"""One node: containerd and kubelet in a mount namespace and cgroups of their own.

The usual folders (/var/lib/kubelet, /var/log/pods ...) are bound to the node's folder inside that namespace, so that
nodes don't meet in them, nothing is left on the machine, and every mount ends with the node's last process.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

from tests.cluster.builds import program
from tests.cluster.control_plane import kubectl
from tests.cluster.host import ClusterError, journal, kill_cgroup, make_cgroup, make_folder, run, start, until
from tests.cluster.layout import BRIDGE, CGROUP, GPU, PKI, Facts, NodeSpec

_OWN_FOLDERS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/opt/containerd")
PAUSE = "localhost/pause:1"


def cgroup(node: NodeSpec) -> str:
    return f"{CGROUP}/{node.name}"


def _containerd_config(node: NodeSpec, address: str) -> str:
    """`address` is where it serves exec and attach; "" for one that only imports images and serves nobody."""
    return f"""version = 2
disabled_plugins = {[] if address else ["io.containerd.grpc.v1.cri"]}
root = "{node.folder}/root"
state = "{node.folder}/state"
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "{address}"
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def _network(node: NodeSpec, facts: Facts) -> str:
    """Pods on the one bridge, no route beyond it, no forwarding, no masquerade."""
    first, last = node.pods
    ipam = {
        "type": "host-local",
        "ranges": [
            [
                {
                    "subnet": f"{facts.prefix}.0/24",
                    "rangeStart": facts.address(first),
                    "rangeEnd": facts.address(last),
                    "gateway": facts.gateway,
                }
            ]
        ],
    }
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": False, "ipMasq": False, "ipam": ipam}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, {"type": "loopback"}]})


def _kubelet_config(node: NodeSpec, facts: Facts) -> str:
    address = facts.address(node.host)
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{PKI}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "address": address,
        "healthzBindAddress": address,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup(node)}",
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "5s",
        "oomScoreAdj": 0,
        "registerWithTaints": [{"key": "pool", "value": node.pool, "effect": "NoSchedule"}] if node.gpus else [],
        "volumePluginDir": f"{node.folder}/volume-plugins",
    }
    return json.dumps(config)


def start_containerd(node: NodeSpec, facts: Facts, seed: Path | None = None) -> None:
    """Its mount namespace is the node's; the kubelet joins it. `seed` holds the images that the node has from birth."""
    (node.folder / "cni").mkdir(parents=True, exist_ok=True)
    (node.folder / "cni" / "10-bridge.conflist").write_text(_network(node, facts))
    make_cgroup(cgroup(node))
    if f" {facts.address(node.host)}/" not in run("ip", "-o", "addr", "show", "dev", BRIDGE):
        run("ip", "addr", "add", f"{facts.address(node.host)}/32", "dev", BRIDGE)
    if seed is not None:
        copy_root(seed, node.folder / "root")
    run_containerd(node, facts.address(node.host))


def run_containerd(node: NodeSpec, address: str = "") -> None:
    node.folder.mkdir(parents=True, exist_ok=True)
    config = node.folder / "containerd.toml"
    config.write_text(_containerd_config(node, address))
    binds = ["mount --make-rshared /"]
    for folder in _OWN_FOLDERS:
        make_folder(Path(folder))
        own = node.folder / "own" / folder.strip("/").replace("/", "-")
        own.mkdir(parents=True, exist_ok=True)
        binds.append(f"mount --bind {shlex.quote(str(own))} {folder}")
    command = " && ".join([*binds, f"exec containerd -c {config}"])
    own_mounts = ("unshare", "--mount", "--propagation", "private", "sh", "-c", command)
    start(_daemon("containerd", node), *own_mounts, group=services(node))
    plugin, log = "cri" if address else "overlayfs", _daemon("containerd", node)
    until(f"containerd of {node.name} answers", lambda: _answers(node, plugin), 30, log)


def copy_root(seed: Path, root: Path) -> None:
    """A containerd root with hard links: layers and blobs are never written to, only the databases are."""
    try:
        run("cp", "--archive", "--link", seed, root)
    except ClusterError:  # the cache folder is on another file system
        run("cp", "--archive", "--reflink=auto", "--no-target-directory", seed, root)
    for database in seed.rglob("*.db"):
        copy = root / database.relative_to(seed)
        copy.unlink()
        shutil.copyfile(database, copy)


def services(node: NodeSpec) -> str:
    """The cgroup, below the cluster's, of the node's daemons and of what they start outside of containers."""
    return f"{node.name}-services"


def _daemon(what: str, node: NodeSpec) -> str:
    return f"{what}-{node.name}"


def pid_of(name: str) -> int:
    """Process of a daemon's newest start."""
    return int([entry["pid"] for entry in journal("process") if entry["name"] == name][-1])


def ctr(node: NodeSpec, *argv: str | Path) -> str:
    return run("ctr", "--address", node.socket, "--namespace", "k8s.io", *argv)


def pid_in(node: NodeSpec, container: str) -> int:
    """First process of a container, as this machine sees it."""
    tasks = [line.split() for line in ctr(node, "tasks", "ls").splitlines()]
    return next(int(words[1]) for words in tasks if words[0] == container)


def load(node: NodeSpec, archive: Path) -> None:
    ctr(node, "images", "import", "--all-platforms", archive)


def _answers(node: NodeSpec, plugin: str) -> bool:
    """Whether a plugin (the one that serves the kubelet: cri) is up; the socket answers before it is."""
    try:
        listed = run("ctr", "--address", node.socket, "plugins", "ls")
    except ClusterError:
        return False
    return any(line.split()[1] == plugin and line.split()[-1] == "ok" for line in listed.splitlines()[1:])


def start_kubelet(node: NodeSpec, facts: Facts) -> None:
    (node.folder / "kubelet.json").write_text(_kubelet_config(node, facts))
    inside = ("nsenter", f"--mount=/proc/{pid_of(_daemon('containerd', node))}/ns/mnt", "--")
    start(
        _daemon("kubelet", node),
        *(
            *inside,
            program("kubelet"),
            f"--config={node.folder}/kubelet.json",
            f"--kubeconfig={PKI}/{node.name}.kubeconfig",
        ),
        *(f"--hostname-override={node.name}", f"--node-ip={facts.address(node.host)}"),
        *(f"--node-labels=pool={node.pool}", "--root-dir=/var/lib/kubelet"),
        group=services(node),
    )


def finish_node(node: NodeSpec) -> None:
    """Waits until it is ready, and gives it its GPUs: to scheduler and kubelet an extended resource like any other."""
    until(f"node {node.name} is ready", lambda: is_ready(node.name), 60, _daemon("kubelet", node))
    if node.gpus:
        amount = {GPU: str(node.gpus)}
        patch = json.dumps({"status": {"capacity": amount, "allocatable": amount}})
        kubectl("patch", "node", node.name, "--subresource=status", "--type=merge", "-p", patch)


def is_ready(name: str) -> bool:
    path = "{.status.conditions[?(@.type=='Ready')].status}"
    try:
        return kubectl("get", "node", name, "-o", f"jsonpath={path}") == "True"
    except ClusterError:
        return False


def lose(node: NodeSpec) -> None:
    """As when the machine dies: kubelet, containerd, shims and containers are gone at once, nobody says goodbye."""
    kill_cgroup(f"{CGROUP}/{services(node)}")
    kill_cgroup(cgroup(node))


def bring_back(node: NodeSpec, facts: Facts) -> None:
    """A machine that was lost boots again."""
    start_containerd(node, facts)
    start_kubelet(node, facts)
    finish_node(node)
