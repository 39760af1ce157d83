"""Tool calls in model text, family by family.

``format_for`` finds the family by what the chat template writes. Its ``grammar`` makes calls
well-formed while they are generated, its ``stream`` reads them back.
"""

from __future__ import annotations

from edge_infer.errors import ConfigError, UnsupportedError
from edge_infer.server.tools.declared import Tool, declared
from edge_infer.server.tools.events import CallArguments, CallStart, TextPart, ToolEvent
from edge_infer.server.tools.format import ToolFormat
from edge_infer.server.tools.gemma import Gemma
from edge_infer.server.tools.hermes import Hermes
from edge_infer.server.tools.llama3 import Llama3
from edge_infer.server.tools.mistral import Mistral, MistralList
from edge_infer.server.tools.stream import ToolStream
from edge_infer.server.tools.xml import QwenXml, Spark

#: Formats with the texts that all stand in the chat templates of their family; the first that fits
#: is taken.
_TABLE: tuple[tuple[ToolFormat, tuple[str, ...]], ...] = (
    (Gemma("gemma", "<start_function_call>", "<end_function_call>", "<escape>"),
     ("<start_function_call>",)),
    (Gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'), ("<|tool_call>",)),
    (Mistral(), ("[TOOL_CALLS]", "[ARGS]")),
    (MistralList(), ("[TOOL_CALLS]",)),
    (Spark(), ("<tool_call>", "<arg_key>")),
    (QwenXml(), ("<tool_call>", "<function=")),
    (Hermes(), ("<tool_call>",)),
    (Llama3(), ('"parameters":',)),
)  # fmt: skip

FORMATS: dict[str, ToolFormat] = {f.name: f for f, _ in _TABLE}


def format_for(chat_template: str | None, override: str | None = None) -> ToolFormat:
    """The format of a model's calls: ``override`` by name, else what its template shows.

    Raises ConfigError for an unknown name, UnsupportedError (``tools_unsupported``) when the
    template takes no tools or writes them in a way that is not known here.
    """
    if override is not None:
        if override not in FORMATS:
            raise ConfigError(
                f"there is no tool format {override!r}.",
                remedy=f"Use one of {', '.join(sorted(FORMATS))}.",
            )
        return FORMATS[override]
    template = chat_template or ""
    if "tools" in template:
        for known, markers in _TABLE:
            if all(m in template for m in markers):
                return known
    why = "calls tools in a way that is not known here" if "tools" in template else "takes no tools"
    raise UnsupportedError(
        f"the model's chat template {why}.",
        remedy="Give a template for tools with --chat-template FILE|NAME, or name the format with"
        f" --tool-format: {', '.join(sorted(FORMATS))}.",
        code="tools_unsupported",
    )


__all__ = [
    "FORMATS",
    "CallArguments",
    "CallStart",
    "TextPart",
    "Tool",
    "ToolEvent",
    "ToolFormat",
    "ToolStream",
    "declared",
    "format_for",
]
