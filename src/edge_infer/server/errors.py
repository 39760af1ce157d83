"""Errors as HTTP answers: OpenAI's error shape, with the codes of ``edge_infer.errors``."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edge_infer.errors import CapacityError, ConfigError, EdgeInferError, UnsupportedError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.responses import Response

log = logging.getLogger(__name__)

#: HTTP status by error code, for what the class alone does not say.
STATUS_BY_CODE = {
    "context_length_exceeded": 400,
    "queue_full": 429,
    "engine_stopped": 503,
}
_NAMED = re.compile(r"^(\w+) = ")  # how SamplingParams names the parameter that it refuses

_TAG = re.compile(r"^(str|int|float|bool|list\[.*|dict\[.*|literal\[.*|[A-Z]\w+)$")  # of a union


class ApiError(EdgeInferError):
    """An error of the HTTP layer itself: its status, and the request parameter it is about."""

    code = "invalid_request"

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        remedy: str = "",
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, code=code)
        self.status = status
        self.param = param
        self.retry_after = retry_after


def unsupported_parameter(param: str, why: str, remedy: str = "") -> ApiError:
    """400 for a published parameter that this server cannot honour."""
    return ApiError(
        f"{param} is not supported: {why}.",
        param=param,
        remedy=remedy or "Leave it out.",
        code="unsupported_parameter",
    )


def status_of(error: EdgeInferError) -> int:
    if isinstance(error, ApiError):
        return error.status
    if error.code in STATUS_BY_CODE:
        return STATUS_BY_CODE[error.code]
    if isinstance(error, (ConfigError, UnsupportedError)):
        return 400
    return 503 if isinstance(error, CapacityError) else 500


def error_type(status: int) -> str:
    """OpenAI's ``type`` for an HTTP status."""
    names = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return names.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error_body(
    status: int, message: str, code: str | None, param: str | None = None
) -> dict[str, Any]:
    """The document of an error in OpenAI's shape."""
    return {"error": {"message": message, "type": error_type(status), "param": param, "code": code}}


Shape = Callable[[int, str, "str | None", "str | None"], dict[str, Any]]
#: Other error shapes by the path prefix of the API that has them.
SHAPES: dict[str, Shape] = {}


def shape_for(path: str) -> Shape:
    for prefix, shape in SHAPES.items():
        if path == prefix or path.startswith(prefix + "/"):
            return shape
    return error_body


def describe(error: BaseException) -> tuple[int, str, str | None, str | None]:
    """(status, message, code, param) of an error; what is not ours says nothing of its inside."""
    if isinstance(error, EdgeInferError):
        message = f"{error.message} {error.remedy}".strip()
        param = error.param if isinstance(error, ApiError) else None
        named = _NAMED.match(error.message) if isinstance(error, ConfigError) else None
        return status_of(error), message, error.code, param or (named and named[1]) or None
    return 500, "The server failed on this request; its log has the details.", "internal", None


def error_document(error: BaseException, path: str = "") -> dict[str, Any]:
    """The error as a JSON document in the shape of the API that ``path`` belongs to."""
    return shape_for(path)(*describe(error))


def _headers(error: BaseException) -> dict[str, str]:
    seconds = getattr(error, "retry_after", 1 if describe(error)[0] == 503 else None)
    headers = {} if seconds is None else {"retry-after": str(max(1, math.ceil(seconds)))}
    if isinstance(error, ApiError) and error.status in (408, 413):
        headers["connection"] = "close"  # what is left of the body is not read
    if isinstance(error, ApiError) and error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def error_response(error: BaseException, path: str) -> Response:
    """The error as an HTTP answer. ASCII JSON: a message may quote what is no valid Unicode."""
    from starlette.responses import Response

    return Response(
        json.dumps(error_document(error, path)).encode(),
        status_code=describe(error)[0],
        headers=_headers(error),
        media_type="application/json",
    )


def field_name(location: Sequence[str | int]) -> str:
    """A pydantic location as a path: ``messages[0].content``."""
    out = ""
    for part in location:
        if isinstance(part, str) and _TAG.match(part):
            continue
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out


def validation_error(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first of pydantic's errors as a 400 that names the parameter."""
    first = errors[0]
    location = [p for p in first["loc"] if p not in ("body", "query", "path", "header")]
    param = field_name(location)
    if first["type"] == "extra_forbidden":
        return ApiError(
            f"Unknown parameter: {param:.200}.",
            param=param[:200],
            remedy="Leave it out.",
            code="unknown_parameter",
        )
    if first["type"] == "missing" and not param:
        return ApiError("The request has no JSON body.", remedy="Send application/json.")
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    what = "Missing parameter" if first["type"] == "missing" else "Invalid parameter"
    return ApiError(
        f"{what} {param or 'body'}: {first['msg']:.500}{more}.",
        param=param or None,
        code="missing_parameter" if first["type"] == "missing" else "invalid_parameter",
    )


def install(app: FastAPI) -> None:
    """Every error of the app in the shape of its API."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    @app.exception_handler(EdgeInferError)
    async def ours(request: Request, error: EdgeInferError) -> Response:
        if status_of(error) >= 500:
            log.error("%s %s: %s", request.method, request.url.path, error)
        return error_response(error, request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return error_response(validation_error(error.errors()), request.url.path)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        messages = {
            404: f"There is no {request.method} {request.url.path[:200]}.",
            405: f"{request.url.path[:200]} does not answer {request.method}.",
        }
        codes = {404: "not_found", 405: "method_not_allowed"}
        answer = error_response(
            ApiError(
                messages.get(error.status_code, str(error.detail)),
                status=error.status_code,
                code=codes.get(error.status_code, "invalid_request"),
            ),
            request.url.path,
        )
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return error_response(error, request.url.path)
