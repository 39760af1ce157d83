"""What a request says about the form of the answer's text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from edge_infer.server.errors import unsupported_parameter
from edge_infer.server.protocol.common import Strict


class JsonSchemaFormat(Strict):
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Strict):
    """One of these restricts the text: a JSON schema, a regular expression, a list of texts, a
    Lark grammar."""

    json_schema: dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None


def grammar_of(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None
) -> None:
    """Raises ApiError 400 for anything but free text: grammars are not built yet."""
    if response_format is not None and response_format.type != "text":
        raise unsupported_parameter("response_format", "grammars are not built yet")
    if structured is not None:
        raise unsupported_parameter("structured_outputs", "grammars are not built yet")
