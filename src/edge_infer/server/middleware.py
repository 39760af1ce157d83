"""What stands before every endpoint: API keys, drain, bounds of the body."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from edge_infer.errors import EdgeInferError
from edge_infer.server.body import Bodies, ClientGone, parse_json
from edge_infer.server.errors import ApiError, error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from edge_infer.server.context import ServerContext

#: Answered without a key: liveness, and the static page, which asks its reader for the key.
OPEN_PATHS = frozenset({"/", "/health"})
OPEN_PREFIX = "/page/"
#: Looking at the server is no use of it: it neither delays an unload nor is refused in a drain.
_WATCHING = frozenset(
    {"/", "/health", "/metrics", "/ledger", "/version", "/v1/models", "/openapi.json"}
)


class Guard:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._context = context
        self._bodies = Bodies(context.config.body_limit, context.config.body_seconds)
        self._keys = [key.encode() for key in context.config.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        status = 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        use = path not in _WATCHING and not path.startswith(OPEN_PREFIX)
        self._context.in_flight += use
        try:
            self._admit(scope, path, use)
            if scope["method"] in ("GET", "HEAD", "OPTIONS"):
                await self._app(scope, receive, counted)
                return
            async with self._bodies.read(receive) as body:
                self._check_body(scope, body)
                await self._app(scope, _replay(body, receive), counted)
        except EdgeInferError as error:  # of this guard: the app answers its own
            await error_response(error, path)(scope, receive, counted)
        except ClientGone:
            status = 499
        finally:
            self._context.metrics.http.labels(str(status)).inc()
            self._context.in_flight -= use

    def _admit(self, scope: Scope, path: str, use: bool) -> None:
        if self._keys and path not in OPEN_PATHS and not path.startswith(OPEN_PREFIX):
            self._check_key(dict(scope["headers"]))
        if use and self._context.draining:
            raise ApiError(
                "The server is shutting down.",
                status=503,
                code="shutting_down",
                remedy="Try again later.",
                retry_after=self._context.config.drain_seconds or 1,
            )

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        # Every key is compared, so that the time tells nothing about which was near.
        if not any([hmac.compare_digest(given, key) for key in self._keys]):
            raise ApiError(
                "The API key is missing or wrong.",
                status=401,
                code="invalid_api_key",
                remedy="Send it as Authorization: Bearer KEY.",
            )

    def _check_body(self, scope: Scope, body: bytes) -> None:
        if not body or scope["method"] != "POST":
            return
        content_type = dict(scope["headers"]).get(b"content-type", b"").split(b";")[0]
        if content_type.strip().lower() != b"application/json":
            raise ApiError(
                f"The body's content type is {content_type.decode('latin-1')[:100]!r};"
                " application/json is needed.",
                status=415,
                code="unsupported_media_type",
            )
        parse_json(body, self._context.config.json_depth)


def _replay(body: bytes, receive: Receive) -> Receive:
    """``receive`` of a request whose body has been read."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
