"""What a server is told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_infer.errors import ConfigError

MIB = 1 << 20


@dataclass(frozen=True)
class ServerConfig:
    """``model_names``: names that requests may use, the first of which answers carry.
    ``api_keys``: empty for an open server. ``body_limit``: bytes; ``json_depth``: nested arrays and
    objects. ``body_seconds``: time for a request's body to arrive; ``write_seconds``: time that a
    client may leave sent data unread. ``ping_seconds``: silence before a stream's comment ping.
    ``idle_unload_seconds``: None never unloads. ``chat_template``: a file or a built-in name, None
    for the model's own. ``tool_format``: None chooses by the template. ``pooling``: of
    embeddings, mean or last. ``lazy_grammars``: the vocabulary is read for grammars at the first
    one, not in the first quiet moment.

    Raises ConfigError for a value out of range.
    """

    model_names: tuple[str, ...] = ("model",)
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    body_limit: int = 32 * MIB
    json_depth: int = 128
    body_seconds: float = 30.0
    write_seconds: float = 120.0
    ping_seconds: float = 10.0
    drain_seconds: float = 30.0
    idle_unload_seconds: float | None = None
    chat_template: str | Path | None = None
    tool_format: str | None = None
    pooling: str = "mean"
    lazy_grammars: bool = False
    max_choices: int = 128
    max_logprobs: int = 20

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise ConfigError("A served model needs a name.", remedy="Give --served-model-name.")
        for key in self.api_keys:
            # Header values are Latin-1 on the wire; anything else could never be matched.
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigError(
                    "An API key is empty or has spaces or characters other than ASCII.",
                    remedy="Use letters, digits and punctuation.",
                )
        for name in ("body_limit", "json_depth", "max_choices"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}; 1 or more is needed.")
        for name in ("body_seconds", "write_seconds", "ping_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name)}; more than 0 is needed.")
        if self.pooling not in ("mean", "last"):
            raise ConfigError(f"pooling = {self.pooling!r}; mean or last is needed.")
        if self.drain_seconds < 0:
            raise ConfigError(f"drain_seconds = {self.drain_seconds}; 0 or more is needed.")
        if self.idle_unload_seconds is not None and not self.idle_unload_seconds > 0:
            raise ConfigError(
                f"idle_unload_seconds = {self.idle_unload_seconds}; more than 0 is needed."
            )
