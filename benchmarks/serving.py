#!/usr/bin/env python3
"""What the server promises beside throughput, each with a server of its own that is started here.

    python benchmarks/serving.py gap MODEL          # gaps of streams while a long prompt comes
    python benchmarks/serving.py gap MODEL --embeddings 2048 --prompt-tokens 16384
                                                    # ... while so many texts are embedded
    python benchmarks/serving.py speculation MODEL  # gain and cost of --speculative ngram
    python benchmarks/serving.py start MODEL        # process start to /health, and to a first token

``--output`` writes an artifact of kind ``serve-gap``, ``serve-speculation`` or ``serve-start``.
What follows ``--`` goes to ``edge-infer serve``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_infer.checkpoint.resolve import resolve
from edge_infer.cli.artifacts import write_artifact
from edge_infer.errors import EdgeInferError
from edge_infer.harness.load import gap, speculation, start
from edge_infer.harness.provenance import edge_infer_build, file_identity, now, portable, provenance
from edge_infer.harness.report.figures import metric_figure
from edge_infer.harness.schema import Arm, Artifact


def options(args: argparse.Namespace, model: str) -> Any:
    serve = tuple(args.serve)
    if args.what == "gap":
        return gap.GapOptions(
            model, args.streams, args.prompt_tokens, args.repeat, serve, args.embeddings
        )
    if args.what == "speculation":
        return speculation.SpeculationOptions(model, args.repeat, args.generate_tokens, serve)
    return start.StartOptions(model, args.repeat, serve)


def arms(asked: Any, common: dict[str, Any]) -> list[Arm]:
    if isinstance(asked, speculation.SpeculationOptions):
        found = asyncio.run(speculation.measure(asked))
        return [
            Arm(
                name=name,
                metrics=found.metrics(name),
                failures=found.failures if name == speculation.NGRAM else [],
                **common,
            )
            for name in (speculation.PLAIN, speculation.NGRAM)
        ]
    module = gap if isinstance(asked, gap.GapOptions) else start
    return [Arm(name="edge-infer", metrics=asyncio.run(module.measure(asked)), **common)]


def main() -> None:
    arguments, serve = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, serve = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("gap", "speculation", "start"))
    parser.add_argument("model", help="a folder, a GGUF file or a hub id")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--streams", type=int, default=3, help="of gap")
    parser.add_argument("--prompt-tokens", type=int, default=4096, help="of gap")
    parser.add_argument("--embeddings", type=int, default=0, help="of gap: inputs, not a prompt")
    parser.add_argument("--generate-tokens", type=int, default=128, help="of speculation")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(arguments)
    args.serve = serve
    started, clock, source = now(), time.monotonic(), provenance()
    folder = resolve(args.model)
    asked = options(args, str(folder))
    command = portable([Path(sys.argv[0]).name, *sys.argv[1:]])
    common = {
        "engine": edge_infer_build(),
        "command": command,
        "checkpoint": file_identity(folder),
    }
    made = arms(asked, common)
    artifact = Artifact(
        kind=f"serve-{args.what}",
        command=command,
        started_at=started,
        duration_seconds=time.monotonic() - clock,
        parameters={
            **{k: v for k, v in asdict(asked).items() if k not in ("model", "serve")},
            "serve": " ".join(serve),
        },
        provenance=source,
        arms=made,
        comparisons=speculation.compared(made) if args.what == "speculation" else [],
    )
    for arm in made:
        print(arm.name)
        for metric in arm.metrics:
            print(f"  {metric.name:<24}{metric_figure(metric)}")
    for c in artifact.comparisons:
        print(f"{c.metric}: {c.arm} / {c.baseline} = {c.ratio.median:.2f}, {c.verdict}")
    if args.output:
        write_artifact(artifact, args.output)
    failures = [f for arm in made for f in arm.failures]
    for failure in failures:
        print(f"{failure.stage} failed: {failure.message} [{failure.code}]", file=sys.stderr)
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    try:
        main()
    except EdgeInferError as error:
        raise SystemExit(f"{error.message} {error.remedy}".strip()) from None
