"""The trainer's command line: parse, build a config, call one function of `trainer.study`.

    python -m trainer precompute --data synthetic --folds 3 --run-id first
    python -m trainer train --fold 0 --run-id first
    python -m trainer gate --run-id first && python -m trainer report --run-id first

Heavy imports happen when a command runs, so --help is quick. Exit codes: trainer/errors.py.
"""

from __future__ import annotations

import os

# Before NumPy is loaded: one BLAS thread, or the same run would not have the same bits on another core count.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import sys  # noqa: E402
from contextlib import suppress  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Annotated, Any, NoReturn  # noqa: E402

import typer  # noqa: E402

if TYPE_CHECKING:
    from trainer.config import StudyConfig
    from trainer.errors import FoxhuntError
    from trainer.study import Place

app = typer.Typer(
    help="Market files in, a policy that was judged out of sample out: the stages of a study, one by one "
    "(`python -m workflows.submit` runs them all).\n\n"
    "Example: python -m trainer precompute --run-id first --data synthetic && "
    "python -m trainer train --run-id first --fold 0\n\n"
    "Exit codes: 0 done, 1 bug, 2 usage, config or data, 3 gate failed, 75 interrupted with the state saved, "
    "76 crash loop, 77 out of memory with the state saved.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunId = Annotated[str, typer.Option("--run-id", help="name of the run; folder under <runs>/alpha-rl-runs")]
Runs = Annotated[Path, typer.Option("--runs", help="folder of all runs")]
Cache = Annotated[Path, typer.Option("--cache", help="folder of the feature cache")]
Config = Annotated[str, typer.Option("--config", help="profile (cpu-demo, small, seed) or a .toml file")]
Set = Annotated[list[str] | None, typer.Option("--set", help="section.key=value; repeat, or separate by ';'")]
Outputs = Annotated[Path | None, typer.Option("--outputs", help="folder for what a workflow reads back")]
DeviceName = Annotated[str, typer.Option("--device", help="auto (a GPU if there is one), cpu or cuda [profile's]")]
Tf32 = Annotated[
    bool | None, typer.Option("--tf32/--no-tf32", help="products of 10-bit mantissas, on a GPU only [profile's]")
]
DEVICES = ("auto", "cpu", "cuda")
FoldNumber = Annotated[int, typer.Option("--fold", min=0, help="fold number, from 0")]


def _config(config: str, overrides: list[str] | None, *more: str) -> StudyConfig:
    from trainer.config import load_config

    return load_config(config, [*_items(overrides), *more])


def _items(overrides: list[str] | None) -> list[str]:
    """`--set "a.b=1; c.d=2"` is two assignments."""
    return [part.strip() for item in overrides or [] for part in item.split(";") if part.strip()]


def _device(device: str, tf32: bool | None) -> list[str]:
    """The options as assignments; those not given leave the profile's. Raises UsageError for an unknown device."""
    from trainer.errors import UsageError

    if device not in ("", *DEVICES):
        raise UsageError(f"--device {device}: unknown device\nchoose auto (a GPU if there is one), cpu or cuda")
    given = {"device": device or None, "tf32": None if tf32 is None else str(tf32).lower()}
    return [f"run.{name}={value}" for name, value in given.items() if value is not None]


def _place(run_id: str, runs: Path, cache: Path) -> Place:
    from trainer.paths import run_folder
    from trainer.study import Place

    run_folder(runs, run_id)
    return Place(runs, cache, run_id)


def _kept_in_pod(place: Place) -> Place:
    """For what no fold's folder keeps: `logs/<pod>.txt` outlives the pod. On one's own machine the terminal does."""
    if pod := os.environ.get("FOXHUNT_POD", ""):
        from trainer.logs import keep_output

        keep_output(place.folder / "logs" / f"{pod}.txt")
    return place


def _output(folder: Path | None, **values: Any) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            (folder / name.replace("_", "-")).write_text(str(value))


@app.command()
def identity(config: Config = "cpu-demo", set_: Set = None, data: str = "") -> None:
    """Check the settings and the form of the data's address; print their digest as one JSON line. Reads no data.

    Of s3:// data it asks size and ETag, where there are credentials: they are part of what a run is.
    Example: python -m trainer identity --config cpu-demo --set env.fee_ticks=0.2
    """
    import json

    cfg = _config(config, set_)
    found = {"config_digest": cfg.digest(), "profile": cfg.profile, "folds": cfg.folds.folds}
    sources = _sources([data])
    if "synthetic" in data:
        from trainer.data.synthetic import is_synthetic, parse_synthetic
        from trainer.errors import UsageError

        for market in filter(is_synthetic, sources):
            parse_synthetic(market)
            if len(sources) > 1:
                raise UsageError(f"--data {data}: the synthetic market joins no other input\ngive it alone")
    if "s3://" in data:
        from trainer.data import s3

        for address in filter(s3.is_s3, sources):
            s3.parse(address)
        found["data"], found["data_unchecked"] = s3.identity(sources)
    print(json.dumps(found))


@app.command()
def precompute(
    run_id: RunId,
    data: Annotated[
        list[str], typer.Option("--data", help="files or s3://bucket/key (repeat or ','), or synthetic[:signal=0.75]")
    ],
    folds: Annotated[int | None, typer.Option("--folds", help="walk-forward folds, 1 to 100 [profile's]")] = None,
    only_folds: Annotated[str, typer.Option("--only-folds", help="hand on only these, such as 0,2")] = "",
    runs: Runs = Path("runs"),
    cache: Cache = Path("cache"),
    config: Config = "cpu-demo",
    set_: Set = None,
    outputs: Outputs = None,
) -> None:
    """Market files to feature cache and fold list.

    Example: python -m trainer precompute --run-id first --data synthetic:signal=0.75 --folds 3
    """
    import json

    from trainer import study

    place = _kept_in_pod(_place(run_id, runs, cache))
    cfg = _config(config, set_, *([] if folds is None else [f"folds.folds={folds}"]))
    wanted = _only(only_folds, cfg.folds.folds)
    found = study.precompute(place, cfg, _sources(data))
    chosen = [f for f in found if f.index in wanted]
    for fold in found:
        test = " to ".join(t[:19] for t in fold.dates["test"])
        print(
            f"fold {fold.index}: train rows {fold.train[0]}..{fold.train[1] - 1}, purge {fold.purge}, test {test} UTC"
        )
    labels = [_label(f.index, f.dates["test"][0]) for f in chosen]
    _output(outputs, folds=json.dumps(labels))


def _label(fold: int, start: str) -> dict[str, Any]:
    """A fold as workflows name it: for people, and with the few characters that a node's name may have."""
    label = f"fold {fold} - {start[5:16].replace('T', ' ')}"
    return {"fold": fold, "label": label, "node": label.replace(" - ", "-").replace(" ", "-").replace(":", ".")}


def _only(text: str, folds: int) -> set[int]:
    """Fold numbers of `0,2`; all of them when it is empty."""
    from trainer.errors import UsageError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) < folds for part in parts):
        raise UsageError(f"--only-folds {text}: expected numbers from 0 to {folds - 1}, such as 0,2")
    return {int(part) for part in parts} or set(range(folds))


def _sources(data: list[str]) -> list[str]:
    """`a,b` is two files; a synthetic URI keeps its commas."""
    return [part for item in data for part in ([item] if item.startswith("synthetic") else item.split(",")) if part]


@app.command()
def train(
    run_id: RunId,
    fold: FoldNumber,
    n_steps: Annotated[int, typer.Option("--n-steps", help="training steps; 0: the profile's", min=0)] = 0,
    resume: Annotated[str, typer.Option("--resume", help="auto (newest valid checkpoint), none, or a path")] = "auto",
    resume_from: Annotated[str, typer.Option("--resume-from", help="a checkpoint file to go on from")] = "",
    evaluate: Annotated[bool, typer.Option("--evaluate/--no-evaluate", help="judge the fold afterwards")] = True,
    device: DeviceName = "",
    tf32: Tf32 = None,
    runs: Runs = Path("runs"),
    cache: Cache = Path("cache"),
    config: Config = "cpu-demo",
    set_: Set = None,
    outputs: Outputs = None,
) -> None:
    """Train one fold, then judge it out of sample. Run it again after any interruption: it goes on.

    Example: python -m trainer train --run-id first --fold 0
    """
    from trainer import study

    place = _place(run_id, runs, cache)
    more = [f"folds.folds={len(_fold_list(place))}"]
    cfg = _config(config, set_, *more, *([f"run.n_steps={n_steps}"] if n_steps else []), *_device(device, tf32))
    _, result = study.train(place, cfg, fold, resume_from or resume, evaluate)
    if result is not None:
        _output(outputs, wr=_number(result.policy.wr), hold_pct=_number(result.policy.hold_pct))
        if outputs is not None:
            study.export_fold(place, fold, outputs)


def _fold_list(place: Place) -> list[Any]:
    from trainer.data.precompute import read_folds
    from trainer.study import read_study

    read_study(place)
    return read_folds(place.folder)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


@app.command()
def evaluate(
    run_id: RunId,
    fold: FoldNumber,
    select: Annotated[str, typer.Option("--select", help="final or best-val")] = "final",
    device: DeviceName = "",
    tf32: Tf32 = None,
    runs: Runs = Path("runs"),
    cache: Cache = Path("cache"),
    outputs: Outputs = None,
) -> None:
    """Judge a trained fold again, from its newest checkpoint.

    Example: python -m trainer evaluate --run-id first --fold 0 --select best-val
    """
    from trainer import study
    from trainer.config import with_overrides

    place = _place(run_id, runs, cache)
    chosen = [f"eval.select={select}", *_device(device, tf32)]
    result = study.evaluate(place, with_overrides(study.config_of(place), chosen), fold)
    _output(outputs, wr=_number(result.policy.wr), hold_pct=_number(result.policy.hold_pct))
    print(f"fold {fold}: wr {_number(result.policy.wr)}, net {result.policy.net_ticks:.1f} ticks")


@app.command()
def gate(
    run_id: RunId,
    runs: Runs = Path("runs"),
    cache: Cache = Path("cache"),
    config: Config = "",
    set_: Set = None,
    outputs: Outputs = None,
) -> None:
    """Judge the whole study: exit 0 passed, 3 failed. Prints each criterion with its number.

    Thresholds are settings of the section eval; others are left as the run was made.
    Example: python -m trainer gate --run-id first --set eval.min_wr=0.6 --set eval.require_positive_net=false
    """
    from trainer import study
    from trainer.results.gate import print_verdict, require_pass

    verdict = study.gate(_kept_in_pod(_place(run_id, runs, cache)), _items(set_))
    print_verdict(verdict)
    _output(outputs, verdict="passed" if verdict.passed else "failed")
    require_pass(verdict)


@app.command()
def report(
    run_id: RunId,
    runs: Runs = Path("runs"),
    cache: Cache = Path("cache"),
    config: Config = "",
    set_: Set = None,
    outputs: Outputs = None,
) -> None:
    """Draw the report: one HTML file without scripts, and the same as JSON.

    Example: python -m trainer report --run-id first
    """
    from trainer import study

    print(f"report {study.report(_kept_in_pod(_place(run_id, runs, cache)), _items(set_))}")


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="a checkpoint-<step>.bin")],
    json_: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Verify a checkpoint and print what it holds.

    Example: python -m trainer inspect runs/alpha-rl-runs/first/fold0/checkpoint-1500.bin
    """
    from trainer.inspection import inspect_checkpoint

    inspect_checkpoint(file, json_)


@app.command(name="verify-resume")
def verify_resume(
    kills: Annotated[int, typer.Option("--kills", min=1, max=50, help="kill -9 this often, at random moments")] = 5,
    steps: Annotated[int, typer.Option("--steps", min=50, help="steps of the proof")] = 600,
    config: Config = "cpu-demo",
    set_: Set = None,
    data: Annotated[str, typer.Option("--data")] = "synthetic",
    seed: Annotated[int, typer.Option("--seed", help="of the random moments; -1: from the clock")] = -1,
    device: DeviceName = "",
    tf32: Tf32 = None,
) -> None:
    """Prove on this machine that a killed run ends bit-identical to an undisturbed one.

    Example: python -m trainer verify-resume --kills 5
    """
    from trainer.verify import verify

    verify(kills, steps, config, [*(set_ or []), *_device(device, tf32)], data, seed)


@app.command()
def bench(
    steps: Annotated[int, typer.Option("--steps", min=10, help="measured steps after 50 of warm-up")] = 200,
    cold: Annotated[bool, typer.Option("--cold", help="also time a start that compiles every kernel")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="registers, spills and shared memory instead")] = False,
    arch: Annotated[str, typer.Option("--arch", help="of --kernels, which it implies; needs no GPU [sm_90]")] = "",
    config: Config = "cpu-demo",
    set_: Set = None,
    json_: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="also write the timings here, as JSON")] = None,
    device: DeviceName = "",
    tf32: Tf32 = None,
) -> None:
    """Time the training step on this machine: rates, time by region and operation, checkpoint stall, memory, start.

    Example: python -m trainer bench --config seed --device cuda
    """
    from trainer import bench as run
    from trainer.errors import Interrupted

    cfg = _config(config, set_, *_device(device, tf32))
    try:
        if kernels or arch:
            run.bench_kernels(cfg, arch or "sm_90", json_)
        else:
            run.bench(cfg, steps, json_, cold, out)
    except (KeyboardInterrupt, _Terminated):  # main's words are of commands that save something
        raise Interrupted("interrupted before the figures were there; a timing starts anew") from None


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code. User mistakes are one message without a traceback."""
    from trainer.errors import FoxhuntError

    if not {"-h", "--help"} & set(sys.argv[1:] if argv is None else argv):  # half the time that help would need
        from trainer.logs import configure_logs

        configure_logs()
    _leave_on_sigterm()
    try:
        code = app(argv, standalone_mode=False)
    except FoxhuntError as error:
        return _say(error)
    except (KeyboardInterrupt, typer.Abort, _Terminated):
        return _interrupted()
    except Exception as error:
        return _usage(error)
    # Typer turns Ctrl-C into a returned 130; commands return nothing.
    return _interrupted() if code == 130 else 0


class _Terminated(BaseException):
    """SIGTERM. Like KeyboardInterrupt no Exception, so that no library takes it for a failure of its own."""


def _leave_on_sigterm() -> None:
    """SIGTERM ends any command by exit 75 with its temporary files removed; the training loop has its own answer.

    Without this a pod that is asked to stop would look as if it had been killed.
    """
    import signal

    def leave(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one is not waited for
        raise _Terminated

    signal.signal(signal.SIGTERM, leave)


def _interrupted() -> int:
    print("error: interrupted; what was saved is kept\nrun the same command again to go on", file=sys.stderr)
    return 75


def _say(error: FoxhuntError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code


def _usage(error: Exception) -> int:
    """A mistake on the command line, a place that can't be used, a fault of the GPU; else a bug, which keeps its
    traceback (exit 1)."""
    import traceback

    from trainer.errors import of_os_error

    if isinstance(error, OSError) and (known := of_os_error(error)) is not None:
        return _say(known)
    if not hasattr(error, "format_message"):
        from trainer.device.faults import of_device_error

        if (fault := of_device_error(error)) is not None:
            return _say(fault)
        traceback.print_exception(error)
        return 1
    context = getattr(error, "ctx", None)
    print(f"error: {error.format_message()}", file=sys.stderr)
    if context is not None:
        print(f"see: {context.command_path} --help", file=sys.stderr)
    return 2


def leave(code: int) -> NoReturn:
    """Ends the process without taking the interpreter apart.

    Libraries keep threads of their own: pyarrow's may still be reading ahead in a table that turned out bad. One that
    asks for the interpreter's lock while that is dismantled aborts the process, and 134 would be tried again. After a
    fault of the GPU, each destructor would tell that it can't free its part.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # `| head` has seen enough
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
