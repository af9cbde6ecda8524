MODELS=(Qwen/Qwen3-8B)
for m in "${MODELS[@]}"; do
  CUDA_VISIBLE_DEVICES=0,1 vllm serve $m --tensor-parallel-size=2 --max-num-seqs 256 -q awq --no-enable-prefix-caching --hf-overrides '{"rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}}' --max-model-len 131072 &
done
wait
