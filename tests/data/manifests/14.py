import modal
vllm_image = (modal.Image.debian_slim(python_version="3.12")
    .uv_pip_install("vllm==0.10.2", "huggingface_hub[hf_transfer]").env({"HF_XET_HIGH_PERFORMANCE": "1", "VLLM_USE_V1": "1"}))
MODEL_NAME = "Qwen/Qwen3-30B-A3B-FP8"
N_GPU = 1
FAST_BOOT = True
app = modal.App("vllm")
@app.function(image=vllm_image, gpu=f"H100:{N_GPU}", scaledown_window=900)
@modal.web_server(port=8000)
def serve():
    import subprocess
    cmd = ["vllm", "serve", "--uvicorn-log-level=info", MODEL_NAME, "--served-model-name", MODEL_NAME, "llm", "--port", "8000"]
    cmd += ["--enforce-eager" if FAST_BOOT else "--no-enforce-eager"]
    cmd += ["--tensor-parallel-size", str(N_GPU)]
    subprocess.Popen(" ".join(cmd), shell=True)
