"""The part of ``edge-infer bench`` that loads a server (``--url``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_infer.errors import ConfigError

if TYPE_CHECKING:
    import typer

    from edge_infer.harness.schema_load import Distribution, LoadRun

WITH_URL = {"clients", "seconds", "served_model", "chat", "ignore_eos", "pid"}
WITHOUT_URL = {"model", "repeat", "context", "sequences", "threads", "kv_cache_dtype", "weights"}
WITHOUT_URL |= {"chunk_size", "starts"}


def only_one_kind(context: typer.Context, load: bool) -> None:
    """Raises ConfigError for a parameter that has no effect on this kind of run."""
    for name in sorted(WITHOUT_URL if load else WITH_URL):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "the model" if name == "model" else "--" + name.replace("_", "-")
            raise ConfigError(
                f"{option} has no effect {'with' if load else 'without'} --url.",
                remedy="With --url the server has its own settings; leave one of them out."
                if load
                else "Give --url to load a server.",
            )


def numbers(text: str) -> tuple[int, ...]:
    """ "1,4,16" as numbers. Raises ConfigError for anything else."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(
            f"{text!r} is no list of numbers.", remedy="For example --clients 1,4,16."
        ) from None


def _milliseconds(name: str, found: Distribution | None) -> None:
    if found is not None:
        parts = (found.p50, found.p95, found.p99, found.max)
        p50, p95, p99, most = (f"{1e3 * x:.1f}" for x in parts)
        print(f"  {name:<28}{p50} ms  (p95 {p95}, p99 {p99}, most {most}, n={found.count})")


def print_load(load: LoadRun) -> None:
    """What the clients saw."""
    prompts = load.prompt_tokens
    length = "" if prompts is None else f", prompts of {prompts[0]} to {prompts[1]} tokens"
    print(f"  {load.requests} requests, {load.finished} finished, {load.failed} failed{length}")
    _milliseconds("first token", load.time_to_first_token)
    _milliseconds("between tokens", load.inter_token)
    if load.tokens_per_event > 1.05:
        print(f"  The server sends {load.tokens_per_event:.1f} tokens in one event.")
    if load.client_cpu > 0.5:
        print(f"  The clients themselves used {load.client_cpu:.0%} of a CPU.")
