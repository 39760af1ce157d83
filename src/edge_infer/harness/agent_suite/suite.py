"""Runs tasks x variants x repeats and sums them up as an artifact."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from edge_infer.errors import ConfigError, ExecutionError, StorageError
from edge_infer.harness.agent_suite.episode import Agent, Limits, Outcome, run_episode
from edge_infer.harness.agent_suite.tasks import VARIANTS, Task, Variant, select, start
from edge_infer.harness.bench import now
from edge_infer.harness.provenance import portable, provenance
from edge_infer.harness.schema import Arm, Artifact, EngineBuild, Failure, Metric, Scalar
from edge_infer.harness.schema_agent import AgentEpisode, AgentResults

GIVE_UP = 3
"""Episodes in a row without any reply after which the rest is not tried."""
NO_REPLY = ("timeout", "refused", "server error", "not a reply")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class SuiteOptions:
    """What is run. ``tasks``: patterns of task names; none means all."""

    tasks: Sequence[str] = ()
    variants: Sequence[str] = VARIANTS
    repeats: int = 3
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    transcripts: Path | None = None
    """A file that gets every conversation, one JSON line an episode."""

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= 1000:
            raise ConfigError(f"repeats = {self.repeats}; a number of 1 to 1000 is needed.")
        if not 0 <= self.seed < 1 << 31:
            raise ConfigError(f"seed = {self.seed}; a number of 0 to {(1 << 31) - 1} is needed.")
        unknown = [name for name in self.variants if name not in VARIANTS]
        if unknown or not self.variants:
            raise ConfigError(
                f"There is no variant {unknown[0]!r}." if unknown else "No variant was asked for.",
                remedy=f"Variants: {', '.join(VARIANTS)}.",
            )

    def plan(self) -> list[tuple[Task, Variant, int]]:
        """The episodes: all tasks and variants with the first seed, then with the next."""
        tasks = select(self.tasks)
        episodes = [
            (task, variant, self.seed + repeat)
            for repeat in range(self.repeats)
            for task in tasks
            for variant in VARIANTS
            if variant in self.variants and variant in task.variants
        ]
        if not episodes:
            raise ConfigError("None of these tasks has one of these variants.")
        return episodes


def record(task: Task, variant: Variant, seed: int, outcome: Outcome) -> AgentEpisode:
    """An episode as the artifact keeps it."""
    return AgentEpisode(
        task=task.id,
        variant=variant,
        seed=seed,
        success=outcome.success,
        failure=outcome.failure,
        end=outcome.end,
        calls=outcome.calls,
        refused_calls=outcome.refused,
        goal_at_call=outcome.goal_at,
        completion_tokens=outcome.tokens,
        seconds=outcome.seconds,
        error=outcome.error,
        transcript_sha256=outcome.transcript_sha256,
    )


def run_suite(
    options: SuiteOptions, agent: Agent, progress: Progress = lambda text: None
) -> tuple[list[AgentEpisode], list[Failure]]:
    """All episodes, and what kept some of them from being run.

    Raises ExecutionError where not even the first episodes get a reply.
    """
    plan = options.plan()
    episodes: list[AgentEpisode] = []
    silent = 0
    log = _open(options.transcripts)
    try:
        for index, (task, variant, seed) in enumerate(plan):
            progress(f"{index + 1} of {len(plan)}: {task.id}, {variant}, seed {seed}")
            outcome = run_episode(start(task, variant, seed), agent, options.limits, seed)
            episode = record(task, variant, seed, outcome)
            episodes.append(episode)
            _write(log, episode, outcome.messages)
            silent = silent + 1 if outcome.end in NO_REPLY else 0
            if silent == GIVE_UP:
                message = f"{GIVE_UP} episodes in a row ended without a reply: {outcome.error}"
                if len(episodes) == GIVE_UP:
                    raise ExecutionError(
                        message + ".", remedy="See that the server runs, and that --url fits it."
                    )
                left = len(plan) - len(episodes)
                text = f"{message}; {left} episodes were not run."
                return episodes, [Failure(stage="episodes", code="execution_failed", message=text)]
    finally:
        if log is not None:
            log.close()
    return episodes, []


def _open(path: Path | None) -> TextIO | None:
    if path is None:
        return None
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path} could not be written: {error.strerror}.",
            remedy="Name a file in a folder that exists and has space.",
        ) from None


def _write(log: TextIO | None, episode: AgentEpisode, messages: list[dict[str, Any]]) -> None:
    if log is not None:
        log.write(json.dumps({**episode.model_dump(), "messages": messages}) + "\n")
        log.flush()


def failure_counts(episodes: Sequence[AgentEpisode]) -> list[tuple[str, int]]:
    """The names of the failures, the most frequent first."""
    counts = Counter(e.failure for e in episodes if e.failure is not None)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def agent_suite(
    options: SuiteOptions,
    agent: Agent,
    model: str,
    *,
    command: Sequence[str],
    settings: dict[str, Scalar],
    progress: Progress = lambda text: None,
) -> Artifact:
    """Runs the suite; ``command`` and ``settings`` go into the artifact.

    Raises ExecutionError where the agent cannot be reached at all.
    """
    options.plan()  # refuses before anything is measured
    started, clock = now(), time.monotonic()
    source = provenance()
    episodes, failures = run_suite(options, agent, progress)
    arm = Arm(
        name=model,
        engine=EngineBuild(name="an OpenAI-compatible endpoint", version="unknown"),
        command=portable(command),
        settings=settings,
        agent=AgentResults.of(episodes),
        metrics=[
            Metric.of("calls", "calls", "lower", [float(e.calls) for e in episodes]),
            Metric.of("seconds", "s", "lower", [e.seconds for e in episodes]),
        ],
        failures=failures,
    )
    return Artifact(
        kind="agent-suite",
        command=portable(command),
        started_at=started,
        duration_seconds=time.monotonic() - clock,
        parameters={
            "repeats": options.repeats,
            "seed": options.seed,
            "variants": " ".join(options.variants),
            "tasks": " ".join(options.tasks) or "*",
            "max_calls": options.limits.calls,
        },
        provenance=source,
        arms=[arm],
    )
