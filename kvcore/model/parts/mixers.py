"""The mixers that keep a state of constant size: Mamba 1 and 2, gated delta nets, short convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvcore.model.architecture import Linear, Module, Output, Parameter, RecurrentState, Split, StateShape
from kvcore.model.config import Section
from kvcore.model.parts.blocks import column, norms, row

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
        linears = (
            convolution(f"{prefix}.conv1d", self.conv_kernel, (Output(units=inner),), bias=self.conv_bias),
            wide_column(
                f"{prefix}.in_proj",
                self.hidden_size,
                (Output(units=inner), Output(units=inner)),
                bias=self.bias,
            ),
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
        return (*(left_alone(linear) for linear in linears), *small)

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
                StateShape(sharded=self.intermediate_size, replicated=self.state_size, is_ssm=True),
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
        rows = self.conv_kernel - 1
        channels = self.intermediate_size + 2 * self.n_groups * self.state_size
        return RecurrentState(
            kind="mamba2",
            heads=self.num_heads,
            replicable_groups=self.n_groups,
            chunk_size=self.chunk_size,
            shapes=(
                StateShape(
                    sharded=channels * rows,
                    replicated=1,
                    sharded_per_speculative_token=channels,
                    sharded_per_group=2 * self.state_size * rows,
                ),
                StateShape(
                    sharded=self.num_heads,
                    replicated=self.head_dim * self.state_size,
                    dtype=self.state_dtype,
                    is_ssm=True,
                ),
            ),
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

    @property
    def channels(self) -> int:
        """Of the convolution."""
        return 2 * self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim

    def modules(self, prefix: str) -> tuple[Module, ...]:
        """Projections, convolution, norm and gate vectors.

        Source: vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:QwenGatedDeltaNetAttention (0.32).
        """
        return (
            convolution(
                f"{prefix}.conv1d", self.conv_kernel, (self.keys, self.keys, self.values), bias=False
            ),
            *self._projections(prefix),
            Parameter(name=f"{prefix}.dt_bias", sharded=self.num_v_heads),
            Parameter(name=f"{prefix}.A_log", sharded=self.num_v_heads, dtype="float32"),
            Parameter(name=f"{prefix}.norm", replicated=self.head_v_dim),
            row(f"{prefix}.out_proj", self.num_v_heads * self.head_v_dim, self.hidden_size),
        )

    def _projections(self, prefix: str) -> tuple[Linear, Linear]:
        if self.is_interleaved:
            total = 2 * (self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim)
            return (
                column(f"{prefix}.in_proj_qkvz", self.hidden_size, total),
                column(f"{prefix}.in_proj_ba", self.hidden_size, 2 * self.num_v_heads),
            )
        heads = Output(units=self.num_v_heads)
        return (
            Linear(
                name=f"{prefix}.in_proj_qkvz",
                in_features=self.hidden_size,
                outputs=(self.keys, self.keys, self.values, self.values),
                split=Split.COLUMN,
                parts=(f"{prefix}.in_proj_qkv", f"{prefix}.in_proj_z"),
            ),
            Linear(
                name=f"{prefix}.in_proj_ba",
                in_features=self.hidden_size,
                outputs=(heads, heads),
                split=Split.REPLICATED if self.replicates_ba else Split.COLUMN,
                parts=(f"{prefix}.in_proj_b", f"{prefix}.in_proj_a"),
            ),
        )

    @property
    def cache(self) -> RecurrentState:
        """Convolution rows and the state matrices.

        Source: vllm/model_executor/layers/mamba/mamba_utils.py:gated_delta_net_state_shape (0.32).
        """
        return RecurrentState(
            kind="gdn_attention",
            heads=self.num_v_heads,
            shapes=(
                StateShape(
                    sharded=self.channels * (self.conv_kernel - 1),
                    replicated=1,
                    sharded_per_speculative_token=self.channels,
                ),
                StateShape(
                    sharded=self.num_v_heads,
                    replicated=self.head_v_dim * self.head_k_dim,
                    dtype=self.state_dtype,
                    is_ssm=True,
                ),
            ),
        )


def short_convolution(prefix: str, channels: int, kernel: int, *, bias: bool) -> tuple[Module, ...]:
    """A gated short convolution between two projections.

    Source: vllm/model_executor/layers/mamba/short_conv.py:ShortConv (0.32).
    """
    third = Output(units=channels)
    return (
        convolution(f"{prefix}.conv", kernel, (third,), bias=bias),
        wide_column(f"{prefix}.in_proj", channels, (third,) * 3, bias=bias),
        row(f"{prefix}.out_proj", channels, channels, bias=bias),
    )


def short_convolution_state(channels: int, kernel: int) -> RecurrentState:
    """The last inputs of a short convolution."""
    rows = StateShape(sharded=channels * (kernel - 1), replicated=1, sharded_per_speculative_token=channels)
    return RecurrentState(kind="short_conv", heads=channels, shapes=(rows,))


def linear_state(heads: int, width: int) -> RecurrentState:
    """Linear attention keeps one matrix a head."""
    shape = StateShape(sharded=heads, replicated=width**2)
    return RecurrentState(kind="linear_attention", heads=heads, shapes=(shape,))


def kda_state(heads: int, width: int, kernel: int) -> RecurrentState:
    """KDA keeps convolution rows of queries, keys and values, and float32 state matrices.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py:kda_state_shape, kda_state_dtype (0.32).
    """
    channels = 3 * heads * width
    rows = StateShape(sharded=channels * (kernel - 1), replicated=1, sharded_per_speculative_token=channels)
    state = StateShape(sharded=heads, replicated=width**2, dtype="float32", is_ssm=True)
    return RecurrentState(kind="kda", heads=heads, shapes=(rows, state))


def convolution(name: str, kernel: int, outputs: tuple[Output, ...], *, bias: bool) -> Linear:
    """A depthwise convolution, whose channels are divided; never quantized."""
    return left_alone(wide_column(name, kernel, outputs, bias=bias))


def wide_column(name: str, in_features: int, outputs: tuple[Output, ...], *, bias: bool = False) -> Linear:
    """A projection of several parts whose rows are divided."""
    return Linear(name=name, in_features=in_features, outputs=outputs, split=Split.COLUMN, bias=bias)


def left_alone(linear: Linear) -> Linear:
    """The same layer, always in the model's dtype."""
    return Linear(
        name=linear.name,
        in_features=linear.in_features,
        outputs=linear.outputs,
        split=linear.split,
        bias=linear.bias,
        quantizable=False,
    )
