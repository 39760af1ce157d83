"""``edge-infer fidelity``: KL divergence, agreement and perplexity against a reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_infer.cli.artifacts import say, write_artifact
from edge_infer.cli.bench import Model, Output, Threads
from edge_infer.cli.common import JsonOption, command, print_json

if TYPE_CHECKING:
    from edge_infer.harness.schema import Arm


def _print(arm: Arm) -> None:
    found = arm.fidelity
    if found is None:
        return
    bits = arm.metric("bits_per_weight")
    print(arm.name + ("" if bits is None else f", {bits.median:.3f} bits a weight"))
    print(f"  KL mean         {found.kl_mean:.6f} ± {found.kl_mean_error:.6f}")
    print(f"  KL median, 99%  {found.kl_median:.6f}, {found.kl_p99:.6f}")
    top, error = 100 * found.top1_agreement, 100 * found.top1_agreement_error
    print(f"  same best token {top:.2f}% ± {error:.2f}%")
    print(f"  perplexity      {found.perplexity:.4f} ± {found.perplexity_error:.4f}")
    base, error = found.reference_perplexity, found.reference_perplexity_error
    print(f"  the reference's {base:.4f} ± {error:.4f}")
    ratio, error = found.log_perplexity_ratio, found.log_perplexity_ratio_error
    print(f"  ln of the ratio {ratio:.5f} ± {error:.5f}")
    if found.greedy:
        same = sum(case.first_difference is None for case in found.greedy)
        print(f"  greedy          {same} of {len(found.greedy)} prompts go on alike; the others")
        firsts = [str(c.first_difference) for c in found.greedy if c.first_difference is not None]
        print(f"                  differ first at token {', '.join(firsts) or '-'}")


@command
def fidelity(
    model: Model,
    reference: Annotated[
        str,
        typer.Option(help="The unquantized model, or a file of llama-perplexity's log-probs."),
    ],
    text: Annotated[
        str, typer.Option(help="A text file, or wikipedia: a sample fetched once with pip.")
    ] = "wikipedia",
    context: Annotated[int, typer.Option(help="Tokens of a chunk; its second half counts.")] = 512,
    chunks: Annotated[int | None, typer.Option(help="Default: all that the text has.")] = None,
    numerics: Annotated[
        str, typer.Option(help="Compute the model's rows as prompts (prefill) or as decode.")
    ] = "prefill",
    kv_cache_dtype: Annotated[str, typer.Option(help="Of the model: f16, bf16 or int8.")] = "f16",
    prompts: Annotated[int, typer.Option(help="Greedy continuations compared; 0: none.")] = 12,
    peer_model: Annotated[
        list[Path] | None, typer.Option(help="A GGUF that llama.cpp runs; repeatable.")
    ] = None,
    peer_logits: Annotated[
        list[Path] | None, typer.Option(help="A file of llama-perplexity's; repeatable.")
    ] = None,
    save_logits: Annotated[
        Path | None, typer.Option(help="Write the reference's log-probs in llama.cpp's format.")
    ] = None,
    threads: Threads = None,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a model's predictions with a reference's, defined as in llama-perplexity."""
    from edge_infer.checkpoint.resolve import cache_dir
    from edge_infer.harness.corpus import find_text
    from edge_infer.harness.fidelity import FidelityOptions
    from edge_infer.harness.fidelity import fidelity as measure

    options = FidelityOptions(
        model=model,
        reference=reference,
        text=find_text(text, cache_dir()),
        context=context,
        chunks=chunks,
        numerics=numerics,
        kv_cache_dtype=kv_cache_dtype,
        prompts=prompts,
        peer_models=tuple(peer_model or ()),
        peer_logits=tuple(peer_logits or ()),
        save_logits=save_logits,
        threads=threads,
    )
    artifact = measure(options, say)
    if output is not None:
        write_artifact(artifact, output)
    if as_json:
        print_json(artifact)
        return
    for arm in artifact.arms:
        _print(arm)
