#!/usr/bin/env bash
# The server beside llama-server, as a grid: both arms in every pass, in turn.
#   serve.sh [SECONDS of each number of clients (120)]     MODELS, LLAMACPP_BUILD and PASSES as in
#   series.sh, as RESULTS, where the artifacts go; ONLY=demo or ONLY=qwen for one of the two models;
#   BUSY: how busy the CPUs may be before it begins (0.1; 1 to try it out beside other work)
# llama-server runs with its defaults (weights repacked, flash attention auto, one KV cache a slot, prompt
# cache), and again as lean as it gets: no repacking, no prompt cache, no checkpoints of the context.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-120}
models=${MODELS:-build/bench}
export LLAMA_SERVER=${LLAMACPP_BUILD:-$PWD/baselines/llamacpp/build}/bin/llama-server
only=${ONLY:-demo qwen}
results=${RESULTS:-benchmarks/results}
mkdir -p "$models" "$results"
tag=$(python -m edge_infer.harness.machine_tag)
source benchmarks/new_name.sh

arm() {  # NAME ENGINE MODEL CLIENTS SLOTS OPTIONS...
  local name=$1
  shift
  cat <<YAML
  - name: $name
    command: benchmarks/serve_arm.sh $1 $2 $3 $seconds ${*:4}
    model: $2
    no_probe: the arms are two programs, not two settings of one
YAML
}

metrics() {  # CLIENTS...
  local n run
  for n in "$@"; do
    run="arms[?load.clients==\`$n\`] | [0]"
    cat <<YAML
  - {name: throughput.$n, unit: tok/s, better: higher, json: "$run.metrics[?name=='throughput'] | [0].median"}
  - {name: first_token.p50.$n, unit: s, better: lower, json: "$run.load.time_to_first_token.p50"}
  - {name: first_token.p99.$n, unit: s, better: lower, json: "$run.load.time_to_first_token.p99"}
  - {name: inter_token.p50.$n, unit: s, better: lower, json: "$run.load.inter_token.p50"}
  - {name: inter_token.p99.$n, unit: s, better: lower, json: "$run.load.inter_token.p99"}
  - {name: server_anonymous.$n, unit: bytes, better: lower, json: "$run.memory.peak_anonymous"}
  - {name: server_file_backed.$n, unit: bytes, better: lower, json: "$run.memory.peak_file_backed"}
YAML
  done
}

grid() {  # NAME OURS THEIRS SLOTS CLIENTS...
  local name=$1 ours=$2 theirs=$3 slots=$4
  shift 4
  local clients spec
  clients=$(IFS=,; echo "$*")
  spec=$models/$name.yaml
  {
    echo "name: $name"
    echo "passes: ${PASSES:-3}"
    echo "warmup: 0"
    echo "baseline: llama-server"
    echo "preflight: {busy: ${BUSY:-0.1}}"
    echo "arms:"
    arm edge-infer edge-infer "$ours" "$clients" "$slots"
    arm llama-server llama-server "$theirs" "$clients" "$slots"
    arm llama-server-lean llama-server "$theirs" "$clients" "$slots" \
      --no-repack --cache-ram 0 --ctx-checkpoints 0
    echo "metrics:"
    metrics "$@"
  } >"$spec"
  edge-infer grid "$spec" --wait 60 --output "$(new_name "$results/$(date -u +%F)-$name-$tag")"
}

for one in $only; do
  case $one in
    demo)
      gguf=$(python benchmarks/demo_gguf.py)
      grid serve-gemma-3-270m "$gguf" "$gguf" 16 1 4 16 64
      ;;
    qwen) grid serve-qwen3-1.7b "$models/qwen3-1.7b-4bit" "$models/qwen3-1.7b-Q4_0.gguf" 8 8 ;;
  esac
done
