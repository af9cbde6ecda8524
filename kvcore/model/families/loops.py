"""Decoders that run their layers several times for a token: one set of weights, a cache for each time.

Checked against vLLM's own model classes.
"""

from __future__ import annotations

from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks

MAX_LOOPS: Final = 64


def repetitions(section: Section, key: str, default: int) -> int:
    """How often something runs, by `key`; at most MAX_LOOPS times."""
    return section.integer(key, default, maximum=MAX_LOOPS)


def read_loop_coder(config: ModelConfig) -> arch.Architecture:
    """IQuest-Coder Loop: every further time a layer looks at a short window too, mixed in by a gate for each head.

    Source: vllm/model_executor/models/iquest_loopcoder.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    inner = section.integer("intermediate_size")
    further = repetitions(section, "loop_num", 2) - 1
    local = blocks.cache_of(heads, section.integer("loop_window_size", 64))
    modules: tuple[arch.Module, ...] = (
        *blocks.attention(heads),
        *blocks.gated_mlp(heads.hidden_size, inner),
        *blocks.norms(heads.hidden_size, *blocks.TWO_NORMS),
        blocks.column("gate_projections.gate_proj", heads.head_dim, heads.num_heads, bias=True),
    )
    layer = arch.Layer(modules=modules, caches=(blocks.cache_of(heads), *(local,) * further))
    return blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=inner,
        tied=blocks.is_tied(config, section, False),
    )


def read_ouro(config: ModelConfig) -> arch.Architecture:
    """Ouro: four norms a layer, and a gate behind the last that may end a token early.

    Source: vllm/model_executor/models/ouro.py (0.26.0, the last with it).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden, inner = heads.hidden_size, section.integer("intermediate_size")
    modules: tuple[arch.Module, ...] = (
        *blocks.attention(heads),
        *blocks.gated_mlp(hidden, inner),
        *blocks.norms(hidden, *blocks.TWO_NORMS, *(f"{name}_2" for name in blocks.TWO_NORMS)),
    )
    layer = arch.Layer(
        modules=modules, caches=(blocks.cache_of(heads),) * repetitions(section, "total_ut_steps", 4)
    )
    tied = blocks.is_tied(config, section, False)
    gate = blocks.row("model.early_exit_gate", hidden, 1, bias=True)
    return blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=inner,
        last=(blocks.norm("model.norm", hidden), gate, *(() if tied else (blocks.head(section),))),
        tied=tied,
    )


def read_hrm_text(config: ModelConfig) -> arch.Architecture:
    """HRM-Text: a low stack that runs several times for each time that a high one does; gated attention, bare norms.

    Source: vllm/model_executor/models/hrm_text.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, "")
    inner = section.integer("intermediate_size")
    bias = section.boolean("attention_bias", False)
    modules: tuple[arch.Module, ...] = (
        gated_attention(heads, bias=bias),
        blocks.row("self_attn.o_proj", heads.num_heads * heads.head_dim, heads.hidden_size, bias=bias),
        *blocks.gated_mlp(heads.hidden_size, inner, bias=section.boolean("mlp_bias", False)),
    )
    high = repetitions(section, "H_cycles", 2)
    low = high * repetitions(section, "L_cycles", 3)
    stack = section.layers("num_layers_per_stack")
    kinds = (arch.Layer(modules=modules, caches=(blocks.cache_of(heads),) * times) for times in (low, high))
    tied = blocks.is_tied(config, section, False)
    return blocks.decoder(
        config,
        heads=heads,
        layers=tuple(layer for layer in kinds for _ in range(stack)),
        intermediate_size=inner,
        first=(
            blocks.embedding(section),
            arch.Parameter(name="model.z_L_init", replicated=heads.hidden_size),
        ),
        last=() if tied else (blocks.head(section),),
        tied=tied,
    )


def gated_attention(heads: blocks.Heads, *, bias: bool) -> arch.Linear:
    """Gate, queries, keys and values in one projection, each as wide as all heads."""
    return arch.Linear(
        name="self_attn.gqkv_proj",
        in_features=heads.hidden_size,
        outputs=(arch.Output(units=heads.num_heads, width=heads.head_dim),) * 4,
        split=arch.Split.COLUMN,
        bias=bias,
        parts=("self_attn.gqkv_proj",),
    )


READERS: Final = blocks.named(
    (read_loop_coder, "IQuestLoopCoderForCausalLM", "iquestloopcoder"),
    (read_ouro, "OuroForCausalLM", "ouro"),
    (read_hrm_text, "HrmTextForCausalLM", "hrm_text"),
)
