# Sourced by the peers' build.sh: makes build/venv beside the script from its requirements.txt, or
# NAME/venv in $EDGE_INFER_PEERS_BUILD, a folder that outlives a checkout (edge-infer reads it too).
# PYTHON: the interpreter. TORCH_CPU_INDEX: where the CPU build of torch is looked for if the
# configured indexes do not have it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)
build=${EDGE_INFER_PEERS_BUILD:+$EDGE_INFER_PEERS_BUILD/$(basename "$here")}
venv=${build:=$here/build}/venv
stamp=$venv/.requirements

make_venv() {
  if cmp -s "$here/requirements.txt" "$stamp"; then
    echo "$venv is there already"
    return
  fi
  rm -rf "$venv"
  mkdir -p "$build"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install -q -r "$here/requirements.txt" ||
    "$venv/bin/python" -m pip install -q -r "$here/requirements.txt" \
      --extra-index-url "${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}"
  # PyPI's torchvision, torchaudio and torchcodec are CUDA builds: beside a CPU torch they fail to
  # import and take transformers and vLLM with them; absent, they are not missed.
  for module in torchvision torchaudio torchcodec; do
    "$venv/bin/python" -c "import $module" 2>/dev/null ||
      "$venv/bin/python" -m pip uninstall -qq -y "$module"
  done
  cp "$here/requirements.txt" "$stamp"
  echo "$venv is ready"
}
