"""Packed embeddings in models that pass no config, and prompts with ids that they do not have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edge_infer.errors import CheckpointError
from edge_infer.vllm_plugin.patches import NotApplicable, embeddings, token_ids

SHAPE = (100, 64)


def config(*names: str, tied: bool = False) -> Any:
    form = SimpleNamespace(n=SHAPE[0], k=SHAPE[1])
    return SimpleNamespace(forms=dict.fromkeys(names, form), tied=tied)


@pytest.mark.parametrize(
    ("known", "prefix", "head", "name"),
    [
        (config("a.wte", "lm_head"), "", False, "a.wte"),
        (config("a.wte", "lm_head"), "", True, "lm_head"),
        (config("a.wte", "lm_head"), "a.wte", False, "a.wte"),
        (config("a.wte", "lm_head"), "b.wte", False, None),  # a name that is not packed
        (config("a.wte", "b.wte"), "", False, None),  # two that it could be
        (config("lm_head"), "", False, None),  # an embedding in 16 bits
        (config("a.wte"), "", True, None),  # a head in 16 bits
        (config("a.wte", tied=True), "", True, "lm_head"),
        (config("a.wte", tied=True), "x.lm_head", True, "x.lm_head"),
        (config(tied=True), "lm_head", True, None),
    ],
)
def test_name_of_a_layer(known: Any, prefix: str, head: bool, name: str | None) -> None:
    assert embeddings.packed_name(known, prefix, SHAPE, head) == name
    assert embeddings.packed_name(known, "", (SHAPE[0] + 1, SHAPE[1]), head) is None


@pytest.mark.parametrize("error", [KeyError, ValueError])
def test_a_module_without_a_place_is_named(error: type[Exception]) -> None:
    def load(loader: Any, model: Any, model_config: Any) -> None:
        raise error("There is no module or parameter named 'h.0.gate.codes' in Model.")

    ours, other = (SimpleNamespace(quantization=name) for name in ("cpu_int4", None))
    model = SimpleNamespace(named_modules=lambda: [("", None), ("h", None), ("h.0", None)])
    match = r"SimpleNamespace keeps h\.0\.gate unquantized"
    with pytest.raises(CheckpointError, match=match) as refused:
        embeddings._with_names(load, None, model, ours)
    assert "--exclude '*h.*.gate'" in refused.value.remedy
    model.named_modules = lambda: [("", None), ("h", None)]
    with pytest.raises(CheckpointError, match=r"has h\.0\.gate; the SimpleNamespace .* no such"):
        embeddings._with_names(load, None, model, ours)
    with pytest.raises(error, match="There is no module"):
        embeddings._with_names(load, None, object(), other)


@pytest.mark.parametrize(("folder", "given"), [("target", True), ("draft", False)])
def test_a_draft_of_another_folder_gets_no_config(
    folder: str, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    import vllm.config

    known = config("a.wte")
    known.get_name = lambda: "cpu_int4"
    current = SimpleNamespace(model_config=SimpleNamespace(model="target"), quant_config=known)
    monkeypatch.setattr(vllm.config, "get_current_vllm_config_or_none", lambda: current)

    def load(loader: Any, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        return embeddings._config()

    built = SimpleNamespace(model=folder)
    found = embeddings._knows_drafts(load, None, vllm_config=current, model_config=built)
    assert (found is known) is given
    assert embeddings._config() is known  # afterwards as before


class Processor:
    """What the patch reads of vLLM's InputProcessor."""

    def __init__(self, quantization: str | None = "cpu_int4", multimodal: bool = False) -> None:
        self.model_config = SimpleNamespace(
            quantization=quantization, is_multimodal_model=multimodal, get_vocab_size=lambda: 100
        )
        self.tokenizer = SimpleNamespace(max_token_id=100)

    def _validate_prompt_len(self, *_: Any) -> None:
        pass


def prompt(*ids: int) -> dict[str, Any]:
    return {"type": "token", "prompt_token_ids": list(ids)}


def test_token_ids_beyond_the_vocabulary_are_refused() -> None:
    pytest.importorskip("vllm")
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine import input_processor

    token_ids.install(input_processor.__name__)
    validate = input_processor.InputProcessor._validate_model_input
    validate(Processor(), prompt(0, 99), prompt_type="decoder")
    validate(Processor(), prompt(), prompt_type="decoder")
    with pytest.raises(VLLMValidationError, match="Token id 100 is out of vocabulary"):
        validate(Processor(), prompt(5, 100), prompt_type="decoder")
    # vLLM's own rule where the patch does not know better
    validate(Processor(multimodal=True), prompt(100), prompt_type="decoder")
    validate(Processor(quantization=None), prompt(100), prompt_type="decoder")


def test_a_processor_of_another_shape_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    other = SimpleNamespace(InputProcessor=type("InputProcessor", (), {}))
    monkeypatch.setitem(sys.modules, "other", other)
    with pytest.raises(NotApplicable, match="_validate_model_input"):
        token_ids.install("other")
