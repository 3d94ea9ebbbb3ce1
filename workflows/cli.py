"""What every workflow command shares: one clear line for a mistake, no traceback, the right exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from workflows.errors import WorkflowError, nearest

Runs = Annotated[Path, typer.Option("--runs", help="folder of the runs")]
Cache = Annotated[Path, typer.Option("--cache", help="folder of the feature cache")]
Context = Annotated[str, typer.Option("--context", help="context of the kubeconfig; none: the current one")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="namespace of the cluster; none: foxhunt")]
DEFAULT_RUNS = Path("runs")
DEFAULT_CACHE = Path("cache")


def command_of(main: Callable[..., Any]) -> Any:
    """The click command of a function with typer annotations; plain help, no shell completion options."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(_until_closed(main))
    return typer.main.get_command(app)


def _until_closed(main: Callable[..., Any]) -> Callable[..., Any]:
    """The command, ending quietly with 0 where nobody reads its output any more: `| head` has seen enough.

    Caught here, because typer ends the process with 1 before anybody further out hears of it.
    """

    @wraps(main)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return main(*args, **options)
        except BrokenPipeError:
            return 0

    return run


@contextmanager
def read_by_somebody(study: bool) -> Iterator[None]:
    """For a study on this machine, which ends with its terminal: cut off like that it is interrupted, not done."""
    try:
        yield
    except BrokenPipeError:
        if not study:
            raise
        raise Unread(
            "nobody reads the output any more, so the study on this machine was stopped\n"
            "run the same command again to go on from the newest checkpoints; send its output to a file to keep it"
        ) from None


class Unread(WorkflowError):
    """The process that read the output is gone."""

    exit_code = 75


def invoke(main: Callable[..., Any], argv: list[str], prog: str) -> int:
    """Runs a command and returns its exit code; a function's int result is its exit code."""
    command = command_of(main)
    try:
        result = command.main(args=argv, prog_name=prog, standalone_mode=False)
    except WorkflowError as error:
        return fail(str(error), error.exit_code)
    except OSError as error:
        if error.filename is None:
            raise
        return fail(f"{error.filename}: {error.strerror}\nfree space, or name a folder you may write to", 2)
    except Exception as error:
        # click's errors, whichever copy of click typer uses: they say their exit code and message
        if not hasattr(error, "format_message"):
            raise
        return fail(_usage(error, command, prog), 2)
    return result if isinstance(result, int) else 0


def _usage(error: Any, command: Any, prog: str) -> str:
    option = getattr(error, "option_name", None)
    if option:
        known = [name for parameter in command.params for name in parameter.opts]
        hint = nearest(str(option), known) or f"; known: {', '.join(known)}"
        return f"unknown option {option}{hint}"
    return f"{str(error.format_message()).rstrip('.').replace('Value error, ', '')}\nsee {prog} --help"


def fail(message: str, code: int) -> int:
    with suppress(BrokenPipeError):
        print(f"error: {message}", file=sys.stderr)
    return code


def run_command(main: Callable[..., Any]) -> None:
    """Entry of a module run with `python -m workflows.NAME`."""
    module = Path(sys.argv[0]).stem
    code = invoke(main, sys.argv[1:], f"python -m workflows.{module}")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # what is left in it would be tried again at the very end, and turn the code into 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)
