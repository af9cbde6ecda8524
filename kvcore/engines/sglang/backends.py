"""Which attention backend a release takes, and the page size that goes with it."""

from __future__ import annotations

from kvcore.engines.sglang.arguments import V0_5_11, V0_5_18, V0_5_21, engine_refuses
from kvcore.engines.sglang.opening import Opening


class Backed(Opening):
    """The arguments with a backend and a page size."""

    def _is_chain(self) -> bool:
        return not self.algorithm or (self.topk or 1) == 1

    def _default_backend(self) -> str:
        """Source: server_args.py:ServerArgs._get_default_attn_backend (0.5.9, 0.5.13), arg_groups/
        model_override_base.py:get_default_attn_backend (0.5.23)."""
        card = self.card
        if card.is_rocm:
            return (
                "aiter"
                if self.shape.latent is None or self.shape.heads.on_rank(self.tp) in (16, 128)
                else "triton"
            )
        if self.shape.latent is not None:
            return "fa3" if card.is_hopper else "flashinfer" if card.is_sm100 else "triton"
        if card.is_hopper and (not self.algorithm or self.topk in (None, 1)):
            return "fa3"
        if card.is_sm100 and (not self.algorithm or self.topk == 1):
            is_uneven = self.shape.heads.key != self.shape.heads.value
            return "fa4" if is_uneven and self.version >= V0_5_21 else "trtllm_mha"
        return "triton" if self.shape.has_sinks and self.version >= V0_5_11 else "flashinfer"

    def fill_backend(self) -> None:
        """Source: server_args.py:ServerArgs._handle_attention_backend_compatibility (0.5.9, 0.5.13), arg_groups/
        attention_hook.py and overrides.py:_mla_backend_page_constraints (0.5.23)."""
        if self.prefill_backend and self.prefill_backend == self.decode_backend:
            self.backend = self.prefill_backend
        self.backend = self.backend or self._default_backend()
        both, decoding = (
            {self.backend, self.decode_backend},
            {self.backend, self.decode_backend, self.prefill_backend},
        )
        if both & {"torch_native", "flex_attention"}:
            self.has_decode_graphs = False
        if "flashmla" in both:
            self.page = 64
        if "cutlass_mla" in both and self.version < V0_5_18:
            self.page = 128
        if "trtllm_mla" in both:
            self._check_trtllm_mla()
        if decoding & {"cutedsl_mla", "tokenspeed_mla"}:
            self.page = self.page if self.page in (32, 64) else 64
        if "trtllm_mha" in decoding:
            self._check_trtllm_mha()
        if "hpc_ops" in decoding:
            self.page = 64
        if self.backend == "fa3" and self.kv == "fp8_e5m2":
            self.backend = "triton"
        latest = self.version >= V0_5_21
        is_fa4 = "fa4" in decoding if latest else self.prefill_backend == "fa4"
        is_wide = self.card.is_sm100 or self.version < V0_5_11
        if is_fa4 and self.shape.latent is None and is_wide and (not latest or (self.topk or 0) <= 1):
            self.page = 128
        if self.backend == "aiter" and self.context() > 8192:
            self.fraction *= 0.85
        self._check_narrow()
        self.page = self.page or 1

    def _check_trtllm_mla(self) -> None:
        takes = (
            ("fp8_e4m3", "bf16", "auto")
            if self.version >= V0_5_18
            else ("fp8_e4m3", "fp4_e2m1", "bf16", "auto")
        )
        field = "server_args.attention_backend"
        if not self.card.is_blackwell:
            raise engine_refuses(
                "TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x). Please use a different backend.",
                field,
                self.backend,
            )
        self.page = self.page if self.page in (32, 64) else 64
        if self.kv not in takes:
            named = (
                "fp8_e4m3, bf16, or auto" if self.version >= V0_5_18 else "fp8_e4m3, fp4_e2m1, bf16, or auto"
            )
            raise engine_refuses(
                f"TensorRT-LLM MLA backend only supports kv-cache-dtype of {named}.",
                "kv_cache_dtype",
                self.kv,
            )

    def _check_trtllm_mha(self) -> None:
        field, card = "server_args.attention_backend", self.card
        prefill, decode = self.prefill_backend or self.backend, self.decode_backend or self.backend
        known = (card.is_hopper and self.version >= V0_5_18) or card.is_sm100
        if self.version >= V0_5_18:
            known = known or card.capability[0] == 12
        if self.version < V0_5_11 and not card.is_sm100:
            raise engine_refuses(
                "TRTLLM MHA backend is only supported on Blackwell GPUs (SM100). Please use a different backend.",
                field,
            )
        if prefill == "trtllm_mha" and not known:
            raise engine_refuses("TRTLLM MHA backend for prefill is only supported on Blackwell GPUs (SM100). "
                         "Please use a different prefill backend.", field)  # fmt: skip
        if decode == "trtllm_mha" and not (card.is_hopper or card.is_sm100 or card.capability[0] == 12):
            raise engine_refuses(
                "TRTLLM MHA backend for decode is only supported on Hopper (SM90), Blackwell (SM100) and (SM120) GPUs. "
                "Please use a different decode backend.",
                field,
            )
        sizes = (16, 32, 64, 128) if self.version >= V0_5_21 else (16, 32, 64)
        self.page = self.page if self.page in sizes else 64

    def _check_narrow(self) -> None:
        """Source: server_args.py:ServerArgs._handle_kv4_compatibility (0.5.9, 0.5.13), arg_groups/kv_cache_hook.py:
        handle_kv4_compatibility, mem_cache/kv_cache_dtype.py (0.5.18, 0.5.23)."""
        if self.kv == "fp4_e2m1" and self.version >= V0_5_18:
            words = "--kv-cache-dtype=fp4_e2m1 is deprecated. Use --kv-cache-dtype=fp4_mx_block16."
            raise engine_refuses(words, "kv_cache_dtype", self.kv)
        names = ("nvfp4", "fp4_mx_block16") if self.version >= V0_5_18 else ("fp4_e2m1",)
        if self.kv not in names:
            return
        card = self.card
        if self.kv == "nvfp4":
            if not (card.is_sm100 or card.capability[0] == 12):
                raise engine_refuses(
                    "--kv-cache-dtype=nvfp4 requires Blackwell SM100 or SM120. "
                    "Use --kv-cache-dtype=fp4_mx_block16 for the block-size-16 FP4 recipe.",
                    "kv_cache_dtype",
                    self.kv,
                )
            self.prefill_backend = "trtllm_mha" if card.is_sm100 else "flashinfer"
            self.decode_backend = "trtllm_mha"
            self.page = self.page if self.page in (16, 32, 64, 128) else 64
            if self.shape.latent is not None:
                raise engine_refuses(
                    "KV4 MLA expects attention_backend to be one of ['flashinfer', 'trtllm_mla'], but got trtllm_mha",
                    "kv_cache_dtype",
                    self.kv,
                )
