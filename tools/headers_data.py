"""Write the headers that checkpoints of catalogued models have, from transformers' own classes on the meta device.

    SCRATCH/python tools/headers_data.py > tests/data/headers.jsonl

Needs torch (CPU) and transformers, which the project does not. No weight is made: a model is built without memory, its
parameters are named as `save_pretrained` names them, and dtype and shape are written, a line a model.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

from kvcore import catalogue
from kvcore.model.headers import read_headers

MODELS = """
Qwen/Qwen2.5-7B-Instruct Qwen/Qwen3-32B Qwen/Qwen3-30B-A3B Qwen/Qwen1.5-MoE-A2.7B-Chat Qwen/Qwen3-Next-80B-A3B-Instruct
Qwen/Qwen3.5-9B Qwen/Qwen3-VL-8B-Instruct Qwen/Qwen2.5-VL-7B-Instruct Qwen/Qwen2-VL-7B-Instruct
meta-llama/Llama-3.1-8B-Instruct meta-llama/Llama-3.2-1B-Instruct meta-llama/Llama-4-Scout-17B-16E-Instruct
mistralai/Mistral-7B-v0.1 mistralai/Mixtral-8x7B-v0.1 mistralai/Mistral-Small-24B-Instruct-2501
google/gemma-2-9b google/gemma-3-12b-it google/gemma-7b microsoft/phi-2 microsoft/phi-4
microsoft/Phi-3.5-MoE-instruct microsoft/Phi-mini-MoE-instruct deepseek-ai/DeepSeek-V2-Lite deepseek-ai/DeepSeek-V3
zai-org/GLM-4.5-Air THUDM/GLM-4.1V-9B-Thinking allenai/OLMo-2-1124-7B allenai/Olmo-3-7B-Instruct
bigcode/starcoder2-7b bigscience/bloom tiiuae/falcon-7b-instruct tiiuae/falcon-40b tiiuae/falcon-mamba-7b
openai-community/gpt2 mosaicml/mpt-7b HuggingFaceTB/SmolLM3-3B ByteDance-Seed/Seed-OSS-36B-Instruct
stabilityai/stablelm-zephyr-3b togethercomputer/RedPajama-INCITE-7B-Base MiniMaxAI/MiniMax-M2
nvidia/Nemotron-H-56B-Base-8K ibm-granite/granite-3.3-8b-instruct
ibm-granite/granite-3.1-1b-a400m-instruct openai/gpt-oss-20b
databricks/dbrx-instruct llava-hf/llava-1.5-7b-hf
""".split()

DTYPES = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int64: "I64", torch.int32: "I32",
    torch.uint8: "U8", torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3", torch.bool: "BOOL",
}  # fmt: skip


def headers_of(model: str) -> dict[str, Any]:
    """The headers of the model's checkpoint, as if stored in 16 bits."""
    raw = dict(catalogue.find_model(model).config.raw)
    raw.pop("quantization_config", None)
    raw.pop("auto_map", None)
    kind = raw.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **raw)
    name = (raw.get("architectures") or [""])[0]
    auto = getattr(transformers, name, None)
    dtype = torch.float16 if str(raw.get("torch_dtype", raw.get("dtype"))) == "float16" else torch.bfloat16
    with torch.device("meta"):
        built = (
            auto._from_config(config, dtype=dtype)
            if auto
            else transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        )
    built.tie_weights()
    state, seen = {}, set()
    for key, tensor in built.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            state[key] = tensor.detach()
    state = revert_weight_conversion(built, state)
    return {
        key: {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape)} for key, tensor in state.items()
    }


def main() -> None:
    """Writes a line a model; those that cannot be built are named on the error stream."""
    for model in sys.argv[1:] or MODELS:
        try:
            headers = read_headers(headers_of(model))
        except Exception as error:
            print(model, type(error).__name__, str(error)[:300], file=sys.stderr)
            continue
        source = f"transformers {version('transformers')}, meta device"
        print(
            json.dumps({"model": model, "source": source, "headers": headers.raw}, separators=(",", ":")),
            flush=True,
        )


if __name__ == "__main__":
    main()
