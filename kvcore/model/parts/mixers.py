"""The mixers that keep a state of constant size: Mamba 1 and 2, gated delta nets, KDA, short convolutions."""

from collections.abc import Mapping
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.toml_files import file_text
from kvcore.base.units import ceil_div
from kvcore.model import architecture as arch
from kvcore.model.caches import RecurrentState, StateShape
from kvcore.model.config import Section
from kvcore.model.parts.blocks import column, norm, norms, replicated, row
from kvcore.tables import Record, convert, read_toml

Linears: TypeAlias = tuple[arch.Linear, ...]

MAX_CONV_TAPS: Final = 1024


def read_conv_kernel(section: Section, name: str) -> int:
    """Taps of a mixer's convolution over tokens: at least two, because one tap would leave no rows to keep.

    Source: vllm/model_executor/layers/mamba/ops/causal_conv1d.py:_causal_conv1d_fwd_kernel, which has two to five.
    """
    return section.integer(name, minimum=2, maximum=MAX_CONV_TAPS)


class MambaKeys(Record, frozen=True, kw_only=True):
    """Keys for the sizes of a Mamba mixer; mixers.toml has them by model."""

    state: tuple[str, ...]
    conv: tuple[str, ...]
    conv_bias: str
    bias: str
    rank: str = ""
    """Key of the rank of the time step's projection (Mamba 1)."""
    groups: str = ""
    usual_groups: int | None = None
    state_dtype: str = ""
    """The key of the state's dtype, float32 without it; "" where the config has no such key."""
    chunk: str = "chunk_size"


ROWS: Final = "mixers.toml"
MAMBA: Final[Mapping[str, MambaKeys]] = convert(
    read_toml(file_text(__package__, ROWS), ROWS), Mapping[str, MambaKeys], ROWS
)
"""Spellings by model."""


def given(section: Section, names: tuple[str, ...]) -> str:
    """The first name of a size that the file has, else the last."""
    return next((name for name in names if section.has(name)), names[-1])


def mamba1(
    section: Section, model: str, prefix: str, hidden: int, inner: int, *, has_norms: bool = False
) -> arch.Layer:
    """A Mamba 1 mixer, `inner` elements wide: projections, convolution and state matrices, never quantized.

    `has_norms`: with weights, on the time step, B and C (Jamba). A rank `auto` is a sixteenth of the hidden size.

    Source: vllm/model_executor/layers/mamba/mamba_mixer.py:MambaMixer, mamba_utils.py:mamba1_state_shape (0.32).
    """
    keys = MAMBA[model]
    state = section.integer(given(section, keys.state))
    kernel = read_conv_kernel(section, given(section, keys.conv))
    rank = ceil_div(hidden, 16) if section.get(keys.rank) == "auto" else section.integer(keys.rank)
    conv_bias, bias = section.boolean(keys.conv_bias, True), section.boolean(keys.bias, False)
    whole = arch.Output(units=inner)
    linears = (
        convolution(f"{prefix}.conv1d", kernel, (whole,), bias=conv_bias),
        wide_column(f"{prefix}.in_proj", hidden, (whole, whole), bias=bias),
        row(f"{prefix}.x_proj", inner, rank + 2 * state),
        column(f"{prefix}.dt_proj", rank, inner, bias=True),
        row(f"{prefix}.out_proj", inner, hidden, bias=bias),
    )
    small: tuple[arch.Module, ...] = (
        arch.Parameter(name=f"{prefix}.A", sharded=inner, replicated=state, dtype="float32"),
        arch.Parameter(name=f"{prefix}.D", sharded=inner),
    )
    if has_norms:
        small += norms(rank, f"{prefix}.dt_layernorm")
        small += norms(state, f"{prefix}.b_layernorm", f"{prefix}.c_layernorm")
    shapes = (StateShape(sharded=inner * (kernel - 1), replicated=1), matrices(inner, state))
    return arch.Layer(
        modules=(*(replace(linear, quantizable=False) for linear in linears), *small),
        caches=(RecurrentState(kind="mamba1", heads=inner, shapes=shapes),),
    )


def mamba2(
    section: Section, model: str, prefix: str, hidden: int, heads: int, width: int, *, has_norm: bool = True
) -> arch.Layer:
    """A Mamba 2 mixer of `heads` of `width`: projections, convolution and state vectors.

    It keeps convolution rows, with groups that are replicated when they do not divide, and the state.

    Source: vllm/model_executor/layers/mamba/mamba_mixer2.py:MambaMixer2, mamba_utils.py:mamba2_state_shape (0.32).
    """
    keys = MAMBA[model]
    groups = section.integer(keys.groups, keys.usual_groups)
    state = section.integer(given(section, keys.state))
    kernel = read_conv_kernel(section, given(section, keys.conv))
    conv_bias, bias = section.boolean(keys.conv_bias, True), section.boolean(keys.bias, False)
    dtype = section.string(keys.state_dtype, "float32") if keys.state_dtype else ""
    inner, steps = arch.Output(units=heads, width=width), arch.Output(units=heads)
    shared = arch.Output(units=groups, width=state, replicable=True)
    modules: list[arch.Module] = [
        convolution(f"{prefix}.conv1d", kernel, (inner, shared, shared), bias=conv_bias),
        wide_column(f"{prefix}.in_proj", hidden, (inner, inner, shared, shared, steps), bias=bias),
        arch.Parameter(name=f"{prefix}.A", sharded=heads, dtype="float32"),
        arch.Parameter(name=f"{prefix}.D", sharded=heads),
        arch.Parameter(name=f"{prefix}.dt_bias", sharded=heads),
        row(f"{prefix}.out_proj", heads * width, hidden, bias=bias),
    ]
    if has_norm:
        modules.append(arch.Parameter(name=f"{prefix}.norm", sharded=heads * width))
    rows = conv_rows(heads * width + 2 * groups * state, kernel)
    rows = replace(rows, sharded_per_group=2 * state * (kernel - 1))
    kept = RecurrentState(
        kind="mamba2",
        heads=heads,
        replicable_groups=groups,
        chunk_size=section.integer(keys.chunk, 2048, minimum=1),
        shapes=(rows, matrices(heads, width * state, dtype)),
    )
    return arch.Layer(modules=tuple(modules), caches=(kept,))


class DeltaNet(Struct, frozen=True, kw_only=True):
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
    exports_states: bool = True
    """Its class exports states inside a prefill (QwenGatedDeltaNetAttention)."""

    @property
    def keys(self) -> arch.Output:
        """Rows of queries, or of keys."""
        return arch.Output(units=self.num_k_heads, width=self.head_k_dim)

    @property
    def values(self) -> arch.Output:
        """Rows of values, or of gates."""
        return arch.Output(units=self.num_v_heads, width=self.head_v_dim)

    def modules(self, prefix: str) -> tuple[arch.Module, ...]:
        """Projections, convolution, norm and gate vectors.

        Source: vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:QwenGatedDeltaNetAttention (0.32).
        """
        parts = (self.keys, self.keys, self.values)
        return (
            convolution(f"{prefix}.conv1d", self.conv_kernel, parts, bias=False),
            *self._projections(prefix),
            arch.Parameter(name=f"{prefix}.dt_bias", sharded=self.num_v_heads),
            arch.Parameter(name=f"{prefix}.A_log", sharded=self.num_v_heads, dtype="float32"),
            norm(f"{prefix}.norm", self.head_v_dim),
            row(f"{prefix}.out_proj", self.num_v_heads * self.head_v_dim, self.hidden_size),
        )

    def _projections(self, prefix: str) -> tuple[arch.Linear, arch.Linear]:
        qkvz, ba, hidden = f"{prefix}.in_proj_qkvz", f"{prefix}.in_proj_ba", self.hidden_size
        if self.is_interleaved:
            total = 2 * (self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim)
            return column(qkvz, hidden, total), column(ba, hidden, 2 * self.num_v_heads)
        wide = (self.keys, self.keys, self.values, self.values)
        gates = (arch.Output(units=self.num_v_heads),) * 2
        pair = wide_column(ba, hidden, gates, (f"{prefix}.in_proj_b", f"{prefix}.in_proj_a"))
        return (
            wide_column(qkvz, hidden, wide, (f"{prefix}.in_proj_qkv", f"{prefix}.in_proj_z")),
            replace(pair, split=arch.Split.REPLICATED) if self.replicates_ba else pair,
        )

    @property
    def cache(self) -> RecurrentState:
        """Convolution rows and the state matrices.

        Source: vllm/model_executor/layers/mamba/mamba_utils.py:gated_delta_net_state_shape (0.32).
        """
        channels = 2 * self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim
        states = matrices(self.num_v_heads, self.head_v_dim * self.head_k_dim, self.state_dtype)
        shapes = (conv_rows(channels, self.conv_kernel), states)
        return RecurrentState(
            kind="gdn_attention",
            heads=self.num_v_heads,
            shapes=shapes,
            exported_head_size=self.head_k_dim if self.exports_states else 0,
        )


def short_convolution(prefix: str, channels: int, kernel: int, *, bias: bool) -> arch.Layer:
    """A gated short convolution between two projections, and its last inputs.

    Source: vllm/model_executor/layers/mamba/short_conv.py:ShortConv (0.32).
    """
    third = arch.Output(units=channels)
    modules = (
        convolution(f"{prefix}.conv", kernel, (third,), bias=bias),
        wide_column(f"{prefix}.in_proj", channels, (third,) * 3, bias=bias),
        row(f"{prefix}.out_proj", channels, channels, bias=bias),
    )
    state = RecurrentState(kind="short_conv", heads=channels, shapes=(conv_rows(channels, kernel),))
    return arch.Layer(modules=modules, caches=(state,))


KDA_ROWS: Final = 16
"""Source: vllm/models/kimi_k3/nvidia/kda.py:KimiK3DeltaAttention (0.32), for weights in 16 bits."""


def kda(section: Section, hidden: int, *, is_fused: bool = False) -> arch.Layer:
    """A delta net with a gate for each channel: projections, three float32 convolutions, decay and output gates of
    low rank.

    Where it is fused the projections of the input are one, the output gate is as wide as the values, and each rank
    stores the way down to the decay whole.

    Source: vllm/model_executor/layers/kda.py (0.19); vllm/models/kimi_k3/nvidia/kda.py:KimiK3DeltaAttention (0.32).
    """
    prefix, heads, width = "self_attn", section.integer("num_heads"), section.integer("head_dim")
    kernel = read_conv_kernel(section, "short_conv_kernel_size")
    each, steps = arch.Output(units=heads, width=width), arch.Output(units=heads)
    names = [f"{prefix}.{name}_proj" for name in ("q", "k", "v", "g", "f_a", "b")]
    start: Linears = tuple(wide_column(name, hidden, (each,)) for name in names[:3])
    gates: Linears = (wide_column(f"{prefix}.f_b_proj", width, (each,)),)
    if is_fused:
        outputs = (each, each, each, each, arch.Output(units=1, width=width, replicable=True), steps)
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
    return kda_layer(prefix, hidden, (heads, width), kernel, start, gates)


def kda_layer(
    prefix: str, hidden: int, heads: tuple[int, int], kernel: int, start: Linears, gates: Linears
) -> arch.Layer:
    """Modules between and behind the projections of KDA: float32 convolutions, decay and norm. It keeps rows of
    the convolutions and float32 state matrices.

    `heads`: their number and their width.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py:kda_state_shape, kda_state_dtype (0.32).
    """
    count, width = heads
    each = arch.Output(units=count, width=width)
    rows = (convolution(f"{prefix}.{part}_conv1d", kernel, (each,), bias=False) for part in "qkv")
    modules: tuple[arch.Module, ...] = (
        *start,
        *(replace(linear, dtype="float32") for linear in rows),
        *gates,
        arch.Parameter(name=f"{prefix}.dt_bias", sharded=count * width, dtype="float32"),
        arch.Parameter(name=f"{prefix}.A_log", sharded=count, dtype="float32"),
        norm(f"{prefix}.o_norm", width),
        row(f"{prefix}.o_proj", count * width, hidden),
    )
    shapes = (conv_rows(3 * count * width, kernel), matrices(count, width**2, "float32"))
    state = RecurrentState(kind="kda", heads=count, shapes=shapes)
    return arch.Layer(modules=modules, caches=(state,))


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


def convolution(name: str, kernel: int, outputs: tuple[arch.Output, ...], *, bias: bool) -> arch.Linear:
    """A depthwise convolution, whose channels are divided; never quantized."""
    return replace(wide_column(name, kernel, outputs, bias=bias), quantizable=False)


def wide_column(
    name: str,
    in_features: int,
    outputs: tuple[arch.Output, ...],
    parts: tuple[str, ...] = (),
    *,
    bias: bool = False,
) -> arch.Linear:
    """A projection of several parts whose rows are divided."""
    return arch.Linear(
        name=name, in_features=in_features, outputs=outputs, split=arch.Split.COLUMN, bias=bias, parts=parts
    )
