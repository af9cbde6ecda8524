import bentoml, pydantic
ENGINE_CONFIG = {"model": "meta-llama/Llama-3.3-70B-Instruct", "max_model_len": 2048, "dtype": "half", "enable_prefix_caching": True}
@bentoml.service(name="x", resources={"gpu": 4, "gpu_type": "nvidia-h100-80gb"})
class VLLM:
    def __init__(self):
        from vllm import AsyncEngineArgs, AsyncLLMEngine
        args = AsyncEngineArgs(tensor_parallel_size=4, **ENGINE_CONFIG)
        self.engine = AsyncLLMEngine.from_engine_args(args)
