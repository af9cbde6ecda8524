"""Fields of a request, read by name: each of its type and in its range, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvcore.errors import ScenarioError

Json = Mapping[str, Any]

MAX_COUNT: Final = 1 << 31
MAX_GRAPH_TOKENS: Final = 1 << 16
"""Of one CUDA graph, 128 times the engines' default: every 16th size up to it is one more to capture and to plan."""
MAX_LISTED: Final = 8192
"""Numbers of a list: as many sizes as the largest captured batch makes."""
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "max_model_len": (1, MAX_COUNT),
    "tensor_parallel_size": (1, 1024),
    "pipeline_parallel_size": (1, 256),
    "data_parallel_size": (1, 65536),
    "decode_context_parallel_size": (1, 1024),
    "gpu_memory_utilization": (0.01, 1.0),
    "max_num_seqs": (1, 1 << 20),
    "max_num_batched_tokens": (1, MAX_COUNT),
    "block_size": (1, 1 << 20),
    "max_cudagraph_capture_size": (1, MAX_GRAPH_TOKENS),
    "mamba_block_size": (1, MAX_COUNT),
    "max_loras": (1, 4096),
    "max_lora_rank": (1, 4096),
    "cpu_offload_gb": (0, 1e6),
    "kv_cache_memory_bytes": (1, 1 << 50),
    "num_gpu_blocks_override": (1, MAX_COUNT),
    "checkpoint.total_size": (1, 1 << 50),
    "checkpoint.total_parameters": (1, 1 << 50),
    "accelerator.memory_gib": (0.25, 10_000),
    "speculative_config.num_speculative_tokens": (1, 1024),
    "speculative_config.draft_tensor_parallel_size": (1, 1024),
    "measured.weights_gib": (0, 1e5),
    "measured.peak_activation_gib": (0, 1e5),
    "measured.non_torch_gib": (-1e3, 1e5),
    "measured.cuda_graph_gib": (-1e3, 1e5),
    "measured.system_gib": (0, 1e5),
    "measured.available_kv_gib": (-1e5, 1e5),
    "measured.batched_tokens": (1, MAX_COUNT),
}
"""The least and the most of every number, by its name in a link; controls that show one take the same."""


class Fields:
    """Typed access to a request; whatever was never asked for is an unknown field."""

    def __init__(self, raw: Json, known: frozenset[str], prefix: str = "") -> None:
        self.raw = raw
        self.prefix = prefix
        for name in raw:
            if name not in known:
                raise ScenarioError("unknown-field", field=prefix + str(name)[:80])

    def refuse(self, name: str, reason: str) -> ScenarioError:
        return ScenarioError(
            "invalid-value", field=self.prefix + name, value=self.raw.get(name), reason=reason
        )

    def integer(self, name: str) -> int | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(name, "it must be a whole number")
        low, high = BOUNDS[self.prefix + name]
        if not low <= value <= high:
            raise self.refuse(name, f"it must lie between {low} and {high}")
        return value

    def number(self, name: str) -> float | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, "it must be a number")
        low, high = BOUNDS[self.prefix + name]
        if not low <= value <= high:
            raise self.refuse(name, f"it must lie between {low:g} and {high:g}")
        return float(value)

    def flag(self, name: str) -> bool | None:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(name, "it must be true or false")
        return value

    def text(self, name: str, limit: int = 256) -> str | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > limit or not value.isprintable():
            raise self.refuse(name, f"it must be a text of at most {limit} printable characters")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value not in choices:
            raise self.refuse(name, f"it must be one of {', '.join(choices)}")
        return value

    def counts(self, name: str) -> tuple[int, ...] | None:
        """Positive whole numbers, ascending, each once."""
        value = self.raw.get(name)
        if value is None:
            return None
        if not (
            isinstance(value, list) and value and all(type(v) is int and 0 < v <= MAX_COUNT for v in value)
        ):
            raise self.refuse(name, "it must be a list of positive whole numbers")
        if len(value) > MAX_LISTED:
            raise self.refuse(name, f"it must have at most {MAX_LISTED:,} numbers")
        return tuple(sorted(set(value)))

    def names(self, name: str, known: tuple[str, ...]) -> tuple[str, ...]:
        """Some of `known`, in its order."""
        value = self.raw.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) and one in known for one in value):
            raise self.refuse(name, "it must be a list of parts that are given here")
        return tuple(one for one in known if one in value)

    def mapping(self, name: str) -> Json | None:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.refuse(name, "it must be an object")
        return value
