"""``edge-infer agent-suite``: tasks on simulated devices, for any OpenAI-compatible server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_infer.cli.common import JsonOption, command, print_json
from edge_infer.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from edge_infer.harness.agent_suite.tasks import Task
    from edge_infer.harness.schema import Artifact
    from edge_infer.harness.schema_agent import AgentResults

KEY_VARIABLE = "EDGE_INFER_API_KEY"


@command
def agent_suite(
    url: Annotated[str | None, typer.Option(help="Base of the API, as in http://host/v1.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name at that server.")] = None,
    tasks: Annotated[
        list[str] | None, typer.Option(help="Name or pattern (phone.*); repeatable. Default: all.")
    ] = None,
    variants: Annotated[
        list[str] | None, typer.Option(help="A variant; repeatable. Default: all six.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Times with other values and orders.")] = 3,
    seed: Annotated[int, typer.Option(help="The first of the seeds.")] = 0,
    temperature: Annotated[float, typer.Option(help="Of the model's sampling.")] = 0.0,
    max_calls: Annotated[int, typer.Option(help="Tool calls that one episode may take.")] = 40,
    max_tokens: Annotated[int, typer.Option(help="Tokens of one reply.")] = 512,
    timeout: Annotated[float, typer.Option(help="Seconds that one reply may take.")] = 300.0,
    api_key: Annotated[
        str | None, typer.Option(envvar=KEY_VARIABLE, help="Sent as a bearer token.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the artifact (JSON) here.")
    ] = None,
    transcripts: Annotated[
        Path | None, typer.Option(help="Write every conversation here, one JSON line each.")
    ] = None,
    list_tasks: Annotated[bool, typer.Option("--list", help="Print the tasks and stop.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Score a model's tool calls by the state that they leave simulated devices in."""
    from edge_infer.harness.agent_suite.client import HttpAgent
    from edge_infer.harness.agent_suite.episode import Limits
    from edge_infer.harness.agent_suite.suite import SuiteOptions, agent_suite
    from edge_infer.harness.agent_suite.tasks import VARIANTS, select

    if list_tasks:
        _print_tasks(select(tasks or ()), as_json)
        return
    if url is None or model is None:
        raise ConfigError(
            "--url and --model are needed.",
            remedy="For example --url http://127.0.0.1:8000/v1 --model NAME; --list shows tasks.",
        )
    options = SuiteOptions(
        tasks=tasks or (),
        variants=variants or VARIANTS,
        repeats=repeats,
        seed=seed,
        limits=Limits(calls=max_calls, replies=max_calls),
        transcripts=transcripts,
    )
    words = ["edge-infer", "agent-suite", "--url", url, "--model", model]
    words += [word for task in tasks or () for word in ("--tasks", task)]
    words += [word for variant in variants or () for word in ("--variants", variant)]
    words += ["--repeats", str(repeats), "--seed", str(seed), "--temperature", str(temperature)]
    words += ["--max-calls", str(max_calls), "--max-tokens", str(max_tokens)]
    with HttpAgent(
        url,
        model,
        api_key=api_key,
        temperature=temperature,
        max_tokens=max_tokens,
        timeout=timeout,
    ) as agent:
        artifact = agent_suite(
            options,
            agent,
            model,
            command=words,
            settings={"temperature": temperature, "max_tokens": max_tokens},
            progress=lambda text: print(f"... {text}", file=sys.stderr),
        )
    _finish(artifact, output, as_json)


def _print_tasks(tasks: list[Task], as_json: bool) -> None:
    if as_json:
        print_json([{"task": task.id, "variants": list(task.variants)} for task in tasks])
        return
    for task in tasks:
        print(f"{task.id:<28}{', '.join(task.variants)}")


def _finish(artifact: Artifact, output: Path | None, as_json: bool) -> None:
    if output is not None:
        try:
            output.write_text(artifact.model_dump_json(indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise StorageError(
                f"{output} could not be written: {error.strerror}.",
                remedy="Name a file in a folder that exists and has space.",
            ) from None
    (arm,) = artifact.arms
    if as_json:
        print_json(artifact)
    elif arm.agent is not None:
        print_results(arm.name, arm.agent)
    for failure in arm.failures:
        print(f"{failure.stage}: {failure.message} [{failure.code}]", file=sys.stderr)
    if arm.failures:
        raise typer.Exit(1)


def print_results(name: str, results: AgentResults) -> None:
    """The success rate, the rate of each variant, tasks that never worked, and failures."""
    from edge_infer.harness import stats
    from edge_infer.harness.agent_suite.suite import failure_counts
    from edge_infer.harness.agent_suite.tasks import VARIANTS

    episodes = results.episodes
    passed = sum(episode.success for episode in episodes)
    print(f"{name}: {passed} of {len(episodes)} episodes, {results.rate:.0%}", end=" ")
    print(f"({results.low:.0%} to {results.high:.0%})")
    for variant in VARIANTS:
        some = [episode.success for episode in episodes if episode.variant == variant]
        if some:
            low, high = stats.wilson(sum(some), len(some))
            print(f"  {variant:<12}{sum(some):>4} of {len(some):<4}({low:.0%} to {high:.0%})")
    counts = failure_counts(episodes)
    if counts:
        print("failures")
        for failure, count in counts:
            print(f"  {count:>4}  {failure}")
    over = sum(
        e.success and e.goal_at_call is not None and e.calls > e.goal_at_call + 2 for e in episodes
    )
    if over:
        print(f"{over} successes made more than two calls after the goal was reached")
