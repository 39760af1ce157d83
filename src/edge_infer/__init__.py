"""edge-infer: multimodal models on CPU-only edge boxes."""
