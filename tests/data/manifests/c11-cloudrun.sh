gcloud run deploy vllm --image vllm/vllm-openai:v0.8.5 --gpu 1 --gpu-type nvidia-l4 --memory 32Gi --cpu 8 \
  --args="--model=google/gemma-3-4b-it,--max-model-len=8192,--gpu-memory-utilization=0.95"
