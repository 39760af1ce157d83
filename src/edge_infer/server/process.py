"""The server as a process: its socket, signals, time-outs and logs."""

from __future__ import annotations

import errno
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from edge_infer.errors import ConfigError
from edge_infer.server.config import ServerConfig
from edge_infer.server.errors import ApiError, error_response
from edge_infer.server.front import Front

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

    from edge_infer.engine.serving import ServingEngine

log = logging.getLogger(__name__)

HEADER_SECONDS = 20.0  # for a request's line and headers to arrive
KEEP_ALIVE_SECONDS = 60
MAX_HEADER_BYTES = 64 << 10
MAX_CONNECTIONS = 1024  # that are served; some more are told so, the rest are cut off
REFUSED_CONNECTIONS = 256
OPEN_FILES = 4096  # connections, and everything else
GRACE_SECONDS = 1  # for connections to end after the engine has stopped


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening: taken before a model is loaded.

    Raises ConfigError when the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as e:
        raise ConfigError(
            f"The host {host!r} cannot be served: {e}.", remedy="Use 127.0.0.1 or 0.0.0.0."
        ) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as e:
        sock.close()
        raise _not_to_be_had(host, port, e) from None
    return sock


def _not_to_be_had(host: str, port: int, error: OSError) -> ConfigError:
    in_use = error.errno == errno.EADDRINUSE
    return ConfigError(
        f"Port {port} of {host} cannot be had: {error.strerror or error}.",
        remedy="Stop what serves there, or choose another --port."
        if in_use
        else "Choose another --port or --host.",
        code="port_in_use" if in_use else "port_unavailable",
    )


def address_of(sock: socket.socket) -> str:
    """The socket's address as a URL."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def set_up_logging(level: str) -> None:
    """Messages to stderr. What cannot be written there (a full disk) is lost, and nothing else."""
    logging.raiseExceptions = False
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    if level != "debug":
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


class Server(uvicorn.Server):
    """Drains at the first SIGTERM or SIGINT, and stops at once at the second."""

    def __init__(
        self,
        front: Front,
        *,
        access_log: bool = False,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                front,
                http=BoundedProtocol,
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=access_log,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            )
        )
        self._front = front
        self._context = front.context
        self._deadline: float | None = None
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            # Two that start at the same time can both bind; only one can listen.
            for sock in sockets or []:
                sock.listen()
        except OSError as e:
            host, port = sock.getsockname()[:2]
            raise _not_to_be_had(host, port, e) from None
        await super().startup(sockets)
        self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._deadline is not None:
            self.should_exit = self.force_exit = True
            return
        self._context.draining = True
        self._deadline = time.monotonic() + self._context.config.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        if self._front.failure is not None or (
            self._deadline is not None
            and (self._context.in_flight == 0 or time.monotonic() >= self._deadline)
        ):
            return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # What still runs gets its error before the connections are closed.
        await self._context.engine.aclose(0.0)
        await super().shutdown(sockets)


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with what it lacks: a time limit for the headers, one for answers that are
    left unread, and a limit of connections that answers in our error shape."""

    _header_timer: TimerHandle | None = None
    _unread_timer: TimerHandle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._served = self.app
        self.app = self._admit

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS + REFUSED_CONNECTIONS:
            transport.abort()
            return
        # Whatever does not fit the socket pauses writing, so that its reader is watched.
        transport.set_write_buffer_limits(0)
        self._watch_headers()

    async def _admit(self, scope: Any, receive: Any, send: Any) -> None:
        if len(self.connections) <= MAX_CONNECTIONS:
            await self._served(scope, receive, send)
            return
        error = ApiError(
            f"This server keeps at most {MAX_CONNECTIONS} connections.",
            status=503,
            code="too_many_connections",
            remedy="Ask again later.",
            retry_after=1,
        )
        answer = error_response(error, scope["path"])
        answer.headers["connection"] = "close"
        await answer(scope, receive, send)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._stop_unread_timer()
        super().resume_writing()

    def _watch_reader(self) -> None:
        """Of an answer that waits for its client, something must be read all the time."""
        front: Any = self.config.app
        unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(
            front.context.config.write_seconds, self._check_reader, unread
        )

    def _check_reader(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._watch_reader()
            return
        log.warning("A client left its answer unread; the connection ends.")
        self.transport.abort()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _watch_headers(self) -> None:
        """The timer runs from the first byte (or the connection) until the headers are whole."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def run(
    engine: ServingEngine,
    config: ServerConfig,
    sock: socket.socket,
    *,
    access_log: bool = False,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serves until a signal ends it; ``on_start`` is called when requests are taken.

    Raises EdgeInferError for what is wrong with the chat template.
    """
    _allow_open_files()
    front = Front(engine, config)
    server = Server(front, access_log=access_log, on_start=on_start)
    server.run(sockets=[sock])
    if front.failure is not None:
        raise front.failure


def _allow_open_files() -> None:
    """Raises the soft limit of open files, which is often 1024: connections alone may be more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
