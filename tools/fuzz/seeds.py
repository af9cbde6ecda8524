"""First inputs of each target: real configs, requests, links, logs and commands of this repository."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from kvcore import catalogue
from kvcore.flags import FLAGS
from kvcore.scenario import CudagraphMode

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / "tests" / "data" / "fuzz"
"""Inputs that once found something (`findings`), and the smallest that reach every line (`corpus`), by target."""
_SEED: Final = 7

_REQUEST_LOGS: Final = (
    b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}\n{"prompt": "hello", "max_tokens": 7}\n',
    b'{"input_lens": [900, 12], "output_lens": [80, 1]}\n',
    b'[{"request": {"body": {"messages": [{"content": [{"text": "a"}]}]}}, "usage": {"prompt_tokens": 9}}]',
    b"prompt_tokens,completion_tokens,max_tokens\n900,80,1024\n12,,\n",
    "输入,输出\n900;80\n".encode("gb18030"),
    b"time\tinput_tokens\toutput_tokens\n1\t900\t80\n",
    b"INFO 07-01 10:00:00 [logger.py:43] Received request cmpl-1: prompt: 'a', params: SamplingParams(n=1, "
    b"max_tokens=16), prompt_token_ids: [1, 2, 3], lora_request: None.\nINFO 07-01 Added request cmpl-1.\n",
)
_METRICS: Final = (
    b'# TYPE vllm:request_prompt_tokens histogram\nvllm:request_prompt_tokens_bucket{le="10",model="m"} 3\n'
    b'vllm:request_prompt_tokens_bucket{le="+Inf",model="m"} 9\nvllm:request_prompt_tokens_sum{model="m"} 700\n'
    b'vllm:request_prompt_tokens_count{model="m"} 9\nvllm:request_generation_tokens_bucket{le="1.0"} 1\n'
    b'vllm:request_generation_tokens_bucket{le="+Inf"} 2\n',
    b'vllm:request_prompt_tokens_bucket{le="1"} 1e3 1700000000\nvllm:request_prompt_tokens_bucket{le="+Inf"} NaN\n',
)
_TRACES: Final = (
    b'{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}\n'
    b'{"timestamp": 900, "input_length": 700, "output_length": 9, "hash_ids": [1, 3]}\n',
    b'{"timestamp": 3, "prompt": [["system", 20], ["a", 5]], "completion_tokens": 9}\n',
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.03,110,27\n",
)
_BENCHMARKS: Final = (
    json.dumps(
        {"start_times": [at * 0.3 for at in range(8)], "input_lens": [1000] * 8, "ttfts": [0.05] * 8,
         "itls": [[0.01, 0.011, 0.012, 0.02, 0.01, 0.01]] * 8}
    ).encode(),
)  # fmt: skip
_CASE: Final = {
    "id": "one", "engine_version": "0.32.0", "num_blocks": 40, "block_size": 16, "max_num_seqs": 4,
    "max_num_batched_tokens": 64, "max_model_len": 256, "enable_prefix_caching": True, "async_scheduling": True,
    "watermark": 0.01, "long_prefill_token_threshold": 0,
    "requests": [{"id": "a", "arrival_step": 0, "prompt": [["s", 60], ["a", 20]], "answer_tokens": 9},
                 {"id": "b", "arrival_step": 2, "prompt": [["s", 60], ["b", 70]], "answer_tokens": 30}],
}  # fmt: skip
_CASES: Final = tuple(
    json.dumps({**_CASE, **changes}).encode()
    for changes in (
        {},
        {"kv_cache_groups": [{"kind": "full_attention", "block_size": 16},
                             {"kind": "sliding_window", "block_size": 16, "sliding_window": 40}]},
        {"kv_cache_groups": [{"kind": "full_attention", "block_size": 32},
                             {"kind": "mamba", "block_size": 32, "mamba_cache_mode": "align",
                              "num_checkpoint_blocks": 1}], "prefix_cache_retention_interval": 64},
        {"kv_cache_groups": [{"kind": "chunked_local_attention", "block_size": 16, "attention_chunk_size": 32}],
         "async_scheduling": False},
    )
)  # fmt: skip
_DEPLOYED: Final = (
    b'A=${A:-x}\nB=(--model "$A")\nif [ -n "$C" ]; then B+=(-tp $((2 * 2))); fi\nexec vllm serve "${B[@]}" $D\n',
    b"from vllm import LLM\nimport os\nLLM(model=os.getenv('M', 'a/b'), **{'max_model_len': 8 * 1024})\n",
    b'locals {\n a = ["a/b"]\n}\n'
    b'module "m" {\n image = "vllm/vllm-openai:v0.19.0"\n args = concat(local.a, ["-tp", "2"])\n}\n',
    b"[Service]\nEnvironment=A=b\n"
    b"ExecStart=/usr/bin/docker run --gpus all \\\n vllm/vllm-openai:v0.19.0 --model ${A}\n",
    b"apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: '{{ .Values.i }}'\n"
    b"    args: [--model=$(M)]\n    env: [{name: M, value: a}]\n",
)
_COMMANDS: Final = (
    b"Qwen/Qwen3-32B --tensor-parallel-size 2 --max-model-len 32k --kv-cache-dtype fp8",
    b'meta-llama/Llama-3.1-8B -tp=2 -O3 --compilation-config \'{"cudagraph_mode": "FULL"}\'',
    b'm --limit-mm-per-prompt.image 2 --speculative-config \'{"method": "ngram"}\' --max-num-seqs=64',
    b"m -tp 2 --mm-processor-kwargs '{\"max_pixels\": 262144}' --mm-encoder-tp-mode data --skip-mm-profiling "
    b'-cc \'{"pass_config": {"fuse_allreduce_rms": false}}\' --disable-custom-all-reduce',
    b"docker run --rm --gpus all -e VLLM_USE_V1=0 vllm/vllm-openai:v0.9.0 --model Qwen/Qwen3-8B",
    b"services:\n  llm:\n    image: vllm/vllm-openai:v0.19.0\n    command:\n      - --model=m\n      - -tp 2\n",
    b"containers:\n- image: quay.io/ascend/vllm-ascend:v0.11.0rc1\n  env:\n  - name: ASCEND_TOTAL_MEMORY_GB\n"
    b"    value: x4\n  args: [vllm, serve, m, --max-num-batched-tokens, '8192']\n",
    b"model: Qwen/Qwen3-32B\nmax-model-len: 8192\ncudagraph-capture-sizes: [1, 2, 4]\n",
    b"ASCEND_TOTAL_MEMORY_GB=64 vLLM_MODEL_MEMORY_USE_GB=50 vllm-mindspore serve Qwen/Qwen3-8B --block-size 128",
)
_SEARCHES: Final = (
    b"llama 3.3 70b",
    b"qwen3 235b",
    "gpt oss 模型".encode(),
    b"h200 141",
    b"nvidia a100-40GB",
    b"910b4",
)
_FIELDS: Final[tuple[dict[str, Any], ...]] = (
    {"engine": "vllm-mindspore", "env": {"ASCEND_TOTAL_MEMORY_GB": 64, "vLLM_MODEL_MEMORY_USE_GB": 50}},
    {"checkpoint": {"total_size": 65524246528}, "accelerator": {"memory_gib": 79.19, "vendor": "nvidia"}},
    {"measured": {"weights_gib": 15.2, "peak_activation_gib": 1.1, "non_torch_gib": -0.1}},
    {"measured": {"weights_gib": 15.2, "fitted": ["weights_gib"]}, "max_num_batched_tokens": 1500000000},
    {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3, "model": "a/EAGLE3-b"}},
    {"enable_lora": True, "max_loras": 2, "max_lora_rank": 64, "fully_sharded_loras": True},
    {"limit_mm_per_prompt": {"image": {"count": 2, "width": 512}, "video": {"num_frames": 32}}},
    {"limit_mm_per_prompt": {"image": 2}, "language_model_only": True, "cpu_offload_gb": 4},
    {
        "surroundings": {
            "link": "pcie",
            "installation": "pip",
            "host": "wsl",
            "driver": "580.95",
            "taken_gib": 0.6,
        }
    },
    {"mm_processor_kwargs": {"max_pixels": 262144, "fps": 1.5}, "skip_mm_profiling": True},
    {"mm_encoder_tp_mode": "data", "fuse_allreduce_rms": False, "env": {"NCCL_CUMEM_ENABLE": 0}},
    {"cudagraph_capture_sizes": [1, 2, 4], "cudagraph_mode": CudagraphMode.FULL, "enforce_eager": False},
    {"mamba_cache_mode": "align", "enable_prefix_caching": True, "model": "Qwen/Qwen3.5-4B"},
    {"measured": {"available_kv_gib": 8.5}, "accelerator": None},
    {
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
        "model": "deepseek-ai/DeepSeek-V3",
    },
    {"num_gpu_blocks_override": 1000, "kv_cache_memory_bytes": 1 << 33, "block_size": 32},
    {"decode_context_parallel_size": 2, "data_parallel_size": 4, "enable_expert_parallel": True},
    {"hf_overrides": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "max_model_len": 131072},
    {"runner": "pooling", "dtype": "float16", "max_cudagraph_capture_size": 64, "max_num_seqs": 4},
)
"""Fields of the contract that the plain requests do not have."""


def seeds_of(target: str) -> list[bytes]:
    """The inputs that `target` begins with, the kept ones among them, in one order."""
    made = {
        "config": _configs,
        "contract": _requests,
        "request": _requests,
        "link": _links,
        "start_up_log": _logs,
        "request_log": lambda: iter(_REQUEST_LOGS),
        "command": lambda: iter(_COMMANDS),
        "deployed": lambda: iter((*_COMMANDS, *_DEPLOYED)),
        "search": lambda: iter(_SEARCHES),
        "metrics": lambda: iter(_METRICS),
        "trace": lambda: iter(_TRACES),
        "benchmark": lambda: iter(_BENCHMARKS),
        "replay_case": lambda: iter(_CASES),
        **{kind: partial(_packed, kind) for kind in ("gzip", "zstd", "parquet")},
    }[target]()
    return list(dict.fromkeys([*made, *kept(target)]))


def _packed(kind: str) -> Iterator[bytes]:
    from tools.fuzz.packing import packed_seeds  # pyarrow and zstandard, which nothing else here needs

    yield from packed_seeds(kind, _REQUEST_LOGS)


def kept(target: str) -> list[bytes]:
    """The saved corpus and findings of `target`."""
    folders = [KEPT / kind / target for kind in ("corpus", "findings")]
    return [path.read_bytes() for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]


def configs() -> list[dict[str, Any]]:
    """Every config.json of the catalogue and of the tests' data."""
    found = [dict(entry.config.raw) for entry in catalogue.load_models()]
    for name in ("decoders", "special_models", "drafts_and_adapters"):
        for line in (ROOT / "tests" / "data" / f"{name}.jsonl").read_text("utf-8").splitlines():
            config = json.loads(line).get("config")
            if isinstance(config, dict):
                found.append(config)
    return found


def _configs() -> Iterator[bytes]:
    seen = set()
    for config in configs():
        layers = config.get("text_config", config).get("layer_types")
        kind = (str(config.get("architectures")), str(config.get("quantization_config", {}).get("quant_method")),
                type(layers).__name__)  # fmt: skip
        if kind not in seen:
            seen.add(kind)
            yield json.dumps(config).encode()


def requests() -> list[dict[str, Any]]:
    """Requests that together use every field."""
    chance = random.Random(_SEED)
    cards = [card.id for card in catalogue.load_accelerators()]
    made = [
        {
            "id": "a",
            "model": model,
            "accelerator": chance.choice(cards),
            "engine_version": chance.choice(("0.8.5", "0.11.2.dev278+g55c6a5c", "0.19.0", "0.20.0rc1", None)),
            "tensor_parallel_size": chance.choice((1, 2, 4, 8)),
            "pipeline_parallel_size": chance.choice((1, 1, 2)),
            "max_model_len": chance.choice((8192, "auto", None, 131072)),
            "kv_cache_dtype": chance.choice(FLAGS["kv_cache_dtype"].choices),
            "quantization": chance.choice((None, None, "fp8", "awq")),
        }
        for model in chance.sample(catalogue.model_ids(), 60)
    ]
    return [*(plain | fields for plain, fields in zip(made, _FIELDS, strict=False)), *made]


def _requests() -> Iterator[bytes]:
    for request in requests():
        yield json.dumps(request).encode()


def _links() -> Iterator[bytes]:
    for request in requests():
        flat: dict[str, Any] = {}
        for name, value in request.items():
            parts = value.items() if isinstance(value, dict) else ()
            flat |= {f"{name}.{part}": inner for part, inner in parts} if parts else {name: value}
        flat.pop("id")
        texts = {name: _link_text(value) for name, value in flat.items() if value is not None}
        yield urlencode(texts).encode()


def _link_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _logs() -> Iterator[bytes]:
    for path in sorted((ROOT / "tests" / "data" / "logs").glob("*.log")):
        yield path.read_bytes()[:16384]
