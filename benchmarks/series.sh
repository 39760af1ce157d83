#!/usr/bin/env bash
# Every comparison that docs/edge/results.md quotes, into benchmarks/results. Run it on a machine with
# nothing else to do; `make bench` does, after installing what it needs.
#   benchmarks/series.sh [STEP ...]     all of: decode depth prefill sequences levels memory demo serve
#                                       gap speculation start grammar
# edge-infer and its python are those of the PATH.   MODELS   where models are made (build/bench)
#   PASSES       passes of each comparison (default 3)  SECONDS_EACH   of each load on a server (120)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

models=${MODELS:-build/bench}
passes=${PASSES:-3}
seconds=${SECONDS_EACH:-120}
llama=${LLAMACPP_BUILD:-$PWD/baselines/llamacpp/build}
results=benchmarks/results
day=$(date -u +%F)
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(decode depth prefill sequences levels memory demo serve \
  gap speculation start grammar)
export EDGE_INFER_LLAMA_BENCH=$llama/bin/llama-bench
mkdir -p "$models" "$results"

say() { printf '\n== %s\n' "$*" >&2; }
out() { echo "$results/$day-$1.json"; }

# A random model of real shape, packed, and its GGUF twins where llama.cpp knows the architecture.
model() {
  [ -d "$models/$1" ] || edge-infer synth "$1" "$models/$1"
  [ -d "$models/$1-4bit" ] || edge-infer convert "$models/$1" "$models/$1-4bit"
}
twins() {
  model "$1"
  LLAMACPP_BUILD=$llama baselines/llamacpp/convert.sh "$models/$1" "$models" Q4_0 Q4_K_M >/dev/null
}
level() { [ -x "$llama/bin-$1/llama-bench" ] || ISA=$1 LLAMACPP_BUILD=$llama baselines/llamacpp/build.sh; }
against() {  # NAME MODEL TWIN OPTIONS...
  local name=$1 packed=$2 twin=$3
  shift 3
  say "$name"
  edge-infer compare "$packed" --peer-model "$twin" --passes "$passes" --output "$(out "$name")" "$@"
}

qwen=$models/qwen3-1.7b
for step in "${steps[@]}"; do
  case $step in
    decode)
      twins qwen3-1.7b
      against compare-qwen3-1.7b-q4_0 "$qwen-4bit" "$qwen-Q4_0.gguf"
      against compare-qwen3-1.7b-q4_k_m "$qwen-4bit" "$qwen-Q4_K_M.gguf"
      model spark-x2.5-1.7b
      edge-infer bench "$models/spark-x2.5-1.7b-4bit" --output "$(out bench-spark-x2.5-1.7b)"
      ;;
    depth)
      twins qwen3-1.7b
      for type in Q4_0 Q4_K_M; do
        against "compare-qwen3-1.7b-${type,,}-d2048" "$qwen-4bit" "$qwen-$type.gguf" \
          --context 2048 --prompt-tokens 0 --repeat 1
      done
      model qwen3-1.7b
      for kv in f16 int8; do
        edge-infer bench "$qwen-4bit" --context 8192 --prompt-tokens 0 --kv-cache-dtype $kv --starts 0 \
          --repeat 3 --output "$(out "bench-qwen3-1.7b-d8192-kv-$kv")"
      done
      ;;
    prefill)
      model qwen3-1.7b
      for tokens in 512 4096; do
        edge-infer bench "$qwen-4bit" --prompt-tokens $tokens --generate-tokens 0 --starts 0 --repeat 3 \
          --output "$(out bench-qwen3-1.7b-pp$tokens)"
      done
      ;;
    sequences)
      twins qwen3-1.7b
      against compare-qwen3-1.7b-q4_0-s8 "$qwen-4bit" "$qwen-Q4_0.gguf" --sequences 8 --repeat 1
      ;;
    levels)
      twins qwen3-1.7b
      for isa in avx512 avx2; do
        level $isa
        EDGE_INFER_ISA=$isa EDGE_INFER_LLAMA_BENCH=$llama/bin-$isa/llama-bench \
          against "compare-qwen3-1.7b-q4_0-$isa" "$qwen-4bit" "$qwen-Q4_0.gguf" --repeat 1
      done
      ;;
    memory)
      model qwen3-1.7b
      edge-infer init "$qwen-4bit" --context 2048 --output "$(out init-qwen3-1.7b)"
      ;;
    demo)
      gguf=$(python benchmarks/demo_gguf.py)
      against compare-gemma-3-270m "$gguf" "$gguf"
      [ -d "$models/gemma-3-270m-4bit" ] || edge-infer convert "$gguf" "$models/gemma-3-270m-4bit" --bits 4
      against compare-gemma-3-270m-4bit "$models/gemma-3-270m-4bit" "$gguf"
      ;;
    serve) benchmarks/serve.sh "$seconds" ;;
    gap | start)
      model qwen3-1.7b
      python benchmarks/serving.py "$step" "$(python benchmarks/demo_gguf.py)" \
        --output "$(out "serve-$step-gemma-3-270m")"
      python benchmarks/serving.py "$step" "$qwen-4bit" --output "$(out "serve-$step-qwen3-1.7b")"
      ;;
    speculation)
      python benchmarks/serving.py speculation "$(python benchmarks/demo_gguf.py)" --repeat 11 \
        --output "$(out serve-speculation-gemma-3-270m)"
      ;;
    grammar)
      python benchmarks/grammar_cost.py "$(python benchmarks/demo_gguf.py)" \
        --output "$(out grammar-cost-gemma-3-270m)"
      ;;
    *)
      echo "series.sh: no step $step." >&2
      exit 2
      ;;
  esac
done
