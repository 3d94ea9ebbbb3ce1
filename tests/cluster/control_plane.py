"""Certificates, tokens, etcd, API server, controller-manager and scheduler, all on the bridge's address."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from tests.cluster.builds import program
from tests.cluster.host import run, start, until
from tests.cluster.layout import ADMIN, API_PORT, ETCD_PORT, NODES, PKI, RUN, Facts

_MANAGER = "system:kube-controller-manager"
_SCHEDULER = "system:kube-scheduler"


def kubectl(*argv: str | Path, stdin: str | None = None) -> str:
    """kubectl as the cluster's administrator."""
    return run(program("kubectl"), "--kubeconfig", ADMIN, *argv, stdin=stdin)


def kubeconfig(path: Path, facts: Facts, token: str, namespace: str = "default") -> Path:
    """Writes a kubeconfig for a token, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    name = "foxhunt-test"
    cluster = {"server": facts.api, "certificate-authority": str(PKI / "apiserver.crt")}
    context = {"cluster": name, "user": "user", "namespace": namespace}
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": name, "context": context}],
    }
    path.write_text(json.dumps(tree, indent=1))
    return path


def _certificates() -> None:
    """A key for service-account tokens; a CA whose only certificate lets the API server into the kubelets."""
    ssl = "openssl"
    run(ssl, "genrsa", "-out", PKI / "sa.key", "2048")
    run(ssl, "rsa", "-in", PKI / "sa.key", "-pubout", "-out", PKI / "sa.pub")
    new = ("-newkey", "rsa:2048", "-nodes")
    run(
        ssl,
        "req",
        "-x509",
        *new,
        "-days",
        "30",
        "-subj",
        "/CN=test-ca",
        "-keyout",
        PKI / "ca.key",
        "-out",
        PKI / "ca.crt",
    )
    subject = "/O=system:masters/CN=apiserver-kubelet-client"
    run(ssl, "req", *new, "-subj", subject, "-keyout", PKI / "client.key", "-out", PKI / "client.csr")
    signing = ("-CA", PKI / "ca.crt", "-CAkey", PKI / "ca.key", "-CAcreateserial", "-days", "30")
    run(ssl, "x509", "-req", "-in", PKI / "client.csr", *signing, "-out", PKI / "client.crt")


def _tokens(facts: Facts) -> None:
    """Kubeconfigs of the administrator, the control plane and the nodes, each with a random token."""
    users = {"admin": ("admin", "system:masters"), "manager": (_MANAGER, ""), "scheduler": (_SCHEDULER, "")}
    users |= {node.name: (f"system:node:{node.name}", "system:nodes") for node in NODES}
    lines = []
    for name, (user, group) in users.items():
        token = secrets.token_hex(16)
        lines.append(f"{token},{user},{name}" + (f',"{group}"' if group else ""))
        kubeconfig(PKI / f"{name}.kubeconfig", facts, token)
    (PKI / "tokens.csv").touch(mode=0o600)
    (PKI / "tokens.csv").write_text("\n".join(lines) + "\n")


def start_control_plane(facts: Facts) -> None:
    PKI.mkdir(parents=True, exist_ok=True)
    _certificates()
    _tokens(facts)
    here = facts.gateway
    etcd = f"http://{here}:{ETCD_PORT}"
    peer = f"http://{here}:{ETCD_PORT + 1}"
    start(
        "etcd",
        *(program("etcd"), "--data-dir", RUN / "etcd", "--unsafe-no-fsync", "--log-level=warn"),
        *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
        *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"),
    )
    start(
        "kube-apiserver",
        *(program("kube-apiserver"), f"--etcd-servers={etcd}", f"--cert-dir={PKI}"),
        *(f"--bind-address={here}", f"--advertise-address={here}", f"--secure-port={API_PORT}"),
        *("--service-cluster-ip-range=10.96.0.0/16", f"--token-auth-file={PKI}/tokens.csv"),
        *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
        *("--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={PKI}/sa.pub"),
        *(f"--service-account-signing-key-file={PKI}/sa.key", "--kubelet-preferred-address-types=InternalIP"),
        *(f"--kubelet-client-certificate={PKI}/client.crt", f"--kubelet-client-key={PKI}/client.key"),
    )
    until("the API server answers", _is_ready, 90, "kube-apiserver")
    start(
        "kube-controller-manager",
        *(program("kube-controller-manager"), f"--kubeconfig={PKI}/manager.kubeconfig", "--leader-elect=false"),
        *("--use-service-account-credentials", f"--service-account-private-key-file={PKI}/sa.key"),
        *(f"--root-ca-file={PKI}/apiserver.crt", f"--bind-address={here}", "--node-monitor-grace-period=20s"),
    )
    start(
        "kube-scheduler",
        *(program("kube-scheduler"), f"--kubeconfig={PKI}/scheduler.kubeconfig", "--leader-elect=false"),
        f"--bind-address={here}",
    )


def _is_ready() -> bool:
    if not (PKI / "apiserver.crt").exists():
        return False
    try:
        return kubectl("get", "--raw", "/readyz", "--request-timeout=2s").strip() == "ok"
    except Exception:
        return False
