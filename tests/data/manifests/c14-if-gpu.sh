#!/bin/bash
usage() { echo "usage: $0 [-m model] [-t tp]"; }
MODEL=Qwen/Qwen3-14B
TP=1
EXTRA=()
while getopts "m:t:e" opt; do
  case $opt in
    m) MODEL=$OPTARG ;;
    t) TP=$OPTARG ;;
    e) EXTRA+=(--enforce-eager) ;;
  esac
done
ARGS=(serve "$MODEL" --tensor-parallel-size "$TP" --gpu-memory-utilization "${UTIL:-0.9}" "${EXTRA[@]}")
[[ -n "${MAX_LEN:-}" ]] && ARGS+=(--max-model-len "$MAX_LEN")
exec vllm "${ARGS[@]}" "$@"
