"""A GGUF's metadata with the weights of a folder that `edge-infer dequantize` made of it.

    python baselines/llamacpp/twin.py ORIGINAL.gguf FOLDER OUT.gguf

llama.cpp's own converter needs the tokenizer in the form of its first release, which a GGUF does
not carry. Here everything but the weights is copied; matrices become BF16, vectors stay F32.
Architectures whose exporter reorders rows (llama) are refused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from edge_infer.checkpoint import Checkpoint
from edge_infer.checkpoint.gguf_header import read_header
from edge_infer.checkpoint.gguf_names import hf_name
from edge_infer.checkpoint.safetensors_io import read_array
from edge_infer.checkpoint.source import to_f32

TYPES = gguf.GGUFValueType


def add_field(writer: gguf.GGUFWriter, field: gguf.ReaderField) -> None:
    kind = field.types[0]
    value: Any = field.contents()
    if kind == TYPES.ARRAY:
        writer.add_key_value(field.name, value, kind, sub_type=field.types[-1])
    else:
        writer.add_key_value(field.name, value, kind)


def main() -> None:
    original, folder, out = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    header = read_header(original)
    architecture = str(header.fields["general.architecture"])
    if architecture == "llama":
        sys.exit("twin.py: llama's exporter reorders rows, which this script does not.")
    checkpoint = Checkpoint.open(folder)
    writer = gguf.GGUFWriter(out, architecture)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    skipped = {"general.architecture", "general.file_type", "general.quantization_version"}
    for field in gguf.GGUFReader(original).fields.values():
        if field.name not in skipped and not field.name.startswith("GGUF."):
            add_field(writer, field)
    for info in header.tensors.values():
        tensor = checkpoint.tensors[str(hf_name(architecture, info.name))]
        values = read_array(tensor)
        if len(info.shape) == 1:  # a norm: Gemma's exporter adds 1
            vector = to_f32(values, tensor.dtype) + np.float32(architecture == "gemma3")
            writer.add_tensor(info.name, vector)
        else:
            raw = np.ascontiguousarray(values).view(np.uint8)
            writer.add_tensor(info.name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
