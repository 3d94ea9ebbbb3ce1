"""Certificates for a fake API server that speaks TLS, made by the openssl command: valid ones and expired ones."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_CA = """
[ca]
default_ca = own
[own]
database = index.txt
new_certs_dir = .
rand_serial = yes
default_md = sha256
copy_extensions = copy
policy = names
[names]
commonName = supplied
"""


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path


def make(folder: Path, name: str, *, expired: bool = False) -> Pair:
    """A certificate that signed itself, for 127.0.0.1."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make certificates with")
    pair, request = Pair(folder / f"{name}.crt", folder / f"{name}.key"), folder / f"{name}.csr"
    (folder / "ca.cnf").write_text(_CA)
    (folder / "index.txt").write_text("")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(pair.key)]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    if not expired:
        _openssl(folder, "req", "-x509", *key, *subject, "-days", "2", "-out", str(pair.certificate))
        return pair
    _openssl(folder, "req", "-new", *key, *subject, "-out", str(request))
    dates = ["-startdate", "20200101000000Z", "-enddate", "20210101000000Z"]
    files = ["-in", str(request), "-keyfile", str(pair.key), "-out", str(pair.certificate), "-notext"]
    _openssl(folder, "ca", "-batch", "-selfsign", "-config", "ca.cnf", *files, *dates)
    return pair


def _openssl(folder: Path, *words: str) -> None:
    done = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def server_side(own: Pair, clients: Pair | None = None) -> ssl.SSLContext:
    """TLS of a server; with `clients` it demands a certificate of the client, signed by that one.

    Up to 1.2, where a refusal is part of the handshake: in 1.3 it comes later, and who writes first may miss it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(own.certificate, own.key)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.certificate)
    return context
