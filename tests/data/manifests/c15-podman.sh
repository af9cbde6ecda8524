podman run -d --name vllm --device nvidia.com/gpu=all --security-opt=label=disable --shm-size=10.24gb \
  --userns=keep-id -e VLLM_NO_USAGE_STATS=1 -v ./rhaiis-cache:/opt/app-root/src/.cache:Z \
  registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.2.1 --model RedHatAI/Llama-3.2-1B-Instruct-FP8 --tensor-parallel-size 1
