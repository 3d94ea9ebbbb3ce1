"""Starts and ends the test cluster.

python -m tests.cluster up        builds what is missing (once, about 15 minutes on two cores), starts everything
python -m tests.cluster status    what runs, and the KUBECONFIG to set
python -m tests.cluster down      ends and removes everything; safe to repeat, also after a crash
python -m tests.cluster build     only the programs and images
"""

from __future__ import annotations

import sys
import time

from tests.cluster import cluster
from tests.cluster.host import ClusterError, Skip


def main(argv: list[str]) -> int:
    """0 done or skipped with the reason, 1 the cluster failed, 2 usage."""
    commands = {"up": _up, "down": _down, "status": _status, "build": cluster.prepare}
    if len(argv) != 1 or argv[0] not in commands:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 0 if argv in (["-h"], ["--help"]) else 2
    try:
        commands[argv[0]]()
    except Skip as reason:
        print(f"skipped: {reason}")
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; everything that was started has been ended", file=sys.stderr)
        return 130
    return 0


def _up() -> None:
    started = time.monotonic()
    cluster.up()
    print(f"{cluster.status()}\nup in {time.monotonic() - started:.0f} s")


def _down() -> None:
    cleaned = cluster.down()
    print(f"removed {', '.join(cleaned)}" if cleaned else "nothing was there")


def _status() -> None:
    print(cluster.status())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
