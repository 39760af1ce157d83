"""YAML documents that people write: read with safe types, checked, refused in words."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from edge_infer.errors import ConfigError
from edge_infer.harness.files import missing_package

T = TypeVar("T", bound=BaseModel)
LIMIT = 1 << 20
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+))")


def read_document(path: Path, model: type[T]) -> T:
    """Reads a YAML file as ``model``.

    Raises ConfigError for what cannot be read, is no YAML, or has unknown or senseless fields.
    """
    try:
        import yaml
    except ImportError:
        raise missing_package("pyyaml") from None
    try:
        size = path.stat().st_size
        if size > LIMIT:
            raise ConfigError(f"{path} has {size} bytes; at most {LIMIT} are read.")
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, RecursionError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}.") from None
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_in_words(error)}") from None


def _in_words(error: ValidationError) -> str:
    """The first few complaints, each with its place."""
    found = error.errors(include_url=False)
    parts = []
    for item in found[:4]:
        place = ".".join(str(p) for p in item["loc"])
        parts.append(f"{place}: {item['msg']}" if place else item["msg"])
    if len(found) > 4:
        parts.append(f"and {len(found) - 4} more")
    return "; ".join(parts) + "."


def expand(text: str, variables: dict[str, str] | None = None) -> str:
    """``$NAME`` and ``${NAME}`` from the environment; ``$$`` is a dollar sign.

    Raises ConfigError for a variable that is not set: an empty word would run something else.
    """
    values: dict[str, Any] = dict(os.environ if variables is None else variables)

    def value(match: re.Match[str]) -> str:
        if match.group(1):
            return "$"
        name = match.group(2) or match.group(3)
        if name not in values:
            raise ConfigError(f"{text!r} needs the environment variable {name}, which is not set.")
        return str(values[name])

    return _VARIABLE.sub(value, text)
