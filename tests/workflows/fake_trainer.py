"""Stands in for `python -m trainer` in tests: the same command line and exit codes, behaviour told by FAKE_PLAN.

FAKE_PLAN is JSON: "<command>" or "train<fold>" -> list of what to do at each call, the last one for ever:
an exit code, "sigkill", "wait" (until SIGTERM, then 75), or with an error line "unsaved" (like "wait"), "full" (75) and
"lease" (2).
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    for flag in (
        "run-id",
        "runs",
        "cache",
        "config",
        "set",
        "data",
        "folds",
        "only-folds",
        "fold",
        "resume",
        "outputs",
    ):
        parser.add_argument(f"--{flag}", default="")
    args = parser.parse_args()
    if args.command == "identity":
        return identity(args)
    folder = Path(args.runs) / "alpha-rl-runs" / args.run_id
    folder.mkdir(parents=True, exist_ok=True)
    name = args.command + args.fold
    what = next_act(folder, name)
    with (folder / "calls.jsonl").open("a") as calls:
        env = {k: v for k, v in os.environ.items() if k.startswith("FOXHUNT_")}
        calls.write(json.dumps({"name": name, "argv": sys.argv[1:], "env": env, "time": time.time()}) + "\n")
    act(what, name)
    write_outputs(args, folder)
    return 0


def identity(args: argparse.Namespace) -> int:
    if "nonsense" in args.set:
        print("error: --set nonsense: unknown key", file=sys.stderr)
        return 2
    print(json.dumps({"config_digest": f"digest of {args.config} {args.set}", "profile": args.config, "folds": 3}))
    return 0


def next_act(folder: Path, name: str) -> object:
    plan = json.loads(os.environ.get("FAKE_PLAN", "{}")).get(name, [0])
    counter = folder / f"{name}.count"
    count = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(count + 1))
    return plan[min(count, len(plan) - 1)]


def act(what: object, name: str) -> None:
    progress = Path(os.environ["ARGO_PROGRESS_FILE"])
    progress.write_text("10/20")
    print(json.dumps({"step": 10, "sps": 123.0, "wr": 0.5}), flush=True)
    if what == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what in ("wait", "unsaved"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        if what == "unsaved":
            signal.signal(signal.SIGTERM, lambda *_: fail("SIGTERM, and the save failed", 75))
        print("waiting", flush=True)
        time.sleep(600)
    if what == "full":
        fail("checkpoint-20.bin: no space left\nfree some space", 75)
    if what == "lease":
        fail("fold folder is owned by a live process\nwait for it", 2)
    if what:
        sys.exit(int(str(what)))
    progress.write_text("20/20")


def fail(said: str, code: int) -> None:
    print(f"error: {said}", file=sys.stderr)
    sys.exit(code)


def write_outputs(args: argparse.Namespace, folder: Path) -> None:
    outputs = Path(args.outputs)
    if args.command == "precompute":
        wanted = [int(f) for f in args.only_folds.split(",") if f] or list(range(int(args.folds)))
        named = [{"fold": f, "label": f"fold {f} - 12-25 23:30", "node": f"fold-{f}-12-25"} for f in wanted]
        (outputs / "folds").write_text(json.dumps(named))
    elif args.command == "train":
        (outputs / "wr").write_text("0.61\n")
        (folder / f"done{args.fold}").write_text("")
    elif args.command == "gate":
        print("gate table: every criterion met")
        (outputs / "verdict").write_text("passed")
    elif args.command == "report":
        (folder / "report.html").write_text("<html></html>")


if __name__ == "__main__":
    sys.exit(main())
