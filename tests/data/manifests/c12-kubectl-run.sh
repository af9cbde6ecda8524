cat <<EOF | kubectl apply -f -
apiVersion: v1
kind: Pod
metadata: {name: here}
spec:
  containers:
  - name: v
    image: vllm/vllm-openai:v0.9.2
    args: ["--model", "${MODEL:-Qwen/Qwen3-8B}", "--max-model-len", "4096"]
    resources: {limits: {nvidia.com/gpu: 1}}
EOF
helm upgrade --install x oci://reg/chart --set image.tag=v1
