"""What every workflow command shares: one clear line for a mistake, no traceback, the right exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
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
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    return typer.main.get_command(app)


def invoke(main: Callable[..., Any], argv: list[str], prog: str) -> int:
    """Runs a command and returns its exit code; a function's int result is its exit code."""
    command = command_of(main)
    try:
        result = command.main(args=argv, prog_name=prog, standalone_mode=False)
    except WorkflowError as error:
        return fail(str(error), error.exit_code)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
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
    print(f"error: {message}", file=sys.stderr)
    return code


def run_command(main: Callable[..., Any]) -> None:
    """Entry of a module run with `python -m workflows.NAME`."""
    module = Path(sys.argv[0]).stem
    sys.exit(invoke(main, sys.argv[1:], f"python -m workflows.{module}"))
