"""The arguments of a server with nothing left open, and the refusals of a start in the engine's own words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from kvcore.base.errors import EngineRefusalError, WordedRefusalError
from kvcore.engines.sglang.tables import sglang_release

REFUSED: Final = "engine-refused"
V0_5_11: Final = sglang_release("0.5.11")
V0_5_18: Final = sglang_release("0.5.18")
V0_5_21: Final = sglang_release("0.5.21")


class Card(Struct, frozen=True, kw_only=True):
    """A card as the arguments see it."""

    mib: float
    """Memory as the driver's tool prints it."""
    capability: tuple[int, int]
    is_rocm: bool = False

    @property
    def is_hopper(self) -> bool:
        return self.capability[0] == 9 and not self.is_rocm

    @property
    def is_sm100(self) -> bool:
        return self.capability[0] == 10 and not self.is_rocm

    @property
    def is_blackwell(self) -> bool:
        return self.capability[0] in (10, 11, 12) and not self.is_rocm


class Arguments(Struct, frozen=True, kw_only=True):
    """A server's arguments with nothing left open. Sizes in tokens, requests and ranks."""

    tp_size: int
    pp_size: int
    dp_size: int
    is_dp_attention: bool
    chunked_prefill_size: int
    max_prefill_tokens: int
    graph_max_bs: int
    """Largest batch of a decode graph."""
    has_decode_graphs: bool
    has_prefill_graphs: bool
    prefill_graphs: int
    """How many lengths of a prompt are captured."""
    mem_fraction_static: float
    page_size: int
    attention_backend: str
    decode_backend: str
    prefill_backend: str
    kv_cache_dtype: str
    """As it is asked for, or as the model's class sets it."""
    context_length: int
    max_running_requests: int | None
    max_total_tokens: int | None
    disable_radix_cache: bool
    is_overlapped: bool
    """The next batch is scheduled while one runs."""
    strategy: str
    """How states of finished prefixes are kept: no_buffer, extra_buffer, extra_buffer_lazy."""
    max_mamba_cache_size: int | None
    mamba_full_memory_ratio: float
    mamba_ssm_dtype: str
    swa_ratio: float
    has_window_pool: bool
    algorithm: str
    """Of speculative decoding; "" without."""
    draft_steps: int
    draft_topk: int
    draft_tokens: int
    draft_layers: int
    """Layers of the draft that the cell counts; 0 where it is not counted."""
    role: str
    """null, prefill or decode."""
    is_multimodal: bool
    reserves_images: bool
    image_reserve_mib: int
    raw: Mapping[str, Any]

    @property
    def attention_ranks(self) -> int:
        """Ranks that divide one replica's attention.

        Source: layers/dp_attention.py:compute_dp_attention_world_info (0.5.9, 0.5.13).
        """
        return max(1, self.tp_size // self.attention_replicas)

    @property
    def attention_replicas(self) -> int:
        """Replicas of the attention: each has pools of its own."""
        return self.dp_size if self.is_dp_attention else 1


def engine_refuses(message: str, field: str = "server_args", value: object = None) -> EngineRefusalError:
    """The refusal of a start in the engine's own words."""
    return WordedRefusalError(REFUSED, field=field, value=value, words=message)


def rounded_up_thousandth(value: float) -> float:
    """The next share in thousandths, as a refusal suggests it."""
    return math.ceil(value * 1000) / 1000
