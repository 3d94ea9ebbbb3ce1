"""foxhunt's training step against the same step in PyTorch and in JAX, interleaved on one device.

    python -m benchmarks.peers --profile seed --profile small --device cuda --out peers.json

Prints the steps a second of each (median, least, most), foxhunt's ratio to it, and the losses of one batch with the
same weights. Exit code 1 when a peer disagrees on a loss or could not run. Evaluation and checkpoints are not in the
step; the environment, replay, controllers and both losses are. A peer that is not installed is left out, and named by
--peer it is an error: pip install 'foxhunt[peers]'. torch:max-autotune-aten is max-autotune with the products left to
cuBLAS, which spares minutes of compiling Triton's. torch:folded and jax:folded have foxhunt's rewrite as well:
embedding, first norm and first in_proj are one product, and s' and the acting windows one pass without gradient.
torch:default and jax are the step as one writes it down.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers import contest
from trainer.config import load_config
from trainer.device.probe import why_unavailable
from trainer.errors import FoxhuntError, UsageError

DEFAULT = ("torch:default", "torch:folded", "jax", "jax:folded")
KINDS = ("torch:max-autotune-aten", "torch:max-autotune-no-cudagraphs", *DEFAULT)
INSTALL = "pip install 'foxhunt[peers]' (gigabytes)"
DIFFERENCES = """\
Where the work is not the same: the peers draw from their frameworks' generators (foxhunt: Philox by counter), do not
detect a gradient that is not finite, leave out diagnostics (greedy actions, fees and spread paid, lots closed) and the
readback of the bus at each step; their sums have no fixed order, so runs do not repeat bit for bit. All this is less
work than foxhunt's. More work than foxhunt's: torch:default and jax embed, normalise and project the windows one after
the other, and act in a pass of their own; the folded ones do not. Those, too, pass their windows in two calls, 2M with
gradient and M + B without, where foxhunt's pass is one: autograd would keep activations of all rows of one call, and go
back through those that need no gradient."""


def table(result: dict[str, Any]) -> str:
    """Rates, ratios and losses, one contestant a line."""
    head = f"{result['profile']} on {result['device']}, TF32 {'on' if result['tf32'] else 'off'}: "
    lines = [f"{head}{result['rounds']} rounds of {result['steps']} steps each"]
    names = "".join(f"{name:>12}" for name in contest.AGREED)
    lines.append(f"{'':36}{'steps/s':>9}{'least':>9}{'most':>9}{'foxhunt is':>12}{'build s':>9}{names}")
    for kind, figures in result["contestants"].items():
        if "median" not in figures:
            lines.append(f"{kind:36}{figures.get('error', 'not measured').strip().splitlines()[-1]}")
            continue
        rates = "".join(f"{figures[key]:9.1f}" for key in ("median", "min", "max"))
        losses = "".join(f"{figures['losses'][name]:12.6f}" for name in contest.AGREED)
        lines.append(f"{kind:36}{rates}{figures['ratio']:11.2f}x{figures['build_s']:9.1f}{losses}")
    return "\n".join(lines)


def faults(result: dict[str, Any]) -> list[str]:
    """Peers that could not run, and losses that differ."""
    failed = {kind: figures["error"] for kind, figures in result["contestants"].items() if "error" in figures}
    return [f"{kind}: {error}" for kind, error in failed.items()] + contest.disagreements(result)


def chosen_peers(given: list[str] | None, device: str) -> list[str]:
    """Those that can run; says which are skipped. Raises UsageError for one that was asked for, or if none is left."""
    wanted = given or DEFAULT
    absent = {kind: why for kind in wanted if (why := contest.missing(kind, device))}
    if given and absent:
        kind, why = next(iter(absent.items()))
        raise UsageError(f"--peer {kind}: {why}; {INSTALL}")
    if len(absent) == len(wanted):
        raise UsageError(f"no peer to measure against: {', '.join(dict.fromkeys(absent.values()))}; {INSTALL}")
    for kind, why in absent.items():
        print(f"{kind}: not installed: skipped ({why})", flush=True)
    return [kind for kind in wanted if kind not in absent]


def checked(args: argparse.Namespace) -> list[str]:
    """The peers to run. Raises UsageError for what can't work, before any process is started."""
    for profile in args.profile or ["seed"]:
        load_config(profile)
    peers = chosen_peers(args.peer, args.device)
    reason = why_unavailable() if args.device == "cuda" else None
    if reason is not None:
        raise UsageError(f"--device cuda: {reason}")
    return peers


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="append", help="a profile or TOML file; repeatable [seed]")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--peer", action="append", choices=KINDS, help=f"repeatable [{', '.join(DEFAULT)}]")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100, help="timed steps a round and contestant")
    parser.add_argument("--no-tf32", action="store_true", help="products in full float32")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds that a peer may take to build")
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    args = parser.parse_args(argv)
    try:
        peers = checked(args)
    except FoxhuntError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    given = (args.device, peers, not args.no_tf32, args.patience)
    contests = [contest.Contest(profile, *given) for profile in args.profile or ["seed"]]
    results, bad = [], []
    try:
        for stage in ("begin", "build", "wait"):
            for one in contests:
                getattr(one, stage)()
        for one in contests:
            result = one.measure(args.rounds, args.steps)
            results.append(result)
            print(table(result), flush=True)
            if args.out:
                args.out.write_text(json.dumps(results, indent=1) + "\n")
            bad += faults(result)
    finally:
        for one in contests:
            one.end()
    print(DIFFERENCES)
    for line in bad:
        print(line, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
