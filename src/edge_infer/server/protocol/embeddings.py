"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from edge_infer.server.errors import ApiError, unsupported_parameter
from edge_infer.server.protocol.common import Strict, TokenId

MAX_INPUTS = 2048  # the published limit


class EmbeddingRequest(Strict):
    """The published request, and two extensions.

    ``pooling``: how the tokens' hidden states become one vector, the server's unless given.
    ``truncate_prompt_tokens``: of a longer input only the last so many tokens count; -1 for what
    the context holds.
    """

    model: str | None = None
    input: Annotated[str | list[str] | list[TokenId] | list[list[TokenId]], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    pooling: Literal["mean", "last"] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None

    def check(self) -> None:
        """Raises ApiError 400 for what cannot be honoured."""
        if self.dimensions is not None:
            raise unsupported_parameter(
                "dimensions", "the model's vectors have one length and mean nothing when cut"
            )
        if len(self.inputs()) > MAX_INPUTS:
            raise ApiError(
                f"input has {len(self.inputs())} entries; at most {MAX_INPUTS}.", param="input"
            )
        if self.truncate_prompt_tokens == 0:
            raise unsupported_parameter("truncate_prompt_tokens", "0 would leave nothing")

    def inputs(self) -> list[str | list[int]]:
        """Each input: text or token ids."""
        given: Any = self.input
        if isinstance(given, str):
            return [given]
        return [given] if isinstance(given[0], int) else list(given)


def embedding_document(vector: np.ndarray, index: int, encoding: str | None) -> dict[str, Any]:
    """``vector``: f32 [hidden]. base64 is that of its little-endian bytes."""
    value: Any = vector.tolist()
    if encoding == "base64":
        value = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return {"object": "embedding", "index": index, "embedding": value}
