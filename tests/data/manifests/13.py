import os
os.environ["VLLM_USE_V1"] = "1"
from vllm import LLM, SamplingParams
MODEL = os.getenv("MODEL", "Qwen/Qwen2.5-VL-7B-Instruct")
cfg = dict(dtype="bfloat16", max_model_len=1 << 13, limit_mm_per_prompt={"image": 2})
def main(tp: int = 2):
    llm = LLM(MODEL, tensor_parallel_size=tp, gpu_memory_utilization=0.92, **cfg)
    # llm = LLM("other/model", tensor_parallel_size=8)
if __name__ == "__main__":
    main()
