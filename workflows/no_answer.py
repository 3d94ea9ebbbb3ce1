"""Why no answer came from an API server: refused, silent, unknown, or TLS that fails. Each with what to do."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

TLS = "TLS"  # the reason of a ClusterError: somebody is there, but not one to be trusted
_CHECK_SERVER = "is it up, and is this its network? check with: kubectl cluster-info"
_OTHER_NAME = (62, 64)  # OpenSSL's codes of a certificate for another host name, another address
_EXPIRED = 10
# What a server says in a TLS alert when it doesn't like our certificate.
_OUR_CERTIFICATE = re.compile(r"ALERT_(\w*CERTIFICATE\w*|UNKNOWN_CA|ACCESS_DENIED)")


@dataclass(frozen=True)
class NoAnswer:
    """`says` goes on after the cluster's name; `status` is 401 where our certificate is refused."""

    says: str
    todo: str = _CHECK_SERVER
    status: int = 0
    reason: str = ""


def explain(error: BaseException) -> NoAnswer:
    """From what urllib3 raised, which wraps the reason several times."""
    from urllib3.exceptions import NameResolutionError, ProxyError

    causes = list(_causes(error))
    by = " (the proxy of the kubeconfig)" if any(isinstance(c, ProxyError) for c in causes) else ""
    for cause in reversed(causes):  # the innermost first
        if isinstance(cause, ssl.SSLError):
            return _of_tls(cause)
        if isinstance(cause, ConnectionRefusedError):
            return NoAnswer(f" does not answer: Connection refused{by}")
    for cause in causes:
        if isinstance(cause, NameResolutionError):
            return NoAnswer(f" does not answer: its name is not known here{by}")
        if limit := re.search(r"timed out.*timeout=([\d.]+)", str(cause)):
            return NoAnswer(f" does not answer within {round(float(limit[1]), 1):g} s{by}")
    inner = causes[-1]
    return NoAnswer(f" does not answer: {getattr(inner, 'strerror', None) or inner}{by}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what is in it, outermost first."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if one not in seen:
            seen.append(one)
            yield one
            inner = (getattr(one, "reason", None), *one.args, one.__cause__, one.__context__)
            waiting += [e for e in inner if isinstance(e, BaseException)]


def _of_tls(error: ssl.SSLError) -> NoAnswer:
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        todo = "certificate-authority in the kubeconfig has to be that of this cluster: get its kubeconfig anew"
        if error.verify_code in _OTHER_NAME:
            todo = "name the server in the kubeconfig as its certificate does, or set tls-server-name there"
        elif error.verify_code == _EXPIRED:
            todo = "is this machine's clock right? else the cluster's owner has to renew it"
        return NoAnswer(
            f": TLS fails: its certificate is not trusted: {error.verify_message.rstrip('.')}", todo, reason=TLS
        )
    if ours := _OUR_CERTIFICATE.search(reason):
        what = ours[1].lower().replace("_", " ")
        return NoAnswer(f" refuses the credentials: TLS alert about the client certificate: {what}", "", 401, TLS)
    if getattr(error, "library", "") in ("PEM", "X509") or "PEM lib" in str(error):
        todo = "correct certificate-authority, client-certificate or client-key: get the kubeconfig anew"
        return NoAnswer(f": TLS fails: a certificate or key of the kubeconfig can't be used: {error}", todo, reason=TLS)
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        todo = "is the server's address in the kubeconfig right, port and https:// included?"
        return NoAnswer(": TLS fails: what answers there speaks none", todo, reason=TLS)
    if isinstance(error, ssl.SSLEOFError):  # its alert can be lost when it closes right after
        todo = "is the client certificate of the kubeconfig, if there is one, still valid? log in again"
        return NoAnswer(": TLS fails: it closed the connection", todo, reason=TLS)
    return NoAnswer(f": TLS fails: {error}", "does a proxy stand between? check with: kubectl cluster-info", reason=TLS)
