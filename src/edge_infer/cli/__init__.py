"""The ``edge-infer`` command: one thin file per command, which parses, calls and prints."""
