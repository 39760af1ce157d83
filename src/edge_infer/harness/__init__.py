"""Measurement: one artifact schema, statistics, memory over process trees, provenance, runners.

The harness drives edge-infer from outside, as a user would; the engine never imports it.
"""
