variable "model_id" { default = "Qwen/Qwen3-8B" }
variable "gpu_count" {
  type    = number
  default = 4
}
locals {
  engine_args = ["--max-model-len", "16384", "--tensor-parallel-size", tostring(var.gpu_count)]
}
resource "aws_ecs_task_definition" "llm" {
  family                   = "llm"
  requires_compatibilities = ["EC2"]
  container_definitions = jsonencode([{
    name      = "vllm"
    image     = "vllm/vllm-openai:v0.12.0"
    command   = concat(["--model", var.model_id], local.engine_args)
    memory    = 65536
    linuxParameters = { sharedMemorySize = 16384 }
    environment = [{ name = "VLLM_USE_V1", value = "1" }, { name = "HF_TOKEN", value = var.hf_token }]
    resourceRequirements = [{ type = "GPU", value = tostring(var.gpu_count) }]
  }])
}
resource "aws_launch_template" "gpu" {
  instance_type = "g6.12xlarge"
}
