"""``edge-infer bench --url``: clients of a server that speaks the OpenAI API, ours or a peer's."""
