"""The part of an artifact that the agent suite adds: its episodes and their success rate."""

from __future__ import annotations

import math

from pydantic import Field, model_validator

from edge_infer.harness import stats
from edge_infer.harness.record import Record


class AgentEpisode(Record):
    """One task of the agent suite, done once on a simulated device."""

    task: str
    variant: str
    seed: int
    success: bool
    """The whole state of the device ended as the task asks."""
    failure: str | None
    """Its name by the rules over the device's event log; None for a success."""
    end: str
    """Why it ended: "answered", "limit", "cut off", or what happened to a request."""
    calls: int = Field(ge=0)
    refused_calls: int = Field(ge=0)
    goal_at_call: int | None
    """Calls made when the state was first right; None: it never was."""
    completion_tokens: int = Field(ge=0)
    seconds: float
    error: str | None = None
    transcript_sha256: str

    @model_validator(mode="after")
    def _failures_have_names(self) -> AgentEpisode:
        if self.success != (self.failure is None):
            raise ValueError(f"{self.task}: success is {self.success}, failure {self.failure!r}")
        return self


class AgentResults(Record):
    """Episodes with their success rate; the rate is recomputed on reading."""

    episodes: list[AgentEpisode] = Field(min_length=1)
    rate: float
    low: float
    """Lower end of the 95% Wilson interval."""
    high: float

    @classmethod
    def of(cls, episodes: list[AgentEpisode]) -> AgentResults:
        """Builds the results with their rate from at least one episode."""
        passed = sum(episode.success for episode in episodes)
        low, high = stats.wilson(passed, len(episodes))
        return cls(episodes=episodes, rate=passed / len(episodes), low=low, high=high)

    @model_validator(mode="after")
    def _rate_matches_episodes(self) -> AgentResults:
        passed = sum(episode.success for episode in self.episodes)
        expected = (passed / len(self.episodes), *stats.wilson(passed, len(self.episodes)))
        given = (self.rate, self.low, self.high)
        if not all(math.isclose(a, b, abs_tol=1e-12) for a, b in zip(given, expected, strict=True)):
            raise ValueError(f"rate and interval are {given}, the episodes give {expected}")
        return self
