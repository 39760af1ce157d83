"""The base of every part of an artifact, and the parts that several rooms of the schema share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Scalar = str | int | float | bool | None
Bytes = Annotated[int, Field(ge=0)]


class Record(BaseModel):
    """Base of every part of the artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Failure(Record):
    """Something that was to be measured and could not be."""

    stage: str
    """What was being done: "start", "load", "prefill", "decode", "peer", "run", "read"."""
    code: str
    """The error's stable code, or "exit" with the process's exit status in the message."""
    message: str
