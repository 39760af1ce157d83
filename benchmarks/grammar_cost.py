#!/usr/bin/env python3
"""What grammars cost per token with a model's vocabulary.

    python benchmarks/grammar_cost.py MODEL                  # folder, GGUF or hub id
    python benchmarks/grammar_cost.py MODEL --output cost.json

Walks fixed answers through their grammars, with the model's own tokens: for each token the time to
ask whether it may follow, which is all that a token that may costs the engine, the time to compute
the mask of what may, which it needs for others, and the time to take the token. No model runs.
Prints a table; ``--output`` writes an artifact of kind ``grammar-cost``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from edge_infer.checkpoint.resolve import resolve
from edge_infer.device.usage import own_memory
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.harness.provenance import edge_infer_build, file_identity, portable, provenance
from edge_infer.harness.schema import Arm, Artifact, Metric
from edge_infer.server.grammar import GrammarCompiler, GrammarSpec
from edge_infer.server.tools import FORMATS, declared

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "born": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "height": {"type": "number"},
        "languages": {"type": "array", "items": {"enum": ["Deutsch", "English", "日本語"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "born", "height", "languages", "address"],
    "additionalProperties": False,
}
ANSWER = {
    "name": "Ada Lovelace, née Byron",
    "born": 1815,
    "height": 1.63,
    "languages": ["English", "Deutsch"],
    "address": {"street": "12 St James's Square, first floor", "city": "London"},
}
TEXT = "I will look that up. One moment, please; the register is slow today.\n"
ANSWER_TEXT = json.dumps(ANSWER, ensure_ascii=False)
CALL = f'<tool_call>\n{{"name": "save", "arguments": {ANSWER_TEXT}}}\n</tool_call>'


def cases() -> dict[str, tuple[GrammarSpec, str]]:
    """Grammars by name, each with a text that follows it."""
    tools = declared([{"function": {"name": "save", "parameters": PERSON}}])
    return {
        "json_schema": (GrammarSpec("json_schema", PERSON), ANSWER_TEXT),
        "json_object": (GrammarSpec("json_object"), ANSWER_TEXT),
        "tools_auto": (FORMATS["hermes"].grammar(tools), TEXT * 3 + CALL),
    }


def walk(compiler: GrammarCompiler, spec: GrammarSpec, ids: list[int], masks: bool) -> list[Times]:
    """Times of each token, the mask's with ``masks``: it would warm what is asked for after it."""
    constraint = compiler.compile(spec)()
    out = []
    for token in ids:
        start = time.perf_counter()
        if masks:
            constraint.mask()
        masked = time.perf_counter()
        if not constraint.allows(token):
            raise SystemExit(f"token {token} does not follow the grammar")
        checked = time.perf_counter()
        constraint.accept(token)
        out.append(Times(masked - start, checked - masked, time.perf_counter() - checked))
    return out


class Times(NamedTuple):
    """Seconds."""

    mask: float
    check: float
    accept: float


def p99(samples: list[float]) -> float:
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * 0.99))]


def measure(folder: Path, passes: int) -> tuple[list[Metric], int]:
    tokenizer = Tokenizer.from_folder(folder)
    tokenizer.encode("")  # loads it
    size = tokenizer.vocab_size
    compiler = GrammarCompiler(tokenizer, size)
    before, start = own_memory().anonymous, time.perf_counter()
    compiler.compile(GrammarSpec("json_object"))
    metrics = [
        Metric.of("state.build", "s", "lower", [time.perf_counter() - start]),
        Metric.of("state.memory", "bytes", "lower", [own_memory().anonymous - before]),
    ]
    for name, (spec, text) in cases().items():
        ids = tokenizer.encode(text, add_special_tokens=False)
        start = time.perf_counter()
        compiler.compile(spec)
        metrics.append(Metric.of(f"{name}.compile", "s", "lower", [time.perf_counter() - start]))
        runs, masked = [], []
        for _ in range(passes):  # in turn, so that both see the same machine
            runs.append(walk(compiler, spec, ids, masks=False))
            masked.append(walk(compiler, spec, ids, masks=True))
        masks = [[t.mask for t in run] for run in masked]
        checks = [[t.check for t in run] for run in runs]
        metrics += [
            Metric.of(f"{name}.check", "s", "lower", [c for run in checks for c in run]),
            Metric.of(f"{name}.check_p99", "s", "lower", [p99(run) for run in checks]),
            Metric.of(f"{name}.mask", "s", "lower", [m for run in masks for m in run]),
            Metric.of(f"{name}.mask_p99", "s", "lower", [p99(run) for run in masks]),
            Metric.of(f"{name}.accept", "s", "lower", [t.accept for run in runs for t in run]),
        ]
    return metrics, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    started, clock = datetime.now(timezone.utc).isoformat(), time.monotonic()
    source = provenance()
    folder = resolve(args.model)
    metrics, size = measure(folder, args.passes)
    print(f"{size} tokens; seconds, or bytes\n\n| | median | min | max | samples |")
    print("|---|---|---|---|---|")
    for m in metrics:
        print(f"| {m.name} | {m.median:.3g} | {m.min:.3g} | {m.max:.3g} | {len(m.samples)} |")
    if args.output:
        command = portable([Path(sys.argv[0]).name, *sys.argv[1:]])
        artifact = Artifact(
            kind="grammar-cost",
            command=command,
            started_at=started,
            duration_seconds=time.monotonic() - clock,
            parameters={"passes": args.passes, "vocabulary": size},
            provenance=source,
            arms=[
                Arm(
                    name="edge-infer",
                    engine=edge_infer_build(),
                    command=command,
                    threads=1,
                    checkpoint=file_identity(folder),
                    metrics=metrics,
                )
            ],
        )
        args.output.write_text(artifact.model_dump_json(indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
