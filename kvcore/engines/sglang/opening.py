"""The first part of filling arguments in: what is given, chunk, graphs, and the fraction of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from packaging.version import Version

from kvcore.engines.sglang.arguments import V0_5_11, V0_5_18, V0_5_21, Card, engine_refuses
from kvcore.engines.sglang.graphs import has_prefill_graphs, prefill_sizes
from kvcore.engines.sglang.shapes import Shape
from kvcore.engines.sglang.tables import band_of, sglang_release

FOUR: Final = 4
FLOOR_MIB: Final = 10_240
FLOOR_FROM_MIB: Final = 61_440


class Opening:
    """The arguments while a release's handlers fill them in."""

    def __init__(
        self,
        given: Mapping[str, Any],
        shape: Shape,
        card: Card,
        version: Version,
        *,
        model: str,
        checkpoint_kv_dtype: str | None,
        draft_layers: int | None,
    ) -> None:
        self.given, self.shape, self.card, self.version = given, shape, card, version
        self.model, self.checkpoint_kv_dtype, self.named_draft_layers = (
            model,
            checkpoint_kv_dtype,
            draft_layers,
        )
        self.tp, self.pp = int(given.get("tp_size", 1)), int(given.get("pp_size", 1))
        self.dp = int(given.get("dp_size", 1))
        self.is_dp_attention = bool(given.get("enable_dp_attention")) and self.dp > 1
        self.role = str(given.get("disaggregation_mode") or "null")
        self.backend: str = given.get("attention_backend") or ""
        self.prefill_backend: str = given.get("prefill_attention_backend") or ""
        self.decode_backend: str = given.get("decode_attention_backend") or ""
        self.page: int | None = given.get("page_size")
        self.kv: str = given.get("kv_cache_dtype") or "auto"
        self.requests: int | None = given.get("max_running_requests")
        self.algorithm = str(given.get("speculative_algorithm") or "").upper()
        self.steps: int | None = given.get("speculative_num_steps")
        self.topk: int | None = given.get("speculative_eagle_topk")
        self.tokens: int | None = given.get("speculative_num_draft_tokens")
        self.has_radix = not given.get("disable_radix_cache", False)
        self.is_overlapped = not given.get("disable_overlap_schedule", False)
        asked = given.get("mamba_scheduler_strategy") or given.get("mamba_radix_cache_strategy")
        self.asks_for_buffer = str(asked or "").startswith("extra_buffer")
        usual = "auto" if version >= V0_5_18 else "no_buffer"
        self.strategy: str = usual if asked in (None, "auto") else str(asked)
        self.has_window_pool = bool(shape.windows) and not given.get("disable_hybrid_swa_memory", False)
        ratio = given.get("swa_full_tokens_ratio")
        self.swa_ratio: float = 0.8 if ratio is None else float(ratio)
        self.is_ratio_given = ratio is not None
        self.has_decode_graphs = not given.get("disable_cuda_graph", False)

    # Context

    def context(self) -> int:
        """Source: configs/model_config.py:ModelConfig._derive_context_length (0.5.9, 0.5.23)."""
        asked, own = self.given.get("context_length"), self.shape.context
        if asked is None:
            return own
        if asked > own and not self.given.get("allow_longer_context"):
            raise engine_refuses(
                f"Warning: User-specified context_length ({asked}) is greater than the derived context_length "
                f"({own}). This may lead to incorrect model outputs or CUDA errors. Note that the derived "
                "context_length may differ from max_position_embeddings in the model's config. To allow overriding "
                "this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
                "max_model_len",
                asked,
            )
        return int(asked)

    # Memory

    def fill_memory(self) -> None:
        """Chunk, graphs and the fraction.

        Source: server_args.py:ServerArgs._handle_gpu_memory_settings (0.5.3.post3 to 0.5.18), arg_groups/
        memory_hook.py:handle_gpu_memory_settings (0.5.21, 0.5.23).
        """
        band = band_of(self.card.mib, self.version)
        chunk = self.given.get("chunked_prefill_size")
        self.chunk = band.chunk if chunk is None else int(chunk)
        graph, sizes = self.given.get("cuda_graph_max_bs"), self.given.get("cuda_graph_bs")
        is_default = graph is None
        self.graph = int(graph) if graph is not None else band.graph if self.tp < FOUR else band.graph_of_four
        if isinstance(sizes, list) and sizes:
            self.graph = max(sizes)
        if is_default and self.requests and self.version >= V0_5_21:
            self.graph = self._graph_of_requests(self.requests)
        self.prefill_tokens = int(self.given.get("max_prefill_tokens", 16_384))
        self.prefill_graphs = self._prefill_graphs()
        fraction = self.given.get("mem_fraction_static")
        self.fraction = self._fraction() if fraction is None else float(fraction)

    def _graph_of_requests(self, requests: int) -> int:
        """Source: arg_groups/model_overrides/qwen3_vl.py:expand_multimodal_decode_graph_to_running_limit (0.5.23)."""
        if self.graph > requests:
            return requests
        return requests if self._serves_images_on_hopper and requests <= 512 else self.graph

    @property
    def _serves_images_on_hopper(self) -> bool:
        """Source: arg_groups/model_overrides/qwen3_vl.py:large_hopper_qwen3_vl_model_type (0.5.23)."""
        is_large = self.card.is_hopper and self.card.mib >= FLOOR_FROM_MIB
        is_known = self.version >= sglang_release("0.5.23")
        return is_known and is_large and self.shape.is_multimodal and self.shape.is_hopper_vision

    def _prefill_graphs(self) -> int:
        is_latent = self.shape.latent is not None
        most = self.given.get("cuda_graph_max_bs_prefill") or self.given.get(
            "piecewise_cuda_graph_max_tokens"
        )
        if most is None:
            most = self.chunk
            if is_latent:
                most = min(8192, self.chunk) if self.version >= V0_5_21 else 2048
            if self.version >= V0_5_11:
                limit = self.given.get("max_total_tokens")
                most = most if limit is None else min(most, limit)
                most = min(most, 4096) if "llama-2" in self.model.lower() else most
        context = self.given.get("context_length")
        if V0_5_11 <= self.version < V0_5_18 and context is not None:
            most = min(most, context)
        self.captures_prompts = has_prefill_graphs(
            self.given, self.shape, self.version, is_dp=self.is_dp_attention, pp=self.pp, role=self.role
        )
        return len(prefill_sizes(most))

    def _fraction(self) -> float:
        """Source: as `fill_memory`; before 0.5.1 ServerArgs.__post_init__ (0.4.6.post5, 0.4.10, 0.5.0rc2)."""
        if self.version < sglang_release("0.4.10"):
            found = self._first_fraction()
        elif self.version < sglang_release("0.5.3.post3"):
            found = round((self.card.mib - self._reserved_by_size()) / self.card.mib, 3)
        else:
            found = round((self.card.mib - self._reserved()) / self.card.mib, 3)
        sees_images = self.shape.is_multimodal and not self.given.get("language_only")
        if self.version >= V0_5_18:
            sees_images = sees_images and self.role != "decode" and not self.given.get("language_model_only")
        return found * self._image_factor() if sees_images and self.shape.vision else found

    def _first_fraction(self) -> float:
        ranks, mib = self.tp * self.pp, self.card.mib
        found = 0.88
        if mib <= 81_920:
            found = next(
                share
                for least, share in ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (0, 0.88))
                if ranks >= least
            )
        if mib > 96 * 1024:
            found = min(found + 48 * 1024 * (1 - found) / mib, (mib - 18 * 1024) / mib)
        return found

    def _reserved_by_size(self) -> float:
        ranks, mib = self.tp * self.pp, self.card.mib
        if mib < 35 * 1024:
            gib = 2.8 + ranks / 10
        elif mib < 90 * 1024:
            gib = 9.5 + ranks / 2
        else:
            gib = 12 + ranks / 2 if mib < 160 * 1024 else 32
        return (gib + (2 if self.algorithm else 0) + (4 if self.is_dp_attention else 0)) * 1024

    def _reserved(self) -> float:
        """MiB that are left to activations and graphs."""
        counts_roles = self.version >= V0_5_18
        tokens = max(self.chunk if self.chunk > 0 else self.prefill_tokens, 2048)
        if counts_roles and self.role == "decode":
            tokens = max((self.requests or self.graph or 1) * (self.tokens or 1), 2048)
        reserved = 512 + tokens * 1.5 + self.tp * self.pp / 8 * 1024
        if not counts_roles or (self.role != "prefill" and self.has_decode_graphs):
            reserved += self.graph * 2
        if self.is_dp_attention and not (counts_roles and self.role == "prefill"):
            reserved += self.graph * self.dp * (4.5 if self.graph > 300 else 3)
        if self.captures_prompts:
            reserved += self._reserved_for_prompts()
        if self.card.mib > FLOOR_FROM_MIB:
            reserved = max(reserved, FLOOR_MIB)
        if self.algorithm and not counts_roles:
            usual = 4096 if self.version >= V0_5_11 else 2048
            reserved += {"STANDALONE": 6144, "NGRAM": 0}.get(self.algorithm, usual)
        is_deepep = self.given.get("moe_a2a_backend") == "deepep"
        if counts_roles and is_deepep and self.role != "prefill" and self.has_decode_graphs:
            reserved += 2048
        return reserved

    def _reserved_for_prompts(self) -> float:
        if self.version < sglang_release("0.5.9"):
            return float(self.given.get("piecewise_cuda_graph_max_tokens", 4096) // 4)
        if self.shape.latent is not None and self.version >= V0_5_11:
            return 1536
        deepep = self.version >= V0_5_18 and self.given.get("moe_a2a_backend") == "deepep"
        return self.prefill_graphs * 8 + (1024 if deepep else 0)

    def _image_factor(self) -> float:
        assert self.shape.vision is not None
        layers, width = self.shape.vision
        share = layers * width**2 / (24 * 1024**2)
        return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (share - 1.0)))
