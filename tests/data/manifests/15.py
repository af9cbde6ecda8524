from vllm.engine.arg_utils import AsyncEngineArgs
from vllm import AsyncLLMEngine
class Predictor:
    def setup(self):
        args = AsyncEngineArgs(
            model="./weights/Llama-3.1-8B-Instruct",
            tensor_parallel_size=max(1, self.count()),
            max_num_seqs=64,
            kv_cache_dtype="fp8_e4m3",
            enable_prefix_caching=False,
        )
        self.engine = AsyncLLMEngine.from_engine_args(args)
