"""The mixers that keep a state of constant size: Mamba 1 and 2, gated delta nets, KDA, short convolutions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvcore.model.architecture import (
    Layer,
    Linear,
    Module,
    Output,
    Parameter,
    RecurrentState,
    Split,
    StateShape,
)
from kvcore.model.config import Section
from kvcore.model.parts.blocks import column, norm, norms, replicated, row

MAX_CONV_TAPS: Final = 1024


def read_conv_kernel(section: Section, name: str) -> int:
    """Taps of a mixer's convolution over tokens: at least two, because one tap would leave no rows to keep.

    Source: vllm/model_executor/layers/mamba/ops/causal_conv1d.py:_causal_conv1d_fwd_kernel, which has two to five.
    """
    return section.integer(name, minimum=2, maximum=MAX_CONV_TAPS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mamba1:
    """The sizes of a Mamba 1 mixer."""

    hidden_size: int
    intermediate_size: int
    state_size: int
    conv_kernel: int
    time_step_rank: int
    conv_bias: bool = True
    bias: bool = False
    has_norms: bool = False
    """Norms with weights on the time step, B and C (Jamba)."""

    def modules(self, prefix: str) -> tuple[Module, ...]:
        """Projections, convolution and state matrices; the engine never quantizes them.

        Source: vllm/model_executor/layers/mamba/mamba_mixer.py:MambaMixer (0.32).
        """
        inner, rank, state = self.intermediate_size, self.time_step_rank, self.state_size
        whole = Output(units=inner)
        linears = (
            convolution(f"{prefix}.conv1d", self.conv_kernel, (whole,), bias=self.conv_bias),
            wide_column(f"{prefix}.in_proj", self.hidden_size, (whole, whole), bias=self.bias),
            row(f"{prefix}.x_proj", inner, rank + 2 * state),
            column(f"{prefix}.dt_proj", rank, inner, bias=True),
            row(f"{prefix}.out_proj", inner, self.hidden_size, bias=self.bias),
        )
        small: tuple[Module, ...] = (
            Parameter(name=f"{prefix}.A", sharded=inner, replicated=state, dtype="float32"),
            Parameter(name=f"{prefix}.D", sharded=inner),
        )
        if self.has_norms:
            small += norms(rank, f"{prefix}.dt_layernorm")
            small += norms(state, f"{prefix}.b_layernorm", f"{prefix}.c_layernorm")
        return (*(replace(linear, quantizable=False) for linear in linears), *small)

    @property
    def cache(self) -> RecurrentState:
        """Convolution rows and the state.

        Source: vllm/model_executor/layers/mamba/mamba_utils.py:mamba1_state_shape (0.32).
        """
        return RecurrentState(
            kind="mamba1",
            heads=self.intermediate_size,
            shapes=(
                StateShape(sharded=self.intermediate_size * (self.conv_kernel - 1), replicated=1),
                matrices(self.intermediate_size, self.state_size),
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Mamba2:
    """The sizes of a Mamba 2 mixer."""

    hidden_size: int
    num_heads: int
    head_dim: int
    n_groups: int
    state_size: int
    conv_kernel: int
    conv_bias: bool = True
    bias: bool = False
    has_norm: bool = True
    state_dtype: str = ""
    chunk_size: int = 2048

    @property
    def intermediate_size(self) -> int:
        """Elements of all heads."""
        return self.num_heads * self.head_dim

    def modules(self, prefix: str) -> tuple[Module, ...]:
        """Projections, convolution and state vectors.

        Source: vllm/model_executor/layers/mamba/mamba_mixer2.py:MambaMixer2 (0.32).
        """
        inner = Output(units=self.num_heads, width=self.head_dim)
        groups = Output(units=self.n_groups, width=self.state_size, replicable=True)
        steps = Output(units=self.num_heads)
        modules: list[Module] = [
            convolution(f"{prefix}.conv1d", self.conv_kernel, (inner, groups, groups), bias=self.conv_bias),
            wide_column(
                f"{prefix}.in_proj", self.hidden_size, (inner, inner, groups, groups, steps), bias=self.bias
            ),
            Parameter(name=f"{prefix}.A", sharded=self.num_heads, dtype="float32"),
            Parameter(name=f"{prefix}.D", sharded=self.num_heads),
            Parameter(name=f"{prefix}.dt_bias", sharded=self.num_heads),
            row(f"{prefix}.out_proj", self.intermediate_size, self.hidden_size, bias=self.bias),
        ]
        if self.has_norm:
            modules.append(Parameter(name=f"{prefix}.norm", sharded=self.intermediate_size))
        return tuple(modules)

    @property
    def cache(self) -> RecurrentState:
        """Convolution rows, with groups that are replicated when they do not divide, and the state.

        Source: vllm/model_executor/layers/mamba/mamba_utils.py:mamba2_state_shape (0.32).
        """
        channels = self.intermediate_size + 2 * self.n_groups * self.state_size
        per_group = 2 * self.state_size * (self.conv_kernel - 1)
        rows = replace(conv_rows(channels, self.conv_kernel), sharded_per_group=per_group)
        return RecurrentState(
            kind="mamba2",
            heads=self.num_heads,
            replicable_groups=self.n_groups,
            chunk_size=self.chunk_size,
            shapes=(rows, matrices(self.num_heads, self.head_dim * self.state_size, self.state_dtype)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaNet:
    """The sizes of a gated delta net."""

    hidden_size: int
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_kernel: int
    state_dtype: str = ""
    is_interleaved: bool = False
    """Queries, keys, values and gates lie in one tensor of the checkpoint (Qwen3-Next)."""
    replicates_ba: bool = False
    """Every rank stores the whole b and a projections: their slices are too narrow for Marlin."""

    @property
    def keys(self) -> Output:
        """Rows of queries, or of keys."""
        return Output(units=self.num_k_heads, width=self.head_k_dim)

    @property
    def values(self) -> Output:
        """Rows of values, or of gates."""
        return Output(units=self.num_v_heads, width=self.head_v_dim)

    def modules(self, prefix: str) -> tuple[Module, ...]:
        """Projections, convolution, norm and gate vectors.

        Source: vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:QwenGatedDeltaNetAttention (0.32).
        """
        parts = (self.keys, self.keys, self.values)
        return (
            convolution(f"{prefix}.conv1d", self.conv_kernel, parts, bias=False),
            *self._projections(prefix),
            Parameter(name=f"{prefix}.dt_bias", sharded=self.num_v_heads),
            Parameter(name=f"{prefix}.A_log", sharded=self.num_v_heads, dtype="float32"),
            norm(f"{prefix}.norm", self.head_v_dim),
            row(f"{prefix}.out_proj", self.num_v_heads * self.head_v_dim, self.hidden_size),
        )

    def _projections(self, prefix: str) -> tuple[Linear, Linear]:
        qkvz, ba, hidden = f"{prefix}.in_proj_qkvz", f"{prefix}.in_proj_ba", self.hidden_size
        if self.is_interleaved:
            total = 2 * (self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim)
            return column(qkvz, hidden, total), column(ba, hidden, 2 * self.num_v_heads)
        wide = (self.keys, self.keys, self.values, self.values)
        gates = (Output(units=self.num_v_heads),) * 2
        pair = wide_column(ba, hidden, gates, (f"{prefix}.in_proj_b", f"{prefix}.in_proj_a"))
        return (
            wide_column(qkvz, hidden, wide, (f"{prefix}.in_proj_qkv", f"{prefix}.in_proj_z")),
            replace(pair, split=Split.REPLICATED) if self.replicates_ba else pair,
        )

    @property
    def cache(self) -> RecurrentState:
        """Convolution rows and the state matrices.

        Source: vllm/model_executor/layers/mamba/mamba_utils.py:gated_delta_net_state_shape (0.32).
        """
        channels = 2 * self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim
        states = matrices(self.num_v_heads, self.head_v_dim * self.head_k_dim, self.state_dtype)
        shapes = (conv_rows(channels, self.conv_kernel), states)
        return RecurrentState(kind="gdn_attention", heads=self.num_v_heads, shapes=shapes)


def short_convolution(prefix: str, channels: int, kernel: int, *, bias: bool) -> Layer:
    """A gated short convolution between two projections, and its last inputs.

    Source: vllm/model_executor/layers/mamba/short_conv.py:ShortConv (0.32).
    """
    third = Output(units=channels)
    modules = (
        convolution(f"{prefix}.conv", kernel, (third,), bias=bias),
        wide_column(f"{prefix}.in_proj", channels, (third,) * 3, bias=bias),
        row(f"{prefix}.out_proj", channels, channels, bias=bias),
    )
    state = RecurrentState(kind="short_conv", heads=channels, shapes=(conv_rows(channels, kernel),))
    return Layer(modules=modules, caches=(state,))


KDA_ROWS: Final = 16
"""Source: vllm/models/kimi_k3/nvidia/kda.py:KimiK3DeltaAttention (0.32), for weights in 16 bits."""


def kda(section: Section, hidden: int, prefix: str = "self_attn", *, is_fused: bool = False) -> Layer:
    """A delta net with a gate for each channel: projections, three float32 convolutions, decay and output gates of
    low rank.

    Where it is fused the projections of the input are one, the output gate is as wide as the values, and each rank
    stores the way down to the decay whole.

    Source: vllm/model_executor/layers/kda.py (0.19); vllm/models/kimi_k3/nvidia/kda.py:KimiK3DeltaAttention (0.32).
    """
    heads, width = section.integer("num_heads"), section.integer("head_dim")
    kernel = read_conv_kernel(section, "short_conv_kernel_size")
    each, steps = Output(units=heads, width=width), Output(units=heads)
    names = [f"{prefix}.{name}_proj" for name in ("q", "k", "v", "g", "f_a", "b")]
    start: tuple[Linear, ...] = tuple(wide_column(name, hidden, (each,)) for name in names[:3])
    gates: tuple[Linear, ...] = (wide_column(f"{prefix}.f_b_proj", width, (each,)),)
    if is_fused:
        outputs = (each, each, each, each, Output(units=1, width=width, replicable=True), steps)
        fused = wide_column(f"{prefix}.in_proj_qkvgfab", hidden, outputs, tuple(names))
        start = (replace(fused, row_multiple=KDA_ROWS),)
    else:
        gates = (
            replicated(f"{prefix}.f_a_proj", hidden, width),
            *gates,
            column(f"{prefix}.b_proj", hidden, heads),
            replicated(f"{prefix}.g_a_proj", hidden, width),
            wide_column(f"{prefix}.g_b_proj", width, (each,)),
        )
    rows = (convolution(f"{prefix}.{part}_conv1d", kernel, (each,), bias=False) for part in "qkv")
    modules: tuple[Module, ...] = (
        *start,
        *(replace(linear, dtype="float32") for linear in rows),
        *gates,
        Parameter(name=f"{prefix}.dt_bias", sharded=heads * width, dtype="float32"),
        Parameter(name=f"{prefix}.A_log", sharded=heads, dtype="float32"),
        norm(f"{prefix}.o_norm", width),
        row(f"{prefix}.o_proj", heads * width, hidden),
    )
    return Layer(modules=modules, caches=(kda_state(heads, width, kernel),))


def kda_state(heads: int, width: int, kernel: int) -> RecurrentState:
    """KDA keeps convolution rows of queries, keys and values, and float32 state matrices.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py:kda_state_shape, kda_state_dtype (0.32).
    """
    shapes = (conv_rows(3 * heads * width, kernel), matrices(heads, width**2, "float32"))
    return RecurrentState(kind="kda", heads=heads, shapes=shapes)


def linear_state(heads: int, width: int) -> RecurrentState:
    """Linear attention keeps one matrix a head."""
    shape = StateShape(sharded=heads, replicated=width**2)
    return RecurrentState(kind="linear_attention", heads=heads, shapes=(shape,))


def conv_rows(channels: int, kernel: int) -> StateShape:
    """The rows that a convolution keeps; one more for each speculative token."""
    rows = channels * (kernel - 1)
    return StateShape(sharded=rows, replicated=1, sharded_per_speculative_token=channels)


def matrices(heads: int, elements: int, dtype: str = "") -> StateShape:
    """The state itself: one matrix a head."""
    return StateShape(sharded=heads, replicated=elements, dtype=dtype, is_ssm=True)


def convolution(name: str, kernel: int, outputs: tuple[Output, ...], *, bias: bool) -> Linear:
    """A depthwise convolution, whose channels are divided; never quantized."""
    return replace(wide_column(name, kernel, outputs, bias=bias), quantizable=False)


def wide_column(
    name: str,
    in_features: int,
    outputs: tuple[Output, ...],
    parts: tuple[str, ...] = (),
    *,
    bias: bool = False,
) -> Linear:
    """A projection of several parts whose rows are divided."""
    return Linear(
        name=name, in_features=in_features, outputs=outputs, split=Split.COLUMN, bias=bias, parts=parts
    )
