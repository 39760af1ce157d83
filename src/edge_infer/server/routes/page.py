"""The page at ``/``: static files of the package, with a policy that lets it load nothing else."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from edge_infer.server.errors import ApiError

router = APIRouter(include_in_schema=False)

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
_FOLDER = files("edge_infer.server") / "page"


def _file(name: str) -> Response:
    # Only names that the folder itself lists are opened, so no path can lead out of it.
    for entry in _FOLDER.iterdir():
        if entry.name == name and entry.is_file():
            kind = _TYPES[name.rsplit(".", 1)[-1]]
            return Response(entry.read_bytes(), media_type=kind, headers=_HEADERS)
    raise ApiError(f"The page has no file {name[:100]!r}.", status=404, code="not_found")


@router.get("/")
def index() -> Response:
    """The chat page."""
    return _file("index.html")


@router.get("/page/{name}")
def part(name: str) -> Response:
    """A script, style or image of the page."""
    return _file(name)
