"""Hostile input: links, configs, logs and commands, each made to cost much or to break something.

`CODES` says how each is answered. tests/test_hostile_inputs.py reads them in this process and counts the CPU time,
tests/test_live_hostile.py sends them to a live server on which somebody else works.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode

from kvcore import catalogue
from kvcore.base.untrusted import pack
from kvcore.model.config import MAX_LAYERS

MODEL: Final = "Qwen/Qwen3-32B"
CARD: Final = {"model": MODEL, "accelerator": "H100-80GB", "tensor_parallel_size": "2"}
DIGITS: Final = "9" * 400
DEEPEST: Final = MAX_LAYERS
"""Layers."""
PLAIN: Final = dict(catalogue.find_model(MODEL).config.raw)


def config(**changed: Any) -> str:
    """A config.json with some values of a stranger's."""
    return json.dumps({**PLAIN, **changed})


def ignoring(patterns: list[str], layers: int = 64) -> str:
    """A quantized checkpoint that says by patterns or names what of it is not quantized."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
    group = {"targets": ["Linear"], "weights": weights}
    scheme = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": group}}
    return config(num_hidden_layers=layers, quantization_config={**scheme, "ignore": patterns})


def stars(count: int) -> list[str]:
    """Patterns that a backtracking engine walks for the fifth power of a name's length."""
    return [f"re:.*.*.*.*x{number}" for number in range(count)]


PATTERNS: Final = {
    "a pattern that backtracks": ignoring([r"re:(?x)([\w.]+) +!"]),
    "a pattern that backtracks, without a flag": ignoring([r"re:([\w.]+)+!"]),
    "twenty patterns that backtrack": ignoring([rf"re:(?x)([\w.]+) +{number}!" for number in range(20)]),
    "twenty patterns of stars": ignoring(stars(20)),
    "200 patterns of stars": ignoring(stars(200)),
    "twenty patterns of stars on the deepest model": ignoring(stars(20), DEEPEST),
    "1,000 names on the deepest model": ignoring([f"model.layers.{n}.x" for n in range(1000)], DEEPEST),
}
CONFIGS: Final = {
    **PATTERNS,
    "the deepest model": config(num_hidden_layers=DEEPEST),
    "the deepest model, layer by layer": config(
        num_hidden_layers=DEEPEST,
        use_sliding_window=True,
        sliding_window=4096,
        layer_types=["full_attention", "sliding_attention"] * (DEEPEST // 2),
    ),
    "an integer of 400 digits": config(num_hidden_layers=0).replace(' 0,', f" {DIGITS},", 1),
    "an integer of 5,000 digits": config(num_hidden_layers=0).replace(' 0,', f" {'9' * 5000},", 1),
    "an unknown kind of layer": config(
        model_type="gemma3_text",
        architectures=["Gemma3ForCausalLM"],
        sliding_window=512,
        layer_types=["full_attention", "sideways_attention"] * 32,
    ),
    "the largest sizes": config(
        hidden_size=2**40, intermediate_size=2**40, vocab_size=2**40, num_attention_heads=2**40
    ),
    "100,000 brackets": "[" * 100_000,
    "100,000 objects": '{"a":' * 100_000,
    "no numbers": config(hidden_size=float("inf"), vocab_size=float("nan")),
}  # fmt: skip
"""Name -> a config.json that a link carries as well."""
LONG_CONFIGS: Final = {
    "2 MB of architectures": config(architectures=[f"A{number}ForCausalLM" for number in range(90_000)]),
    "2 MB of keys": config(**{f"key_{number}": number for number in range(100_000)}),
    "8.5 MB in one text": config(comment="x" * 8_500_000),
    "100,000 kinds of layers": config(layer_types=["full_attention"] * 100_000),
}
LINKS: Final = {
    **{name: {**CARD, "model": "a/b", "config.z": pack(text)} for name, text in CONFIGS.items()},
    "pins with patterns": CARD
    | {f"pin.{n}": urlencode({**CARD, "model": "a/b", "config.z": pack(ignoring(stars(20)))}) for n in range(1, 5)},
    "numbers of 400 digits": CARD
    | dict.fromkeys(
        ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len", "max_num_seqs",
         "block_size", "gpu_memory_utilization", "max_num_batched_tokens", "accelerator.memory_gib",
         "measured.weights_gib", "cudagraph_capture_sizes", "max_cudagraph_capture_size", "lengths"),
        DIGITS,
    ),
    "graphs up to 2,147,483,648": CARD
    | dict.fromkeys(("max_num_batched_tokens", "max_cudagraph_capture_size"), str(1 << 31)),
    "20,000 graphs": CARD | {"cudagraph_capture_sizes": ",".join(map(str, range(1, 20_001)))},
    "256 stages on 65,536 replicas": CARD | {"pipeline_parallel_size": "256", "data_parallel_size": "65536"},
    "900 unknown names": CARD | {f"n{number}": "x" for number in range(900)},
    "500,000 characters": CARD | {"measured.weights_gib": "1" * 500_000},
    "a config that unpacks to too much": CARD | {"model": "a/b", "config.z": pack('{"a": "' + "0" * (1 << 20) + '"}')},
    "halves of characters": CARD | {"model": "\udc80\udcff", "lang": "\udc80"},
}  # fmt: skip
"""Name -> parameters of a link."""
COMMANDS: Final = {
    "docker run, 200 KB of dashes": "docker run --" + "- --" * 50_000,
    "docker run, 14,000 times": "docker run ---\n" * 14_000,
    "docker run, flags and no image": ("docker run " + "--name x " * 100 + "\n") * 200,
    "a size that is no number": "ASCEND_TOTAL_MEMORY_GB=x4 vllm-mindspore serve Qwen/Qwen3-32B",
    "flags of 400 digits": f"vllm serve Qwen/Qwen3-32B --max-model-len {DIGITS} --tensor-parallel-size {DIGITS}",
    "200 KB of continued lines": "vllm serve Qwen/Qwen3-32B \\\n" * 7_000,
    "200 KB of quotes": "vllm serve '" + "'\"" * 100_000,
    "one flag of 200 KB": "vllm serve " + "-" * 200_000,
    "33,000 flags": "vllm serve Qwen/Qwen3-32B " + "--a=b " * 33_000,
    "YAML 400 deep": "services:\n" + "".join(f"{' ' * depth}a{depth}:\n" for depth in range(400)),
}
"""Name -> a start-up log or command, pasted."""
PENDING: Final = b"".join(
    b"INFO 10-05 18:31:40 [logger.py:43] Received request cmpl-%08x: prompt: 'x', params: SamplingParams(n=1, "
    b"max_tokens=16), prompt_token_ids: [1, 2, 3], lora_request: None.\n" % number
    for number in range(30_000)
)
NOISE: Final = (
    b"INFO 10-05 18:31:40 [loader.py:1] nothing of interest, only some text to fill the file\n" * 45_000
)
FILES: Final = {"30,000 requests that never end": PENDING, "4 MB of nothing": NOISE}
"""Name -> a file for the Check and the Workload page."""

DOES_NOT_FIT: Final = frozenset({"weights-do-not-fit"})
FITS: Final = frozenset({"fits"})
CODES: Final = {
    "a pattern that backtracks": {"unsupported-pattern"},
    "a pattern that backtracks, without a flag": FITS,
    "twenty patterns that backtrack": {"unsupported-pattern"},
    "twenty patterns of stars": FITS,
    "200 patterns of stars": FITS,
    "twenty patterns of stars on the deepest model": {"module-lists-too-costly"},
    "1,000 names on the deepest model": DOES_NOT_FIT,
    "the deepest model": DOES_NOT_FIT,
    "the deepest model, layer by layer": DOES_NOT_FIT,
    "an integer of 400 digits": {"number-too-long"},
    "an integer of 5,000 digits": {"number-too-long"},
    "an unknown kind of layer": {"invalid-config-value"},
    "the largest sizes": DOES_NOT_FIT,
    "100,000 brackets": {"input-too-deep"},
    "100,000 objects": {"input-too-deep"},
    "no numbers": {"invalid-config-value"},
    "2 MB of architectures": {"invalid-config-value"},
    "2 MB of keys": FITS,
    "8.5 MB in one text": {"input-too-large"},
    "100,000 kinds of layers": FITS,
    "pins with patterns": FITS,
    "numbers of 400 digits": {"invalid-value"},
    "graphs up to 2,147,483,648": {"invalid-value"},
    "20,000 graphs": {"invalid-value"},
    "256 stages on 65,536 replicas": {"too-many-pipeline-stages"},
    "900 unknown names": {"unknown-parameter"},
    "500,000 characters": {"invalid-value"},
    "a config that unpacks to too much": {"input-too-large"},
    "halves of characters": {"invalid-value"},
    "docker run, 200 KB of dashes": {"log-not-recognized"},
    "docker run, 14,000 times": {"log-not-recognized"},
    "docker run, flags and no image": {"log-not-recognized"},
    "a size that is no number": {"log-not-recognized"},
    "flags of 400 digits": {"log-flags-unusable"},
    "200 KB of continued lines": {"context-too-long"},
    "200 KB of quotes": {"log-not-recognized"},
    "one flag of 200 KB": {"log-flags-unused"},
    "33,000 flags": {"log-flags-unused"},
    "YAML 400 deep": {"log-not-recognized"},
}  # fmt: skip
"""Name -> codes and verdicts, one of which answers it."""
