#!/usr/bin/env bash
# Makes llama.cpp's twins of a Hugging Face folder: MODEL-bf16.gguf, and from it each quantization.
#   convert.sh MODEL_FOLDER OUTPUT_FOLDER [TYPE ...]     types default to Q4_0 Q4_K_M
# Needs build.sh to have run (LLAMACPP_BUILD as there). The converter needs torch, transformers and
# sentencepiece: where $PYTHON (default python3) lacks them, an environment is made beside the build.
#   IMATRIX   an importance matrix (llama-imatrix) for the quantizer; its types are named TYPE-imatrix
set -euo pipefail

if [ $# -lt 2 ]; then
  echo "usage: convert.sh MODEL_FOLDER OUTPUT_FOLDER [TYPE ...]" >&2
  exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${LLAMACPP_BUILD:-$here/build}
model=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
types=("$@")
[ ${#types[@]} -gt 0 ] || types=(Q4_0 Q4_K_M)
name=$(basename "$model")

source=$(find "$build" -maxdepth 4 -path '*/vendor/llama.cpp' -type d | head -1)
if [ -z "$source" ] || [ ! -x "$build/bin/llama-quantize" ]; then
  echo "convert.sh: no llama.cpp in $build. Run baselines/llamacpp/build.sh first." >&2
  exit 1
fi

python=${PYTHON:-python3}
usable() { "$1" -c 'import torch, transformers, sentencepiece' 2>/dev/null; }
if ! usable "$python"; then
  python=$build/convert/bin/python
  if ! usable "$python"; then
    requirements=$here/../../tests/requirements-reference.txt
    "${PYTHON:-python3}" -m venv "$build/convert"
    install=("$python" -m pip install -q -r "$requirements" sentencepiece)
    "${install[@]}" || "${install[@]}" --extra-index-url "${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}"
  fi
fi

# Written under another name and renamed: an interrupted run leaves no half file to be trusted.
base=$out/$name-bf16.gguf
if [ ! -f "$base" ]; then
  PYTHONPATH=$source/gguf-py "$python" "$source/convert_hf_to_gguf.py" "$model" \
    --outtype bf16 --outfile "$base.part"
  mv "$base.part" "$base"
fi
for type in "${types[@]}"; do
  options=() suffix=
  if [ -n "${IMATRIX:-}" ]; then options=(--imatrix "$IMATRIX") suffix=-imatrix; fi
  target=$out/$name-$type$suffix.gguf
  if [ ! -f "$target" ]; then
    "$build/bin/llama-quantize" "${options[@]}" "$base" "$target.part" "$type"
    mv "$target.part" "$target"
  fi
done
ls -l "$out"
