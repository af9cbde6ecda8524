"""LoRA slots on one rank: what `--enable-lora` allocates in addition to every adapted module, whatever is in
the adapters.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.base.kept import kept
from kvcore.base.units import round_up
from kvcore.engine import divided, units_per_rank
from kvcore.engine.protocol import Engine
from kvcore.engine.records import Adaptable, End
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.memory.stages import on_every_stage, stores
from kvcore.memory.weights import Rank, stage_of
from kvcore.model.architecture import Architecture, Experts, Layer, Linear, Split, by_identity
from kvcore.model.config import ModelConfig
from kvcore.model.quantization import Quantization
from kvcore.scenario import Parallel

FUSED_PAIR: Final = 2
"""Merged projections without parts of their own in the checkpoint count by output from three outputs on."""


class Slots(Struct, frozen=True, kw_only=True):
    """How many adapters are stored at once, and how large each may be."""

    max_loras: int
    max_lora_rank: int
    fully_sharded_loras: bool = False
    """Both matrices of an adapter are divided over the ranks, not only one of them."""


@kept
def lora_bytes(
    config: ModelConfig,
    architecture: Architecture,
    quantization: Quantization,
    parallel: Parallel,
    engine: Engine,
    version: Version,
    dtype: str,
    stage: int,
    slots: Slots,
) -> int:
    """Bytes of the adapter slots on a rank of pipeline stage `stage`.

    slots × rank × Σ over adapted modules of (inputs of A + outputs of B) × element bytes. Encoders are not adapted.

    Raises EngineRefusalError for a vocabulary above the limit of that version, and for a model without adapters.

    Source: vllm/lora/layers (0.11.0, 0.32.0), vllm/lora/model_manager.py:_create_lora_modules (0.32.0).
    """
    what = engine.adaptable(config, version)
    if not what.is_supported:
        raise EngineRefusalError(
            "lora-unsupported", field="enable_lora", value=" ".join(config.architectures)
        )
    adapted = Adapted(
        rank=Rank(quantization=quantization, parallel=parallel, dtype_bytes=DTYPE_BYTES[dtype]),
        slots=slots,
        what=what,
        layer_prefix=f"{architecture.layer_prefix}.0.",
    )
    layers = by_identity(stage_of(architecture, parallel, stage))
    elements = sum(adapted.layer_elements(layer) * count for layer, count in layers)
    everywhere = on_every_stage(engine, architecture, parallel, version)
    has_embedding = what.embedding and stores(End.EMBEDDING, architecture, parallel, stage, everywhere)
    has_head = what.head and stores(End.HEAD, architecture, parallel, stage, everywhere)
    if has_head:
        size, limit = architecture.vocab_size, what.limits.vocabulary_limit
        if size > limit:
            raise EngineRefusalError("lora-vocabulary", field="enable_lora", value=size, limit=limit)
        elements += adapted.head_elements(architecture)
    if has_embedding:
        elements += adapted.embedding_elements(architecture)
    tables = int(has_embedding) + int(has_head)
    rows = what.limits.extra_vocabulary * architecture.hidden_size * tables // parallel.tensor_parallel_size
    return (slots.max_loras * elements + rows) * DTYPE_BYTES[dtype]


class Adapted(Struct, frozen=True, kw_only=True):
    """The adapter matrices of one slot on one rank, in elements."""

    rank: Rank
    slots: Slots
    what: Adaptable
    layer_prefix: str
    """The layer whose names stand for all."""

    def embedding_elements(self, architecture: Architecture) -> int:
        """A is vocabulary × rank, B is hidden × rank, whole on every rank; and the rows that adapters could add."""
        extra, hidden = self.what.limits.extra_vocabulary, architecture.hidden_size
        return self.slots.max_lora_rank * (architecture.vocab_size + extra + hidden) + extra * hidden

    def head_elements(self, architecture: Architecture) -> int:
        """A is rank × hidden, B is vocabulary × rank, whole on every rank; and the rows that adapters could add."""
        extra, hidden = self.what.limits.extra_vocabulary, architecture.hidden_size
        vocabulary = round_up(architecture.vocab_size + extra, self.what.limits.vocabulary_multiple)
        return self.slots.max_lora_rank * (vocabulary + hidden) + extra * hidden

    def layer_elements(self, layer: Layer) -> int:
        """All adapted modules of one decoder layer; the router of experts without a gate is left alone.

        Source: vllm/lora/model_manager.py:LoRAModelManager._create_lora_modules (0.32.0).
        """
        experts = [module for module in layer.modules if isinstance(module, Experts)]
        routers = {f"{module.name.rpartition('.')[0]}.gate" for module in experts if not module.gated}
        total = 0
        for module in layer.modules:
            if isinstance(module, Linear) and module.name not in routers:
                total += self.linear_elements(module)
            elif isinstance(module, Experts) and self.what.limits.adapts_experts:
                total += self.experts_elements(module)
        return total

    def linear_elements(self, linear: Linear) -> int:
        """A is rank × inputs for each fused part, B is outputs × rank.

        Column: B divided; row: A divided; fully sharded: the other one too.
        """
        rank, ranks = self.slots.max_lora_rank, self.rank.parallel.tensor_parallel_size
        slices = self.slices(linear)
        shards = ranks if self.slots.fully_sharded_loras else 1
        outputs = sum(output.units * output.width for output in linear.outputs)
        match linear.split:
            case Split.COLUMN:
                out = sum(
                    units_per_rank(output.units, ranks, replicable=output.replicable) * output.width
                    for output in linear.outputs
                )
                return slices * divided(rank, shards) * linear.in_features + rank * out
            case Split.ROW:
                return rank * divided(linear.in_features, ranks) + rank * divided(outputs, shards)
            case _:
                return slices * rank * linear.in_features + rank * outputs

    def slices(self, linear: Linear) -> int:
        """How many A matrices a module has: one for each part that the engine fuses, unless the checkpoint fuses it.

        Source: vllm/lora/layers/column_parallel_linear.py:can_replace_layer of each class (0.32.0).
        """
        name = linear.name.rpartition(".")[2]
        parts = len(linear.outputs)
        if len(linear.parts) > 1:
            return 1 if name in self.what.one_slice else parts
        is_merged = name == "in_proj" or (name == "conv1d" and parts > 1 and linear.outputs[1].replicable)
        return parts if parts > FUSED_PAIR and is_merged else 1

    def experts_elements(self, experts: Experts) -> int:
        """Gate, up and down projections of every expert on this rank, padded as the experts are.

        Source: vllm/lora/layers/fused_moe.py:FusedMoEWithLoRA, FusedMoE3DWithLoRA (0.32).
        """
        rank = self.slots.max_lora_rank
        count, width, sharing = self.rank.experts_share(experts)
        tiles = self.rank.quantization.format_for(experts, self.layer_prefix + experts.name).expert_tiles
        hidden, width = round_up(experts.hidden_size, tiles[0]), round_up(width, tiles[1])
        shards = sharing if self.slots.fully_sharded_loras else 1
        ups = 2 if experts.gated else 1
        up_slices = 1 if self.what.fused_expert_gates else ups
        up = up_slices * divided(rank, shards) * hidden + ups * width * rank
        down = rank * width + divided(hidden, shards) * rank
        return count * (up + down)
