import subprocess, sys
MODEL = "Qwen/Qwen3-8B"
def start(port, gpu):
    cmd = [sys.executable, "-m", "vllm.entrypoints.openai.api_server",
           "--model", MODEL, "--port", str(port), "--max-model-len", str(8 * 1024),
           "--gpu-memory-utilization", "0.9"]
    cmd.extend(["--dtype", "auto"])
    return subprocess.Popen(cmd, env={"CUDA_VISIBLE_DEVICES": str(gpu)})
if __name__ == "__main__":
    start(8000, 0)
