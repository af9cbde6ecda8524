job "llm" {
  group "g" {
    count = 2
    task "vllm" {
      driver = "docker"
      config {
        image = "vllm/vllm-openai:v0.11.2"
        args = ["--model", "${MODEL}", "--gpu-memory-utilization", "0.85", "--port", "${NOMAD_PORT_http}"]
        shm_size = 8589934592
        runtime = "nvidia"
      }
      env { MODEL = "Qwen/Qwen3-8B" }
      resources {
        memory = 32768
        device "nvidia/gpu" {
          count = 2
          constraint {
            attribute = "${device.model}"
            value     = "NVIDIA L40S"
          }
        }
      }
    }
  }
}
