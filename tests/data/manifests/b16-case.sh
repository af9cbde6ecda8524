#!/usr/bin/env bash
set -euo pipefail
MODEL_SIZE=${1:-small}
GPUS=$(nvidia-smi -L | wc -l)
case "$MODEL_SIZE" in
  small) MODEL="Qwen/Qwen3-8B"; LEN=32768 ;;
  large) MODEL="Qwen/Qwen3-32B"; LEN=16384 ;;
  *) echo unknown; exit 1 ;;
esac
COMMON_ARGS="--gpu-memory-utilization 0.9 --trust-remote-code"
if [[ "${FP8:-0}" == "1" ]]; then COMMON_ARGS+=" --quantization fp8"; fi
nohup python3 -m vllm.entrypoints.openai.api_server --model "$MODEL" $COMMON_ARGS \
  --max-model-len "$LEN" --tensor-parallel-size "$GPUS" > log.txt 2>&1 &
curl -s localhost:8000/v1/models
