"""Links made by chance over every field that a link has: plans that fit, that do not, that the engine refuses."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlencode

from kvcore import catalogue
from kvcore.engines.vllm.versions import vllm_releases
from kvcore.flags import FLAGS, Flag, Kind, LinkRule
from kvcore.wire import link
from pages.ui.shared.parameters import PARAMETERS, decode_language, decode_page

MODELS = catalogue.model_ids()
CARDS = tuple(card.id for card in catalogue.load_accelerators())
COUNTS = ("1", "2", "7", "16", "256", "8192", "1048576")
LARGE = (*COUNTS, "1073741825", "2147483648")
GIB = ("0", "0.3", "1.5", "17.25", "61", "1000")
OWN_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
LONG_CONFIG = {**OWN_CONFIG, "ignored": [f"model.layers.{n}.mlp.gate" for n in range(300)]}

USUAL: Mapping[str, tuple[str, ...]] = {
    "tensor_parallel_size": ("2", "3", "4", "6", "8", "8", "16", "32"),
    "pipeline_parallel_size": ("2", "3"),
    "data_parallel_size": ("2", "8"),
    "decode_context_parallel_size": ("2", "8"),
    "prefill_context_parallel_size": ("2", "4"),
    "kv_offloading_size": ("64", "1000.5"),
    "engine_version": (*(str(version) for version in vllm_releases()), "0.19.1rc1.dev5"),
    "quantization": ("fp8", "bitsandbytes", "awq", "gptq_marlin", "gguf", "no_such_format", "<b>x</b>"),
    "gpu_memory_utilization": ("0.3", "0.75", "0.905", "0.9234567", "0.98"),
    "max_model_len": ("17", "255", "8192", "40960", "262144", "auto", "32k", "1.5K"),
    "max_num_seqs": COUNTS,
    "max_num_batched_tokens": LARGE,
    "block_size": COUNTS,
    "max_cudagraph_capture_size": ("7", "512"),
    "cudagraph_capture_sizes": ("1,2,4,8", "8,2,1", ",".join(map(str, range(1, 400, 8)))),
    "mamba_block_size": LARGE,
    "max_lora_rank": ("8", "64"),
    "hf_overrides": (
        '{"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}',
        '{"rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 40960}}',
    ),
    "additional_config": (
        '{"enable_flashcomm1":true,"weight_prefetch_config":{"enabled":true}}',
        '{"ascend_scheduler_config":{"enabled":true},"mega_moe_max_tokens":4096}',
    ),
    "cpu_offload_gb": ("0.5", "8"),
    "kv_cache_memory_bytes": ("10737418240", "10G"),
    "num_gpu_blocks_override": ("4096",),
    "limit_mm_per_prompt.image": ("1", "9"),
    "limit_mm_per_prompt.image.width": ("512",),
    "mm_processor_kwargs.max_pixels": ("262144", "1003520"),
    "surroundings.driver": ("580.159.03", "ROCm 7.2", "25.0.rc1"),
    "surroundings.taken_gib": ("0.6",),
    "env.PYTORCH_CUDA_ALLOC_CONF": ("expandable_segments:True",),
    "env.VLLM_USE_FLASHINFER_SAMPLER": ("0", "1"),
    "env.VLLM_USE_V1": ("0", "1"),
    "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN": ("1",),
    "env.NCCL_DEBUG": ("*[x](https://example.org)*",),
    "accelerator.memory_gib": ("23.7", "79.1"),
    "checkpoint.total_size": ("16000000000",),
    "checkpoint.total_parameters": ("7000000000",),
    **{name: GIB for name in FLAGS if name.startswith("measured.") and name.endswith("_gib")},
    "measured.batched_tokens": ("2048",),
}
"""Values of the middle of a range, and what an engine refuses."""
APART = ("model", "accelerator.vendor", "accelerator.name", "accelerator.interconnect")
"""Drawn together with others, or never alone."""


def values_of(flag: Flag) -> tuple[str, ...]:
    """Values that a link may have for a field: all that it may be, the ends of its range, usual ones."""
    usual = USUAL.get(flag.name, ())
    if flag.kind is Kind.CHOICE:
        return flag.choices
    if flag.kind is Kind.BOOLEAN:
        return ("true", "false")
    if flag.kind in (Kind.INTEGER, Kind.NUMBER):
        return (*(f"{end:.12g}" for end in flag.bounds), *usual)
    return ("0", *usual) if flag.kind is Kind.COUNT else usual


FIELDS: Mapping[str, tuple[str, ...]] = {
    **{
        name: values
        for name, flag in FLAGS.items()
        if flag.link is not LinkRule.NEVER
        and flag.parent != "speculative_config"
        and name not in APART
        and (values := values_of(flag))
    },
    **{name: values for name, values in USUAL.items() if name.startswith("env.")},
}
"""Values that a link may have for each field of the registry."""

DRAFTS: tuple[Mapping[str, str], ...] = (
    {"speculative_config.method": "ngram", "speculative_config.num_speculative_tokens": "4"},
    {"speculative_config.method": "eagle3", "speculative_config.num_speculative_tokens": "2",
     "speculative_config.config": json.dumps(OWN_CONFIG)},
    {"speculative_config.method": "mtp", "speculative_config.num_speculative_tokens": "1024"},
)  # fmt: skip

PAGES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "plan": {},
    "explore": {
        "view": ("cards", "models"),
        "wanted": ("1", "37", "1000000"),
        "gpus": ("1", "2", "16"),
        "vendors": ("amd", "huawei,nvidia"),
        "memory": ("up-to-24", "49-96,above-96"),
        "sort": ("requests", "per-gpu"),
        "failing": ("true",),
        "search": ("qwen", "[x](y)"),
    },
    "compare": {
        "vary": ("accelerator", "block_size", "max_model_len", "split", "quantization"),
        "cards": ("L4-24GB", "L4-24GB,H20-96GB"),
    },
    "workload": {
        "lengths": ("800:1150:1200,120:380:512,920:1530:1712,1312:1662:1712",),
        "limit": ("1", "1024", "65536"),
        "arrivals": ("0.001", "50", "100000"),
        "goal": ("0123abcd_95_2_0.05_3_2_4_3_1.5_0.4_0.03_0.25_150_0",),
        "replayed": ("0123abcd_1_240_1_6000_0.25_3.5_0_0_0_1_0_16_0_0",),
        "first_token": ("0", "3600"),
        "speed": ("0.1", "15", "10000"),
        "load_prompt": ("1", "1200", "1073741824"),
    },
    "check": {},
    "learn": {
        "step": (*"12345678", "12", "17"),
        "answers": ("true",),
        "lesson": ("a", "e", "g", "h"),
        "path": ("20", "45", "90"),
        "reveal": ("1",),
        "seed": ("3", "999999"),
        "score": ("BBgAAAAA", "_-0zZ"),
    },
    "reference": {
        "check": ("pre-run", "files"),
        "section": ("stories", "going-live", "catalogue", "glossary"),
        "ticked": ("history,alerts", "load-test"),
        "alert_kv": ("1", "80", "99"),
        "alert_waiting": ("1", "1000000"),
        "alert_first": ("0.01", "2560"),
        "alert_seconds": ("0.3", "45", "7680"),
        "story": ("post-mortem", "ascend-tuning", "vllm-parameters"),
        "story_step": ("2", "5", "999"),
    },
    "accuracy": {},
}
SHARES = {
    "plan": 8,
    "explore": 2,
    "compare": 3,
    "workload": 3,
    "check": 2,
    "learn": 3,
    "reference": 1,
    "accuracy": 1,
}
"""Drawings of each page; a sweep of Explore costs as much as ten plans."""


class Example(NamedTuple):
    """A page, and a query string for it."""

    page: str
    params: dict[str, str]


def examples(number: int, seed: int) -> Iterator[Example]:
    """`number` links that are read without a repair, the same ones for the same seed."""
    draw = random.Random(seed)
    found = 0
    while found < number:
        (page,) = draw.choices(list(SHARES), list(SHARES.values()))
        params = scenario_params(draw)
        if draw.random() < 0.15:
            params["pin.1"] = urlencode(scenario_params(draw))
        for name, values in PAGES[page].items():
            if draw.random() < 0.5:
                params[name] = draw.choice(values)
        if draw.random() < 0.3:
            params["lang"] = draw.choice(("en", "zh", "zh-CN", "zh_Hans", "en-US"))
        if is_read(params):
            found += 1
            yield Example(page, params)


def scenario_params(draw: random.Random) -> dict[str, str]:
    """A scenario: a model, a card, and up to seven other fields."""
    params = {"model": draw.choice(MODELS), "accelerator": draw.choice(CARDS)}
    if draw.random() < 0.1:
        own = draw.choice((OWN_CONFIG, LONG_CONFIG))
        params |= {"model": "config.json", "config": json.dumps(own)}
    if draw.random() < 0.05:
        del params["accelerator"]
        params |= {
            "accelerator.name": "Prototype 9",
            "accelerator.vendor": "nvidia",
            "accelerator.memory_gib": "30.5",
        }
    if draw.random() < 0.1:
        params |= draw.choice(DRAFTS)
    for name in draw.sample(list(FIELDS), draw.randint(0, 7)):
        params[name] = draw.choice(FIELDS[name])
    if draw.random() < 0.5:
        params["tensor_parallel_size"] = draw.choice(("2", "4", "8"))
    return params


def range_examples(number: int, seed: int) -> Iterator[Example]:
    """`number` links whose numbers lie anywhere between the bounds of the request, the bounds themselves among them."""
    draw = random.Random(seed)
    numbers = [
        flag
        for flag in FLAGS.values()
        if flag.kind in (Kind.INTEGER, Kind.NUMBER) and flag.link is not LinkRule.NEVER
    ]
    pages = [page for page in SHARES if page != "explore"]
    found = 0
    while found < number:
        params = {"model": draw.choice(MODELS), "accelerator": draw.choice(CARDS)}
        for flag in draw.sample(numbers, draw.randint(1, 6)):
            params[flag.name] = number_of(flag, draw)
            if flag.parent == "speculative_config":
                params["speculative_config.method"] = "ngram"
        if is_read(params):
            found += 1
            yield Example("plan" if draw.random() < 0.6 else draw.choice(pages), params)


def number_of(flag: Flag, draw: random.Random) -> str:
    """One of the two bounds of a field, or a number of any size between them."""
    low, high = flag.bounds
    if draw.random() < 0.4:
        value = draw.choice((low, high))
    else:
        value = draw.choice((low, max(low, 0))) + (high - low) ** draw.random()
    value = min(max(value, low), high)
    return str(round(value)) if flag.kind is Kind.INTEGER else repr(float(value))


def is_read(params: Mapping[str, str]) -> bool:
    """Whether nothing in a link needs a repair."""
    unknown_names = (
        *link.decode(params, PARAMETERS).repairs,
        *decode_page(params).repairs,
        *decode_language(params)[1],
    )
    return not unknown_names and not any(pin.repairs for pin in link.decode_pins(params, PARAMETERS))
