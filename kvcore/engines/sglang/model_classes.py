"""What the class of a model sets among the arguments."""

from __future__ import annotations

from typing import Final

from kvcore.engines.sglang.arguments import V0_5_11, V0_5_18, V0_5_21, engine_refuses
from kvcore.engines.sglang.backends import Backed
from kvcore.engines.sglang.tables import CLASSES, sglang_release

COMPRESSED_REQUESTS: Final = 256
DEEPSEEK: Final = (
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration",
    "GlmMoeDsaForCausalLM",
    "LongcatFlashForCausalLM",
    "HYV4ForCausalLM",
    "Dots3NoteForCausalLM",
)
"""Classes of DeepSeek-V3's family, which take its kernels.

Source: arg_groups/model_overrides/deepseek_v2.py:_deepseek_family_overrides (0.5.23).
"""


class Classed(Backed):
    """The arguments with what the class of the model sets."""

    def fill_class(self) -> None:
        """What the class of the model sets.

        Source: server_args.py:ServerArgs._handle_model_specific_adjustments (0.5.9, 0.5.13), arg_groups/overrides.py
        and arg_groups/model_overrides (0.5.18, 0.5.23).
        """
        name, card = self.shape.name, self.card
        if self.shape.is_multimodal and CLASSES.load().whole_prompts.has(name, self.version):
            self.chunk = -1
        is_open = not (self.backend or self.prefill_backend or self.decode_backend)
        if self.shape.compressed is not None:
            self._fill_compressed()
        elif self.shape.index_width:
            if is_open:
                self.backend = "dsa" if self.version >= V0_5_11 else "nsa"
            self.page = 64
            if self.kv == "auto":
                self.kv = "fp8_e4m3" if card.capability[0] >= 10 else "bfloat16"
            self.kv = "bfloat16" if self.kv == "bf16" else self.kv
        elif CLASSES.load().own_draft.has(name, self.version) and self.shape.latent is not None:
            if card.is_sm100 and is_open and self._is_deepseek:
                self.backend = "trtllm_mla"
        elif name == "KimiK25ForConditionalGeneration" and card.is_sm100 and is_open:
            self.backend = "trtllm_mla"
        elif name == "GptOssForCausalLM":
            self._fill_gpt_oss(is_open)
        elif name.startswith("Llama4") and not self.backend:
            self.backend = "trtllm_mha" if card.is_sm100 else "fa3" if card.is_hopper else "triton"
        elif name.startswith("Gemma4") and is_open:
            self.backend = "trtllm_mha" if card.is_sm100 else "triton"
        elif name == "Olmo2ForCausalLM" and not self.backend:
            ampere = card.capability >= (8, 0)
            self.backend = "trtllm_mha" if card.is_sm100 else "fa3" if ampere else "triton"
        elif name.startswith("Exaone") and "Moe" not in name and not self.backend and self.version >= V0_5_18:
            self.backend = "trtllm_mha" if card.is_sm100 else "fa3"
        elif name.startswith("Step3p") and is_open and self.version >= V0_5_11:
            self.backend = "fa4" if card.is_blackwell else "fa3" if card.is_hopper else ""
        elif name.startswith("MiMoV2") and is_open and card.is_sm100 and self.version >= V0_5_21:
            self.backend = "fa4"
        elif name.startswith("MiniMaxM3") and is_open and card.is_sm100:
            self.backend = "trtllm_mha" if self.kv == "fp8_e4m3" else "fa4"
            self.page = self.page or 128
        if self._serves_images_on_hopper and not self.backend and not self.decode_backend:
            self.decode_backend = "flashinfer"
        if self.shape.is_hybrid:
            self._fill_hybrid(is_open)

    @property
    def _is_deepseek(self) -> bool:
        return self.shape.name in DEEPSEEK

    def _fill_compressed(self) -> None:
        """Source: arg_groups/deepseek_v4_hook.py:apply_deepseek_v4_defaults (0.5.13, 0.5.18), model_overrides/
        deepseek_v4.py (0.5.23)."""
        self.backend, self.page = "dsv4", 256
        if not self.is_ratio_given:
            self.swa_ratio = 0.1
        self.kv = "fp8_e4m3" if self.kv == "auto" else self.kv
        self.requests = COMPRESSED_REQUESTS if self.requests is None else self.requests

    def _fill_gpt_oss(self, is_open: bool) -> None:
        if is_open:
            self.backend = "trtllm_mha" if self.card.is_sm100 else "fa3" if self.card.is_hopper else "triton"
        known = ("triton", "trtllm_mha", "fa3", "fa4", "ascend", "intel_amx", "intel_xpu", "aiter")
        used = self.prefill_backend or self.backend, self.decode_backend or self.backend
        if not set(used) <= set(known):
            shown = list(known if self.version >= V0_5_11 else known[:5])
            raise engine_refuses(
                f"GptOssForCausalLM requires one of {shown} attention backend, but got the following backends\n"
                f"- Prefill: {used[0]}\n- Decode: {used[1]}\n",
                "server_args.attention_backend",
                self.backend,
            )
        if "trtllm_mha" in used and self.version < sglang_release("0.5.11"):
            self.has_window_pool = False

    def _fill_hybrid(self, is_open: bool) -> None:
        """Source: server_args.py:ServerArgs._handle_mamba_radix_cache (0.5.9, 0.5.13, 0.5.18), arg_groups/overrides.py:
        _mamba_radix_cache_resolution (0.5.18, 0.5.23)."""
        classes, name = CLASSES.load(), self.shape.name
        takes_buffer = classes.extra_buffer.has(name, self.version)
        if not classes.keeps_prefixes.has(name, self.version):
            self.has_radix = self.has_radix and self.version >= V0_5_18
            return
        if self.version >= V0_5_18:
            self._fill_strategy(takes_buffer)
        self._fill_hybrid_backend(name, is_open)
        if not self.has_radix:
            return
        is_buffered = self.strategy != "no_buffer"
        if is_buffered and not takes_buffer:
            if self.version >= V0_5_18:
                raise engine_refuses(f"extra_buffer is not supported for {name}; use no_buffer.")
            raise engine_refuses(f"mamba extra_buffer is not supported for {name} model")
        if is_buffered:
            return
        if self.version >= V0_5_18:
            self._check_unbuffered()
        elif self.algorithm:
            self.has_radix = False
        else:
            self.is_overlapped = False
            if self.backend == "trtllm_mha":
                self.has_radix, self.is_overlapped = False, True
            elif self.version >= V0_5_11:
                self.page = 1

    def _fill_strategy(self, takes_buffer: bool) -> None:
        if not self.has_radix:
            self.strategy = "no_buffer" if self.strategy == "auto" else self.strategy
        elif self.strategy == "auto":
            wants = self.is_overlapped or (self.page or 1) > 1
            self.strategy = "extra_buffer" if wants and takes_buffer else "no_buffer"
            self.is_overlapped = self.is_overlapped and self.strategy == "extra_buffer"

    def _check_unbuffered(self) -> None:
        """Source: server_args.py:ServerArgs._validate_mamba_no_buffer (0.5.18), arg_groups/mamba_hook.py:
        validate_mamba_no_buffer (0.5.23)."""
        if self.page not in (1, None):
            raise engine_refuses("no_buffer only supports page_size=1.", "block_size", self.page)
        if self.is_overlapped:
            raise engine_refuses(
                "no_buffer do not support overlap schedule. Try to set disable_overlap_schedule=True.",
                "server_args.mamba_radix_cache_strategy",
                self.strategy,
            )
        if self.backend == "trtllm_mha":
            raise engine_refuses(
                "no_buffer do not support trtllm_mha attention backend.", "server_args.attention_backend"
            )

    def _fill_hybrid_backend(self, name: str, is_open: bool) -> None:
        if not self.card.is_sm100 or self.backend:
            return
        if name.startswith(("Qwen3Next", "Qwen3_5", "InternS2")):
            is_plain = self.has_radix and not self.algorithm and not self.asks_for_buffer
            usual = self._default_backend()
            self.backend = "triton"
            if self.version >= V0_5_11 and usual == "trtllm_mha" and not is_plain:
                self.backend = "trtllm_mha"
            if self.version >= V0_5_18:
                self.page = 64 if self.backend == "trtllm_mha" else 1
        elif name.startswith("NemotronH"):
            usual = "trtllm_mha" if self.version >= V0_5_21 else "flashinfer"
            self.backend = usual if is_open else self.backend
        elif name in ("FalconH1ForCausalLM", "JetNemotronForCausalLM", "GraniteMoeHybridForCausalLM"):
            self.backend = "triton"
        elif name.startswith("Lfm2"):
            self.backend = "flashinfer"
