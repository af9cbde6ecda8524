set -a; source .env; set +a
env VLLM_ATTENTION_BACKEND=FLASHINFER CUDA_VISIBLE_DEVICES=2,3 \
  uvx --from vllm==0.10.0 vllm serve "$MODEL_ID" --tensor-parallel-size 2 -O3 --compilation-config.cudagraph_mode=PIECEWISE \
  --swap-space=0 --disable-log-requests --max-model-len auto
