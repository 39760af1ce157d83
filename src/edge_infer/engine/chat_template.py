"""Chat templates: messages to the prompt text that a model was trained on.

Templates come with checkpoints, so they are untrusted programs. They run in jinja2's immutable
sandbox, with what Hugging Face offers them (``messages``, ``tools``, ``documents``,
``add_generation_prompt``, ``bos_token`` and the other special tokens, ``raise_exception``,
``strftime_now``, ``tojson`` with non-ASCII text as it is, loop controls, ``{% generation %}``), and
with bounds on steps, CPU time and the size of every string they make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError, TemplateSyntaxError, UndefinedError

from edge_infer.engine.builtin_templates import BUILTIN_TEMPLATES
from edge_infer.engine.template_sandbox import (
    MAX_STRING,
    LimitError,
    RefusedError,
    SandboxEnvironment,
)
from edge_infer.errors import ConfigError, EdgeInferError, StorageError, UnsupportedError

if TYPE_CHECKING:
    from edge_infer.engine.tokenizer import Tokenizer

MAX_SOURCE_CHARS = 1 << 20


class ChatTemplate:
    """A compiled template.

    ``special_tokens`` are the variables ``bos_token``, ``eos_token``, ... that it may use.
    Raises UnsupportedError when the source is not a template that can be run here.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, name: str = "default"
    ) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise UnsupportedError(
                f"the chat template {name!r} has {len(source)} characters; at most"
                f" {MAX_SOURCE_CHARS} are accepted."
            )
        self.name = name
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._environment = SandboxEnvironment()
        try:
            self._template = self._environment.from_string(source)
        except TemplateSyntaxError as e:
            raise self._unsupported(f"has a syntax error in line {e.lineno}: {e.message}") from e
        except (TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as e:
            raise self._unsupported(f"cannot be compiled: {type(e).__name__}: {e}") from e

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt text. Encode it with ``add_special_tokens=False``: it has its own BOS.

        ``messages``: dicts with ``role`` and ``content``; a content of text parts only is joined to
        a string by newlines. ``variables`` are passed to the template (``enable_thinking=False``).

        Raises ConfigError when the messages are malformed or the template refuses them,
        UnsupportedError when the template fails or goes over its bounds.
        """
        variables = {
            **self._special_tokens,
            "messages": _plain_messages(messages),
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        try:
            with self._environment.budget():
                size = 0
                parts = []
                for part in self._template.generate(variables):
                    size += len(part)
                    if size > MAX_STRING:
                        raise LimitError(f"more than {MAX_STRING} characters of prompt")
                    parts.append(part)
                return "".join(parts)
        except RefusedError as e:
            raise ConfigError(
                f"the chat template {self.name!r} refuses these messages: {e}.",
                remedy="Change the messages, or give another template.",
            ) from e
        except (LimitError, OverflowError, RecursionError, MemoryError) as e:
            reason = str(e) if isinstance(e, (LimitError, OverflowError)) else "recursion too deep"
            raise self._unsupported(f"was stopped: {reason}") from e
        except SecurityError as e:
            raise self._unsupported(f"tried something the sandbox forbids: {e}") from e
        except UndefinedError as e:
            raise ConfigError(
                f"the chat template {self.name!r} needs a value that was not given: {e}.",
                remedy="Give every message a role and a content.",
            ) from e
        except EdgeInferError:
            raise
        except Exception as e:  # templates run arbitrary expressions: TypeError, KeyError, ...
            raise self._unsupported(f"failed with {type(e).__name__}: {e}") from e

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"the chat template {self.name!r} {what:.500}.",
            remedy="Give another one: --chat-template FILE|NAME, where NAME is one of "
            f"{', '.join(sorted(BUILTIN_TEMPLATES))}.",
        )


def load(
    tokenizer: Tokenizer, override: str | Path | None = None, *, with_tools: bool = False
) -> ChatTemplate:
    """The template to use for a model: ``override`` (a file or a built-in name), or its own.

    ``with_tools`` prefers the model's template named ``tool_use`` where there is one.
    Raises UnsupportedError when the model has none (a base model), ConfigError for an unknown name.
    """
    special = tokenizer.special_tokens
    if override is not None:
        name = str(override)
        if name in BUILTIN_TEMPLATES:
            return ChatTemplate(BUILTIN_TEMPLATES[name], special, name)
        path = Path(override)
        if not path.is_file():
            raise ConfigError(
                f"there is no chat template {name!r}: it is neither a file nor one of"
                f" {', '.join(sorted(BUILTIN_TEMPLATES))}.",
                remedy="Check the spelling or the path.",
            )
        try:
            return ChatTemplate(path.read_text(encoding="utf-8"), special, path.name)
        except (OSError, UnicodeDecodeError) as e:
            raise StorageError(f"the chat template {path} cannot be read: {e}.") from e
    if with_tools and "tool_use" in tokenizer.chat_templates:
        return ChatTemplate(tokenizer.chat_templates["tool_use"], special, "tool_use")
    if tokenizer.chat_template is None:
        raise UnsupportedError(
            f"{tokenizer.path.name} has no chat template: it is a base model that continues text.",
            remedy="Use a plain prompt (run without --chat, or generate), or give a template with"
            " --chat-template FILE|NAME, where NAME is one of"
            f" {', '.join(sorted(BUILTIN_TEMPLATES))}.",
            code="chat_template_missing",
        )
    return ChatTemplate(tokenizer.chat_template, special)


def _plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ConfigError(
            f"messages must be a list of dicts, got {type(messages).__name__}.",
            remedy='For example [{"role": "user", "content": "Hello"}].',
        )
    out = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ConfigError(
                f"message {i} must be a dict with a role (text), got {message!r:.200}.",
                remedy='For example {"role": "user", "content": "Hello"}.',
            )
        message = dict(message)
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            raise ConfigError(
                f"the content of message {i} must be text or a list of parts, got"
                f" {type(content).__name__}."
            )
        if isinstance(content, list) and all(_is_text_part(p) for p in content):
            message["content"] = "\n".join(p["text"] for p in content)
        out.append(message)
    return out


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    )
