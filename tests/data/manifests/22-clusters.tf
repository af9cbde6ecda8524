resource "kubernetes_deployment_v1" "vllm" {
  metadata { name = "vllm" }
  spec {
    replicas = 2
    template {
      spec {
        node_selector = { "cloud.google.com/gke-accelerator" = "nvidia-h100-80gb" }
        container {
          name  = "vllm"
          image = "vllm/vllm-openai:v0.11.0"
          args  = ["--model=${var.model}", "--max-model-len=32768", "--tensor-parallel-size=8"]
          resources { limits = { "nvidia.com/gpu" = "8" } }
        }
      }
    }
  }
}
resource "helm_release" "stack" {
  name  = "stack"
  chart = "vllm-stack"
  values = [<<-EOT
    servingEngineSpec:
      modelSpec:
      - name: llama
        repository: vllm/vllm-openai
        tag: v0.10.2
        modelURL: meta-llama/Llama-3.1-8B-Instruct
        replicaCount: 1
        requestGPU: 1
        vllmConfig:
          maxModelLen: 8192
  EOT
  ]
}
resource "kubernetes_manifest" "isvc" {
  manifest = {
    apiVersion = "serving.kserve.io/v1beta1"
    kind       = "InferenceService"
    metadata   = { name = "qwen" }
    spec = { predictor = { model = {
      modelFormat = { name = "huggingface" }
      args = ["--model_name=qwen", "--model_id=Qwen/Qwen3-8B", "--max-model-len=4096"]
      resources = { limits = { "nvidia.com/gpu" = "1", memory = "24Gi" } }
    } } }
  }
}
resource "google_compute_instance" "gpu" {
  machine_type = "a3-highgpu-8g"
  metadata_startup_script = <<-EOF
    #!/bin/bash
    docker run -d --gpus all --ipc=host vllm/vllm-openai:v0.9.2 --model Qwen/Qwen3-32B --tensor-parallel-size 8
  EOF
}
