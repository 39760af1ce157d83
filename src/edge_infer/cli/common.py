"""What every command shares: errors and exit codes, JSON output, sizes in words.

Exit codes: 0 done, 1 an error with a code and a remedy, 2 wrong usage, 130 interrupted.
Only the standard library and typer are imported here, so that ``--help`` stays fast.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, TextIO, TypeVar

import typer

from edge_infer.errors import CapacityError, EdgeInferError, StorageError

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout; errors are JSON on stderr.")
]

F = TypeVar("F", bound=Callable[..., Any])


def print_json(value: Any) -> None:
    """Writes one JSON document to stdout; pydantic models are dumped by their schema."""
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    sys.stdout.write(_json(value, sys.stdout, indent=2) + "\n")
    sys.stdout.flush()


def _json(value: Any, stream: TextIO, indent: int | None = None) -> str:
    """As the stream can carry it: characters that its encoding lacks are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent)
    return text


def fail(error: EdgeInferError, as_json: bool) -> NoReturn:
    """Reports the error on stderr and ends the command with exit code 1."""
    if as_json:
        document = {"code": error.code, "message": error.message, "remedy": error.remedy}
        print(_json({"error": document}, sys.stderr), file=sys.stderr)
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
        _make_streams_safe()
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
            _discard_stdout()
            raise typer.Exit(0) from None
        except MemoryError:
            used_up = "The memory of this process is used up."
            fail(CapacityError(used_up, remedy=_LESS_MEMORY), as_json)
        except OSError as e:  # stdout on a full disk, above all
            _discard_stdout()
            where = f"{e.filename}: " if e.filename else ""
            what = f"Reading or writing failed: {where}{e.strerror or e}."
            fail(StorageError(what, remedy=_STORAGE), as_json)

    return wrapper  # type: ignore[return-value]


_LESS_MEMORY = "Lower max_model_len or choose a smaller model."
_STORAGE = "See to its space and permissions, and try again."


def _make_streams_safe() -> None:
    """Text that a terminal's encoding lacks is replaced, and closed streams take what comes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif name == "stdout" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115


def _discard_stdout() -> None:
    """Nothing more is written there, not even at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
