#!/usr/bin/env bash
# One arm of the serving comparison: starts a server, loads it with `edge-infer bench --url`, stops it,
# and prints the artifact.   serve_arm.sh edge-infer|llama-server MODEL CLIENTS SECONDS SLOTS [OPTION ...]
set -euo pipefail
engine=$1 model=$2 clients=$3 seconds=$4 slots=$5
shift 5
threads=${THREADS:-$(nproc)}
context=1024  # of one sequence; prompt and answer take 192
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
log=$(mktemp)

case $engine in
  edge-infer)
    edge-infer serve "$model" --port "$port" --threads "$threads" --max-num-seqs "$slots" \
      --max-model-len $context --kv-cache-memory "${KV_MEMORY:-2GiB}" --log-level warning --lazy-grammars "$@" \
      >"$log" 2>&1 &
    ;;
  llama-server)
    "$LLAMA_SERVER" -m "$model" --port "$port" -t "$threads" -tb "$threads" -np "$slots" \
      -c $((slots * context)) --no-webui "$@" >"$log" 2>&1 &
    ;;
  *)
    echo "serve_arm.sh: no engine $engine." >&2
    exit 2
    ;;
esac
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 600); do
  curl -sf "http://127.0.0.1:$port/health" >/dev/null && break
  kill -0 $server 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.1
done
edge-infer bench --url "http://127.0.0.1:$port" --pid $server --clients "$clients" --seconds "$seconds" \
  --prompt-tokens 128 --generate-tokens 64 --json
