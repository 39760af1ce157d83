"""What a request says about the form of the answer's text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from edge_infer.server.errors import ApiError
from edge_infer.server.grammar import GrammarSpec, Kind
from edge_infer.server.protocol.common import Strict

_NAMES: dict[Kind, str] = {
    "json_schema": "json",
    "regex": "regex",
    "choice": "choice",
    "lark": "grammar",
}


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
) -> tuple[GrammarSpec | None, str]:
    """The grammar that is asked for, None for free text, and the parameter that asks for it.

    Raises ApiError 400 for a parameter that asks for nothing, or for two things.
    """
    asked: list[tuple[GrammarSpec, str]] = []
    if response_format is not None:
        if (response_format.type == "json_schema") != (response_format.json_schema is not None):
            raise ApiError(
                "response_format.json_schema goes with type = json_schema.",
                param="response_format.json_schema",
            )
        if response_format.json_schema is not None:
            schema = response_format.json_schema.json_schema
            asked.append((GrammarSpec("json_schema", schema), "response_format"))
        elif response_format.type == "json_object":
            asked.append((GrammarSpec("json_object"), "response_format"))
    if structured is not None:
        param = "structured_outputs"
        kinds: dict[Kind, Any] = {
            "json_schema": structured.json_schema,
            "regex": structured.regex,
            "choice": structured.choice,
            "lark": structured.grammar,
        }
        found = [
            (GrammarSpec(k, v), f"{param}.{_NAMES[k]}") for k, v in kinds.items() if v is not None
        ]
        if not found:
            raise ApiError(f"{param} needs one of {', '.join(_NAMES.values())}.", param=param)
        asked.extend(found)
    if len(asked) > 1:
        raise ApiError(
            f"{' and '.join(p for _, p in asked)} each ask for a form of the answer.",
            param=asked[1][1],
            remedy="Give one of them.",
        )
    return asked[0] if asked else (None, "response_format")
