"""``edge-infer grid``: several settings measured in turn, and what they show."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from edge_infer.cli.common import JsonOption, command, megabytes, print_json
from edge_infer.errors import ConfigError

if TYPE_CHECKING:
    from edge_infer.harness.grid.run import Step
    from edge_infer.harness.schema import Arm, Artifact, Metric


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Step], None]]:
    """A bar on a terminal, lines elsewhere; on stderr."""
    if not sys.stderr.isatty():

        def line(step: Step) -> None:
            left = "" if step.seconds_left is None else f", {_time(step.seconds_left)} left"
            print(f"... [{step.done}/{step.total}{left}] {step.text}", file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]:>12}"),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None, left="")

        def update(step: Step) -> None:
            left = "" if step.seconds_left is None else f"{_time(step.seconds_left)} left"
            bar.update(
                task, completed=step.done, total=step.total, description=step.text, left=left
            )

        yield update


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """A grid that is asked to end takes its running arm along; the journal stays."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {n: signal.signal(n, end) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _number(value: float, unit: str) -> str:
    return megabytes(value) if unit == "bytes" else f"{value:.4g}"


def _figure(metric: Metric) -> str:
    median, low, high = (_number(x, metric.unit) for x in (metric.median, metric.min, metric.max))
    unit = "" if metric.unit == "bytes" else f" {metric.unit}"
    return f"{median}{unit}  ({low} to {high}, n={len(metric.samples)})"


def _print_arm(arm: Arm, contended: int) -> None:
    label = "" if arm.status == "result" else f"  {arm.status.upper()}: {arm.status_reason}"
    print(f"{arm.name}{label}")
    for metric in arm.metrics:
        print(f"  {metric.name:<28}{_figure(metric)}")
    for failure in arm.failures:
        print(f"  {failure.stage} failed, {failure.message} [{failure.code}]")
    if contended:
        print(f"  {contended} passes ran while others used the CPUs")


def _print(artifact: Artifact) -> None:
    from edge_infer.harness.comparison import ranking

    passes = artifact.grid.passes if artifact.grid is not None else []
    for arm in artifact.arms:
        contended = [
            p
            for p in passes
            if p.arm == arm.name
            and p.good
            and p.contention is not None
            and p.contention.label == "contended"
        ]
        _print_arm(arm, len(contended))
    for found in artifact.comparisons:
        ratio, interval = found.ratio, found.interval
        between = "" if interval is None else f" ({interval.low:.3f} to {interval.high:.3f})"
        names = f"{found.metric}: {found.arm} / {found.baseline}"
        print(f"{names} = {ratio.median:.3f}{between}: {ranking(found)}")
    for failure in artifact.failures:
        print(f"{failure.message} [{failure.code}]")


@command
def grid(
    spec: Annotated[Path, typer.Argument(help="YAML: arms, metrics, passes.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The artifact (JSON); default: NAME-grid.json."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a killed grid.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for busy CPUs.")] = 0.0,
    check: Annotated[
        Path | None, typer.Option(help="YAML with bounds; exit code 1 where one does not hold.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure several settings in turn, pass by pass, and compare them."""
    from edge_infer.harness.grid.check import check as hold
    from edge_infer.harness.grid.check import read_expected
    from edge_infer.harness.grid.run import run_grid
    from edge_infer.harness.grid.spec import read_spec

    if not 0 <= wait <= 7 * 86400:
        raise ConfigError(f"wait = {wait:g}; 0 to 604800 seconds are possible.")
    document = read_spec(spec)
    expected = None if check is None else read_expected(check)
    output = output or Path(f"{document.name}-grid.json")
    words = ["edge-infer", "grid", str(spec), "--output", str(output)]
    with _ending_in_order(), _progress() as progress:
        artifact = run_grid(
            document, output, resume=resume, wait=wait, progress=progress, command=words
        )
    findings = [] if expected is None else hold(artifact, expected)
    if as_json:
        shown = {"artifact": artifact.model_dump(), "check": [f.model_dump() for f in findings]}
        print_json(shown)
    else:
        _print(artifact)
        for finding in findings:
            print(f"{finding.outcome}: {finding.metric} of {finding.arm}: {finding.message}")
    sound = all(arm.status == "result" and not arm.failures for arm in artifact.arms)
    if not sound or artifact.failures or any(f.outcome != "held" for f in findings):
        raise typer.Exit(1)
