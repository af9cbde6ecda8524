"""All arguments of a start, filled in by a release's handlers in their order."""

from __future__ import annotations

from typing import Final

from kvcore.engines.sglang.arguments import V0_5_11, V0_5_18, Arguments, engine_refuses
from kvcore.engines.sglang.model_classes import Classed
from kvcore.engines.sglang.tables import CLASSES

LLAMA_PARAMS: Final = (5, 4, 8)
USUAL_PARAMS: Final = (3, 1, 4)
SPECULATIVE_REQUESTS: Final = 48
TREE_BACKENDS: Final = ("flashinfer", "fa3", "triton")
DRAFTS: Final = ("EAGLE", "EAGLE3", "STANDALONE")


class Open(Classed):
    """The arguments, with the draft, until they are closed."""

    def fill_drafts(self) -> None:
        """Source: server_args.py:ServerArgs._handle_speculative_decoding, auto_choose_speculative_params (0.5.9,
        0.5.13), arg_groups/speculative_hook.py (0.5.18, 0.5.23)."""
        if not self.algorithm:
            return
        self.algorithm = "EAGLE" if self.algorithm == "NEXTN" else self.algorithm
        self.requests = SPECULATIVE_REQUESTS if self.requests is None else self.requests
        if self.algorithm in DRAFTS:
            if self.version < V0_5_11:
                self.is_overlapped = False
            if self.steps is None:
                is_llama = self.shape.name == "LlamaForCausalLM" and self.algorithm != "STANDALONE"
                self.steps, self.topk, self.tokens = LLAMA_PARAMS if is_llama else USUAL_PARAMS
            self.topk = self.topk or 1
            if "trtllm_mha" in (self.backend, self.decode_backend, self.prefill_backend) and self.topk > 1:
                words = "trtllm_mha backend only supports topk = 1 for speculative decoding."
                raise engine_refuses(words, "server_args.speculative_eagle_topk", self.topk)
            if self.topk == 1:
                self.tokens = self.steps + 1
            if self.topk > 1 and (self.page or 1) > 1 and self.backend not in TREE_BACKENDS:
                raise engine_refuses(
                    "speculative_eagle_topk > 1 with page_size > 1 is only supported on "
                    f"{TREE_BACKENDS}; got attention_backend={self.backend!r}. "
                    "Use page_size == 1 or one of those backends.",
                    "server_args.speculative_eagle_topk",
                    self.topk,
                )
        elif self.algorithm == "NGRAM":
            self.is_overlapped = False
            self.tokens = self.tokens or 12

    def counted_draft_layers(self) -> int:
        """Layers of the draft that the bytes of a token count.

        Source: model_executor/model_runner_components/spec_aux_hidden_state.py:_resolve_eagle_aux_hidden_state (0.5.18,
        0.5.23).
        """
        if self.version < V0_5_18 or self.algorithm not in DRAFTS:
            return 0
        is_own = CLASSES.load().own_draft.has(self.shape.name, self.version)
        if self.named_draft_layers is not None:
            return self.named_draft_layers
        if is_own or not self.given.get("speculative_draft_model_path"):
            return self.shape.draft_layers or 0
        return 1

    def kv_dtype(self, dtype: str) -> str:
        """The dtype that keys are stored in.

        Source: model_executor/model_runner.py:ModelRunner.configure_kv_cache_dtype (0.5.9), mem_cache/kv_cache_dtype.py
        (0.5.23).
        """
        if self.kv == "auto":
            return self.checkpoint_kv_dtype or dtype
        return {"bf16": "bfloat16"}.get(self.kv, self.kv)

    def closed(self) -> Arguments:
        """All of them, filled in. Raises EngineRefusalError in the engine's words."""
        context = self.context()
        self.fill_memory()
        self.fill_class()
        self.fill_backend()
        if self.is_dp_attention:
            self.chunk //= self.dp
        if self.pp > 1:
            self.is_overlapped = False
        self.fill_drafts()
        images = self.shape.is_multimodal and self.version >= V0_5_18
        return Arguments(
            tp_size=self.tp,
            pp_size=self.pp,
            dp_size=self.dp,
            is_dp_attention=self.is_dp_attention,
            chunked_prefill_size=self.chunk,
            max_prefill_tokens=self.prefill_tokens,
            graph_max_bs=self.graph,
            has_decode_graphs=self.has_decode_graphs and self.role != "prefill",
            has_prefill_graphs=self.captures_prompts,
            prefill_graphs=self.prefill_graphs,
            mem_fraction_static=self.fraction,
            page_size=self.page or 1,
            attention_backend=self.backend,
            decode_backend=self.decode_backend or self.backend,
            prefill_backend=self.prefill_backend or self.backend,
            kv_cache_dtype=self.kv,
            context_length=context,
            max_running_requests=self.requests,
            max_total_tokens=self.given.get("max_total_tokens"),
            disable_radix_cache=not self.has_radix,
            is_overlapped=self.is_overlapped,
            strategy=self.strategy,
            max_mamba_cache_size=self.given.get("max_mamba_cache_size"),
            mamba_full_memory_ratio=float(self.given.get("mamba_full_memory_ratio", 0.9)),
            mamba_ssm_dtype=str(self.given.get("mamba_ssm_dtype") or ""),
            swa_ratio=self.swa_ratio,
            has_window_pool=self.has_window_pool,
            algorithm=self.algorithm,
            draft_steps=self.steps or 0,
            draft_topk=self.topk or 0,
            draft_tokens=(self.tokens or 0) if self.algorithm else 0,
            draft_layers=self.counted_draft_layers(),
            role=self.role,
            is_multimodal=self.shape.is_multimodal,
            reserves_images=images,
            image_reserve_mib=self._image_reserve() if images else 0,
            raw=self.given,
        )

    def _image_reserve(self) -> int:
        """Source: mem_cache/kv_cache_configurator.py:mm_runtime_reservation_gb (0.5.18, 0.5.23), arg_groups/
        model_overrides/qwen3_vl.py:_qwen3vl_hopper_serving_overrides (0.5.23)."""
        transport = self.given.get("mm_feature_transport")
        kept = 100
        moved = 1024
        if self._serves_images_on_hopper:
            kept = 0
            transport = transport or ("cuda_ipc" if int(self.given.get("nnodes", 1)) == 1 else None)
            moved = 3072 if (self.requests or 0) >= 400 else moved
        return kept + (moved if transport in ("cuda_ipc", "cuda_vmm") else 0)
