#!/bin/bash
tmux new-session -d -s vllm "cd /srv && source .venv/bin/activate && CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen3-8B --port 8001 --max-model-len 8192"
screen -dmS emb bash -c 'vllm serve BAAI/bge-m3 --task embed --gpu-memory-utilization 0.2'
