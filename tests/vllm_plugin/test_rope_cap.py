"""RoPE tables cut to the served context: every kind, bit by bit, and what must stay as it is."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
rotary = pytest.importorskip("vllm.model_executor.layers.rotary_embedding")

from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402

from edge_infer.vllm_plugin import patches  # noqa: E402
from edge_infer.vllm_plugin.patches import rope_cap  # noqa: E402

ADVERTISED, SERVED, HEAD = 65536, 100, 64
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"rope_theta": 1e4},
    "local": {"rope_theta": 1e6},  # Gemma 3 has two tables of different base
    "linear": {"rope_type": "linear", "factor": 8.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": ADVERTISED // 16,
    },
    "deepseek_yarn": {
        "rope_type": "deepseek_yarn",
        "factor": 16.0,
        "original_max_position_embeddings": ADVERTISED // 16,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "max_trained_positions": 4096},
    "dynamic alpha": {"rope_type": "dynamic", "alpha": 1000.0},
    "ntk": {"rope_type": "ntk", "factor": 4.0},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    "mrope": {"mrope_section": [8, 12, 12]},
    "mrope yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ADVERTISED // 4,
        "mrope_section": [8, 12, 12],
    },
    "openpangu": {
        "rope_type": "openpangu",
        "mrope_section": [8, 12, 12],
        "mrope_interleaved": True,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0] * (HEAD // 2),
        "long_factor": [4.0] * (HEAD // 2),
        "original_max_position_embeddings": 4096,
    },
}


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """build(kind, patched, **served) -> the table of a rotary embedding of vLLM's."""
    names = ["RotaryEmbeddingBase", "FourierRotaryEmbedding", "DualChunkRotaryEmbedding"]
    names.append("Phi3LongRoPEScaledRotaryEmbedding")
    classes = [getattr(rotary.base, n, None) or getattr(rotary, n) for n in names]
    for owner in classes:
        for name in ("__init__", "_compute_cos_sin_cache"):
            if name in vars(owner):
                method = vars(owner)[name]
                if hasattr(method, patches._MARK):  # an engine of other tests ran in this process
                    method = method.__wrapped__
                monkeypatch.setattr(owner, name, method)

    def make(
        kind: dict[str, Any],
        patched: bool,
        served: int = SERVED,
        multimodal: bool = False,
        length: int = ADVERTISED,
    ) -> Any:
        if patched:
            rope_cap.install(rope_cap.TARGETS[0])
        config = VllmConfig()
        config.model_config = types.SimpleNamespace(
            max_model_len=served,
            multimodal_config=object() if multimodal else None,
            hf_text_config=types.SimpleNamespace(max_position_embeddings=ADVERTISED),
        )
        with set_current_vllm_config(config):
            return rotary.get_rope(
                HEAD, length, is_neox_style=True, rope_parameters=dict(kind), dtype=torch.bfloat16
            )

    monkeypatch.setattr(rotary, "_ROPE_DICT", {})
    yield make


def table(rope: Any) -> Any:
    names = ("cos_sin_cache", "long_short_cos_sin_cache")
    return next(getattr(rope, name) for name in names if hasattr(rope, name))


@pytest.mark.parametrize("name", KINDS)
def test_rows_that_remain_have_the_same_bits(build: Callable[..., Any], name: str) -> None:
    whole = table(build(KINDS[name], False))
    cut = table(build(KINDS[name], True))
    assert whole.shape[0] >= ADVERTISED
    if "mrope" in name or name == "openpangu":
        assert cut.shape[0] == rope_cap.MULTIMODAL_ROWS < whole.shape[0]
    elif name == "longrope":  # short table first; short contexts read nothing else
        assert cut.shape[0] == 2 * (SERVED + 1)
        cut = cut[: SERVED + 1]
    else:
        assert cut.shape[0] == SERVED + 1
    assert torch.equal(whole[: cut.shape[0]], cut)


def test_longrope_finds_its_long_table(build: Callable[..., Any]) -> None:
    original = KINDS["longrope"]["original_max_position_embeddings"]
    served = 2 * original
    whole, cut = (table(build(KINDS["longrope"], patched, served)) for patched in (False, True))
    assert cut.shape[0] == original + served + 1 < whole.shape[0]
    assert torch.equal(whole[: cut.shape[0]], cut)


def test_a_longer_context_gets_a_table_of_its_own(build: Callable[..., Any]) -> None:
    first = table(build(KINDS["plain"], True))
    second = table(build(KINDS["plain"], True, 500))
    assert (first.shape[0], second.shape[0]) == (SERVED + 1, 501)


def test_other_tables_of_multimodal_models_stay(build: Callable[..., Any]) -> None:
    language = table(build(KINDS["plain"], True, multimodal=True))
    encoder = table(build(KINDS["plain"], True, multimodal=True, length=8192))
    assert (language.shape[0], encoder.shape[0]) == (SERVED + 1, 8192)


def test_results_are_the_same(build: Callable[..., Any]) -> None:
    positions = torch.arange(SERVED)
    query = torch.randn(SERVED, 4 * HEAD, generator=torch.Generator().manual_seed(1))
    query = query.to(torch.bfloat16)
    results = [
        build(KINDS["yarn"], patched).forward_native(positions, query, query.clone())
        for patched in (False, True)
    ]
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
