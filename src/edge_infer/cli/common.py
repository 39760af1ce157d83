"""What every command shares: errors and exit codes, JSON output, sizes in words.

Exit codes: 0 done, 1 an error with a code and a remedy, 2 wrong usage, 130 interrupted.
Only the standard library and typer are imported here, so that ``--help`` stays fast.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from edge_infer.errors import EdgeInferError

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout; errors are JSON on stderr.")
]

F = TypeVar("F", bound=Callable[..., Any])


def print_json(value: Any) -> None:
    """Writes one JSON document to stdout; pydantic models are dumped by their schema."""
    if hasattr(value, "model_dump_json"):
        sys.stdout.write(value.model_dump_json(indent=2) + "\n")
    else:
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def fail(error: EdgeInferError, as_json: bool) -> NoReturn:
    """Reports the error on stderr and ends the command with exit code 1."""
    if as_json:
        document = {"code": error.code, "message": error.message, "remedy": error.remedy}
        print(json.dumps({"error": document}, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"edge-infer: {error.message} [{error.code}]", file=sys.stderr)
        if error.remedy:
            print(f"  {error.remedy}", file=sys.stderr)
    raise typer.Exit(EXIT_ERROR)


def command(function: F) -> F:
    """Turns the errors that edge-infer raises on purpose, and Ctrl-C, into exit codes."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        as_json = bool(kwargs.get("as_json", False))
        try:
            return function(*args, **kwargs)
        except EdgeInferError as error:
            fail(error, as_json)
        except KeyboardInterrupt:
            sys.stdout.flush()
            print("edge-infer: interrupted", file=sys.stderr)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # The reader (head, a closed pager) has seen enough; keep exit quiet.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    return wrapper  # type: ignore[return-value]


def megabytes(n: float) -> str:
    """Bytes as "412 MB" or "1.25 GB" (powers of ten)."""
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB"


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start
