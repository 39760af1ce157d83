"""Requests of other APIs as chat requests."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from edge_infer.server.errors import validation_error
from edge_infer.server.protocol.chat import ChatRequest


def chat_request(fields: dict[str, Any]) -> ChatRequest:
    """A chat request of the fields that are not None.

    Raises ApiError 400, as for a chat request that came by HTTP.
    """
    try:
        return ChatRequest.model_validate({k: v for k, v in fields.items() if v is not None})
    except ValidationError as e:
        raise validation_error(e.errors()) from None
