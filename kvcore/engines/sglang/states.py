"""The pool of recurrent states: how many slots there are, how many a request takes, and the bytes of all."""

from __future__ import annotations

from typing import Final

from kvcore.base.units import ceil_div
from kvcore.engines.sglang.arguments import V0_5_11, V0_5_18, V0_5_21, engine_refuses
from kvcore.engines.sglang.cells import Cells, stage_range

GIB: Final = 1 << 30
SLOTS: Final = 3
"""State slots of a request where prefixes are kept."""
CONV_ROWS: Final = 3
"""Rows that a convolution over four tokens keeps."""


class Stated(Cells):
    """The same with the states."""

    def slots_per_request(self) -> int:
        """Source: model_runner_kv_cache_mixin.py:init_memory_pool (0.5.9), _calculate_mamba_ratio (0.5.13), mem_cache/
        kv_cache_configurator.py:_calculate_mamba_ratio (0.5.23)."""
        arguments = self.arguments
        if arguments.disable_radix_cache:
            return 1
        if arguments.strategy == "no_buffer":
            return SLOTS
        if self.version < V0_5_11:
            return SLOTS + (1 if arguments.algorithm else 2)
        if not arguments.is_overlapped or arguments.strategy == "extra_buffer_lazy":
            return SLOTS + 1
        return SLOTS + 2

    def _states(self, rest: float) -> tuple[float, int, int]:
        """GiB that are left for keys and values, the slots, and the bytes of one.

        Source: model_runner_kv_cache_mixin.py:handle_max_mamba_cache (0.5.9, 0.5.13), mem_cache/
        kv_cache_configurator.py:_handle_max_mamba_cache (0.5.18, 0.5.23).
        """
        arguments, shape = self.arguments, self.shape
        per_request = sum(shape.state_bytes(self.ranks, "bfloat16", arguments.mamba_ssm_dtype or "float32"))
        if self.version >= V0_5_18 and arguments.pp_size > 1:
            places = [place for place, _ in shape.states]
            stages = (
                stage_range(shape.layers, arguments.pp_size, stage) for stage in range(arguments.pp_size)
            )
            most = max(sum(1 for place in places if place in stage) for stage in stages)
            per_request = int(per_request * (most / len(places)))
        pads = 1 if self.version >= V0_5_18 else 0
        drafts, ratio = arguments.draft_tokens if arguments.algorithm else 0, self.slots_per_request()
        replicas = arguments.attention_replicas
        requests = (arguments.max_running_requests or 0) // replicas
        if self.version >= V0_5_21:
            requests = max(1, requests)
        if drafts and self.version < V0_5_11:
            rest -= per_request * requests * drafts / GIB
        if arguments.max_mamba_cache_size is not None:
            slots = arguments.max_mamba_cache_size // replicas
            if drafts and self.version >= V0_5_11:
                rest -= per_request * (min(requests, slots // ratio) + pads) * drafts / GIB
        elif arguments.disable_radix_cache and arguments.max_running_requests is not None:
            slots = requests
            if drafts and self.version >= V0_5_11:
                rest -= per_request * (slots + pads) * drafts / GIB
        else:
            share = rest * arguments.mamba_full_memory_ratio / (1 + arguments.mamba_full_memory_ratio)
            budget = share * GIB
            if drafts and self.version >= V0_5_11:
                slots = int(
                    (budget - pads * per_request * (1 + drafts)) // (per_request * (1 + drafts / ratio))
                )
                rest -= per_request * (min(requests, slots // ratio) + pads) * drafts / GIB
            elif self.version < V0_5_11:
                slots = int(budget // per_request)
            else:
                slots = int((budget - pads * per_request) // per_request)
        if slots <= 0 and self.version >= V0_5_11:
            raise engine_refuses(
                "Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
                f"max_mamba_cache_size={slots} (total_rest_memory={rest:.2f} GB, "
                f"mamba_cache_per_req={per_request / (1 << 20):.2f} MB). Try: (1) reduce --max-running-requests, "
                "(2) increase --mem-fraction-static, (3) reduce --speculative-num-draft-tokens, or "
                "(4) use GPUs with more memory.",
                "gpu_memory_utilization",
            )
        return rest - (slots + pads) * per_request / GIB, slots, per_request

    def _viewed(self, slots: int | None, requests: int) -> int:
        """Source: mem_cache/memory_pool.py:MambaPool._allocate_deduplicated_conv_window (0.5.18, 0.5.23)."""
        drafts = self.arguments.draft_tokens if self.arguments.algorithm else 0
        if slots is None or not drafts or self.version < V0_5_18:
            return 0
        rows, _ = self.shape.state_bytes(self.ranks, "bfloat16", "float32")
        return (requests + 1) * drafts * rows

    def _built_states(self, slots: int | None, requests: int) -> int:
        """Bytes of the states with the slot that pads them, and of the steps that a draft may take back.

        Source: mem_cache/memory_pool.py:MambaPool.__init__ (0.5.9, 0.5.13; 0.5.18, 0.5.23: convolution rows of a draft
        overlap).
        """
        if slots is None:
            return 0
        arguments = self.arguments
        rows, states = self.shape.state_bytes(self.ranks, "bfloat16", arguments.mamba_ssm_dtype or "float32")
        if arguments.pp_size > 1 and self.version >= V0_5_11:
            places = [place for place, _ in self.shape.states]
            here = sum(1 for place in places if place in self._stages()[0])
            rows, states = rows * here // len(places), states * here // len(places)
        found = (slots + 1) * (rows + states)
        drafts = arguments.draft_tokens if arguments.algorithm else 0
        if not drafts:
            return found
        kept = (requests + 1) * drafts * states
        if self.version < V0_5_18:
            return found + kept + (requests + 1) * drafts * rows
        return found + kept + (requests + 1) * ceil_div(rows * (drafts + CONV_ROWS - 1), CONV_ROWS)
