import argparse
from vllm import LLM, EngineArgs
from dataclasses import asdict
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", type=str, default="Qwen/Qwen3-8B")
    p.add_argument("--tp", "--tensor-parallel-size", type=int, default=2, dest="tensor_parallel_size")
    p.add_argument("--max-model-len", type=int, required=True)
    args = p.parse_args()
    llm = LLM(model=args.model, tensor_parallel_size=args.tensor_parallel_size, max_model_len=args.max_model_len,
              compilation_config={"cudagraph_capture_sizes": [1, 2, 4]}, enforce_eager=False,
              speculative_config={"method": "ngram", "num_speculative_tokens": 4})
main()
