"""Storage formats: how many bytes a module takes on a rank, and which modules stay in the model's dtype."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kvcore.errors import ModelError
from kvcore.model.architecture import Experts, Linear, VocabEmbedding
from kvcore.model.config import ModelConfig, Section
from kvcore.units import ceil_div

SCALE_BYTES: Final = 4
"""Scales are float32."""

UNQUANTIZED: Final = "unquantized"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Quantization:
    """How the linear layers of a checkpoint are stored.

    Compared by identity: `read_quantization` gives the same object for the same config.
    """

    method: str = UNQUANTIZED
    """The engine's name of the method."""
    block: tuple[int, int] | None = None
    """Rows and columns that share one scale (block fp8)."""
    activation_scales: bool = False
    """Whether static activation scales are stored."""
    ignored: tuple[str, ...] = ()
    """Names of modules, or of their parents, that stay in the model's dtype."""
    depends_on_layer: bool = False
    """Whether a module's format depends on the index of its layer; then a fold must ask for every layer."""

    def is_quantized(self, name: str, parts: tuple[str, ...] = ()) -> bool:
        """Whether the module `name` (full, with the layer's index) is stored in this format."""
        if self.method == UNQUANTIZED:
            return False
        return not any(
            ignored == candidate or candidate.startswith(f"{ignored}.")
            for ignored in self.ignored
            for candidate in (name, *parts)
        )

    def linear_bytes(
        self, linear: Linear, rank_in: int, rank_out_parts: tuple[int, ...], dtype_bytes: int, name: str
    ) -> int:
        """Bytes of a linear layer's weight and scales on one rank, bias apart.

        `rank_in` input features and `rank_out_parts` output features of each fused part are those of the rank.

        Source: vllm/model_executor/layers/quantization/fp8.py:Fp8LinearMethod.create_weights (0.32).
        """
        rank_out = sum(rank_out_parts)
        if not linear.quantizable or not self.is_quantized(name):
            return rank_out * rank_in * dtype_bytes
        if self.block is not None:
            rows, columns = self.block
            return rank_out * rank_in + SCALE_BYTES * ceil_div(rank_out, rows) * ceil_div(rank_in, columns)
        scales = len(rank_out_parts) * (2 if self.activation_scales else 1)
        return rank_out * rank_in + SCALE_BYTES * scales

    def experts_bytes(
        self,
        experts: Experts,
        rank_experts: int,
        rank_intermediate: int,
        dtype_bytes: int,
        name: str,
        ranks_per_expert: int = 1,
    ) -> int:
        """Bytes of the routed experts on one rank, biases and scales with them.

        `rank_experts` of `rank_intermediate` features each, out of `experts.num_experts`; `ranks_per_expert` share
        one.

        Source: vllm/model_executor/layers/quantization/fp8.py:Fp8MoEMethod.create_weights (0.32).
        """
        hidden = experts.hidden_size
        up_parts = 2 if experts.gated else 1
        elements = (up_parts + 1) * rank_intermediate * hidden
        biases = (up_parts * rank_intermediate + hidden) * dtype_bytes if experts.bias else 0
        if not experts.quantizable or not self.is_quantized(name):
            return rank_experts * (elements * dtype_bytes + biases)
        if self.block is not None:
            rows, columns = self.block
            up = up_parts * ceil_div(rank_intermediate, rows) * ceil_div(hidden, columns)
            down = ceil_div(hidden, rows) * ceil_div(rank_intermediate, columns)
            return rank_experts * (elements + biases + SCALE_BYTES * (up + down))
        scales = (up_parts + 1) + (2 if self.activation_scales else 0)
        return rank_experts * (elements + biases + SCALE_BYTES * scales)

    def experts_loading_bytes(
        self,
        experts: Experts,
        rank_experts: int,
        rank_intermediate: int,
        dtype_bytes: int,
        name: str,
        ranks_per_expert: int = 1,
    ) -> int:
        """Bytes that post-processing of the routed experts adds for good on one rank (negative: drops)."""
        return 0

    def vocab_bytes(self, table: VocabEmbedding, rank_rows: int, dtype_bytes: int, name: str) -> int:
        """Bytes of an embedding or lm_head on one rank, bias apart: this format leaves both alone."""
        return rank_rows * table.embedding_dim * dtype_bytes


@lru_cache(maxsize=4096)
def read_quantization(config: ModelConfig, requested: str | None) -> Quantization:
    """The storage format of a checkpoint, or the one that `--quantization` asks for.

    Raises ModelError `unknown-quantization`.

    Example:
        >>> read_quantization(ModelConfig.from_mapping({"model_type": "llama"}), None).method
        'unquantized'
    """
    written = config.root.optional_section("quantization_config") or config.language.optional_section(
        "quantization_config"
    )
    method = written.string("quant_method", "") if written else ""
    if not method and requested is None:
        return Quantization()
    if (method or requested) != "fp8":
        raise ModelError(
            "unknown-quantization",
            field="config.quantization_config.quant_method",
            method=method or str(requested),
        )
    return read_fp8(written) if written else Quantization(method="fp8")


def read_fp8(section: Section) -> Quantization:
    """Block-wise or per-tensor fp8 as DeepSeek and Qwen publish it."""
    block = section.integers("weight_block_size", minimum=1)
    if block is not None and len(block) != 2:
        raise section.invalid("weight_block_size", block, "expected two numbers")
    ignored = section.strings("modules_to_not_convert") or section.strings("ignored_layers") or ()
    return Quantization(
        method="fp8",
        block=(block[0], block[1]) if block else None,
        activation_scales=section.string("activation_scheme", "dynamic") == "static",
        ignored=tuple(ignored),
        depends_on_layer=any(character.isdigit() for name in ignored for character in name),
    )
