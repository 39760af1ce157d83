"""The OpenAI-compatible HTTP server. Needs the packages of the extra ``[serve]``."""
