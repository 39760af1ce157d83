"""Checkpoints: the packed on-disk format, readers for Hugging Face folders and GGUF, conversion.

Importing this package costs numpy only; `checkpoint.convert`, `.inspect` and `.resolve` are
separate modules, imported where they are used.
"""

from edge_infer.checkpoint.reader import Checkpoint, PackedMatrix
from edge_infer.checkpoint.safetensors_io import TensorInfo

__all__ = ["Checkpoint", "PackedMatrix", "TensorInfo"]
