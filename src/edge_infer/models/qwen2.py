"""Qwen2 and Qwen2.5: Llama's layers with biases on q, k and v, windowed by layer type."""

from __future__ import annotations

from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.config import DecoderConfig
from edge_infer.models.llama import decoder
from edge_infer.models.weights import Weights


def build(p: ProgramBuilder, w: Weights, c: DecoderConfig) -> None:
    decoder(p, w, c)
