"""``edge-infer serve``: the OpenAI-compatible HTTP server."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_infer.cli.common import JsonOption, command, print_json
from edge_infer.cli.convert import progress_bar
from edge_infer.cli.quantities import parse_duration, parse_size
from edge_infer.errors import ConfigError

_LEVELS = ("debug", "info", "warning", "error")


@command
def serve(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file or a hub id (org/name).")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name in requests; repeatable. Default: the model's.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Required of clients; repeatable. Also EDGE_INFER_API_KEY."),
    ] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="A file or a built-in name, instead of the model's.")
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Context length in tokens.")] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences that run at once.")] = 8,
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests that may queue.")] = 256,
    kv_cache_memory: Annotated[
        str | None, typer.Option(help="Size of the KV pool, like 2GiB.")
    ] = None,
    chunk_size: Annotated[
        int,
        typer.Option(help="Tokens of one step at most."),
    ] = 256,
    stream_gap: Annotated[
        str,
        typer.Option(
            help="While answers are generated, prompts get so many tokens a step that it takes "
            "about so long. 0: whole chunks, which are over sooner and hold up streams."
        ),
    ] = "200ms",
    prefix_cache: Annotated[
        bool, typer.Option(help="Compute what prompts begin with once.")
    ] = True,
    prefix_cache_memory: Annotated[
        str | None, typer.Option(help="Of the KV pool, what may stay filled; default half.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Default: one per usable core.")] = None,
    weights: Annotated[str, typer.Option(help="mapped, resident or locked.")] = "mapped",
    kv_cache_dtype: Annotated[str, typer.Option(help="f16, bf16 or int8.")] = "f16",
    speculative: Annotated[
        str | None, typer.Option(help="ngram: guess tokens from earlier text; the same output.")
    ] = None,
    idle_unload: Annotated[
        str | None, typer.Option(help="Unload the model after such a time of no use, like 10m.")
    ] = None,
    pooling: Annotated[str, typer.Option(help="Of embeddings: mean or last.")] = "mean",
    lazy_grammars: Annotated[
        bool,
        typer.Option(
            help="Read the vocabulary for grammars at the first one: less memory until then."
        ),
    ] = False,
    tool_format: Annotated[
        str | None, typer.Option(help="Family of tool calls, instead of the template's.")
    ] = None,
    body_limit: Annotated[str, typer.Option(help="Largest request body.")] = "32MiB",
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin that browsers may call from; repeatable.")
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="Time for running requests at SIGTERM.")
    ] = 30.0,
    log_level: Annotated[str, typer.Option(help=", ".join(_LEVELS))] = "info",
    as_json: JsonOption = False,
) -> None:
    """Serve a model over HTTP."""
    try:
        from edge_infer.server import process
        from edge_infer.server.config import ServerConfig

        if find_spec("fastapi") is None:  # imported when the server already listens
            raise ModuleNotFoundError(name="fastapi")
    except ModuleNotFoundError as e:
        raise ConfigError(
            f"The server needs the package {e.name}, which is not installed.",
            remedy="pip install 'edge-infer[serve]'",
            code="extra_missing",
        ) from None
    if log_level not in _LEVELS:
        raise ConfigError(f"log_level = {log_level!r}; one of {', '.join(_LEVELS)} is needed.")
    config = ServerConfig(
        model_names=tuple(served_model_name or [_name(model)]),
        api_keys=(*(api_key or []), *_environment_keys()),
        cors_origins=tuple(cors_origin or []),
        body_limit=parse_size(body_limit, "--body-limit"),
        drain_seconds=drain_seconds,
        chat_template=chat_template,
        tool_format=tool_format,
        pooling=pooling,
        lazy_grammars=lazy_grammars,
        idle_unload_seconds=(
            None if idle_unload is None else parse_duration(idle_unload, "--idle-unload")
        ),
    )
    gap = parse_duration(stream_gap, "--stream-gap")
    memory = _size(kv_cache_memory, "--kv-cache-memory")
    cached = _size(prefix_cache_memory, "--prefix-cache-memory")
    process.set_up_logging(log_level)
    sock = process.bind(host, port)
    from edge_infer import LLM
    from edge_infer.engine.serving import ServingEngine

    options: dict[str, Any] = {
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "kv_cache_memory_bytes": memory,
        "kv_cache_dtype": kv_cache_dtype,
        "chunk_size": chunk_size,
        "enable_prefix_caching": prefix_cache,
        "prefix_cache_memory_bytes": cached,
        "speculative": speculative,
        "threads": threads,
        "weights": weights,
    }
    with progress_bar("Converting (once)", not as_json) as progress:
        llm = LLM(model, progress=progress, **options)
    engine = ServingEngine(llm, max_waiting=max_waiting, stream_gap=gap)
    url = process.address_of(sock)

    def started() -> None:
        if as_json:
            print_json({"url": url, "models": config.model_names, "load_seconds": llm.load_seconds})
        process.log.info("%s at %s", ", ".join(config.model_names), url)
        if not config.api_keys and host not in ("127.0.0.1", "::1", "localhost"):
            process.log.warning("Open to everybody who reaches %s: there is no --api-key.", url)

    process.run(engine, config, sock, access_log=log_level == "debug", on_start=started)


def _size(text: str | None, option: str) -> int | None:
    return None if text is None else parse_size(text, option)


def _name(model: str) -> str:
    """A model's name in requests: a hub id as it is, else the last part of the path."""
    path = Path(model)
    return (path.resolve().name if path.exists() else model).removesuffix(".gguf")


def _environment_keys() -> list[str]:
    return [key for key in os.environ.get("EDGE_INFER_API_KEY", "").split(",") if key]
