"""Finished responses, for ``previous_response_id`` and GET: bounded, the least used go first."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from edge_infer.server.errors import ApiError

MAX_RESPONSES = 1024
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class StoredResponse:
    """``document``: as the request was answered; ``input``: the request's own input items, without
    those of earlier responses."""

    document: dict[str, Any]
    input: list[dict[str, Any]]


class ResponseStore:
    """Keeps at most ``max_responses`` of together at most ``max_bytes`` of JSON. Used by the event
    loop only."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, response: StoredResponse) -> None:
        """Keeps a response; one that is larger than the whole store is not kept."""
        size = len(json.dumps([response.document, response.input]))
        if size > self._max_bytes:
            return
        self._kept[response.document["id"]] = (response, size)
        self.bytes += size
        while len(self._kept) > self._max_responses or self.bytes > self._max_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self.bytes -= freed

    def get(self, response_id: str) -> StoredResponse:
        """Raises ApiError 404 for one that was never kept, was deleted or has been displaced."""
        if response_id not in self._kept:
            raise ApiError(
                f"There is no response {response_id[:100]!r}.",
                status=404,
                param="response_id",
                code="response_not_found",
                remedy=f"The last {self._max_responses} are kept, without those of store = false.",
            )
        self._kept.move_to_end(response_id)
        return self._kept[response_id][0]

    def delete(self, response_id: str) -> None:
        """Raises ApiError 404 as :meth:`get` does."""
        self.get(response_id)
        _, size = self._kept.pop(response_id)
        self.bytes -= size

    def history(self, previous_id: str | None) -> list[dict[str, Any]]:
        """The items of a response and of all before it, oldest first.

        Raises ApiError 400 (``previous_response_not_found``) when one of them is not kept.
        """
        chain: list[StoredResponse] = []
        while previous_id is not None:
            try:
                chain.append(self.get(previous_id))
            except ApiError as e:
                raise ApiError(
                    e.message,
                    param="previous_response_id",
                    code="previous_response_not_found",
                    remedy=f"{e.remedy} Send the conversation as input.",
                ) from None
            previous_id = chain[-1].document["previous_response_id"]
        return [item for r in reversed(chain) for item in (*r.input, *r.document["output"])]
