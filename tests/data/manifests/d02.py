import modal, os
GPU_CONFIG = modal.gpu.A100(count=2, size="80GB")
MODEL_DIR = "/model"
MODEL_NAME = "meta-llama/Meta-Llama-3-70B-Instruct"
image = modal.Image.from_registry("nvidia/cuda:12.1.1-devel-ubuntu22.04", add_python="3.11").pip_install("vllm==0.6.3post1", "torch==2.4.0")
app = modal.App("x", image=image)
@app.cls(gpu=GPU_CONFIG, timeout=600)
class Model:
    @modal.enter()
    def load(self):
        from vllm import LLM
        self.llm = LLM(MODEL_NAME, tensor_parallel_size=GPU_CONFIG.count, enforce_eager=True, gpu_memory_utilization=0.90, max_model_len=4096)
