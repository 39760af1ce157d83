"""Python runs this as it starts where this folder is on PYTHONPATH: the build of the native module
that EDGE_INFER_TEST_NATIVE names takes the installed one's place (make test-amx)."""

import importlib.util
import os
import sys

_spec = importlib.util.spec_from_file_location(
    "edge_infer._native", os.environ["EDGE_INFER_TEST_NATIVE"]
)
assert _spec and _spec.loader
sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[_spec.name])
