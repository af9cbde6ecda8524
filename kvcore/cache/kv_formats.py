"""Storage formats of keys and values in the cache: `formats.toml`, by the engine's name of each."""

from collections.abc import Callable, Iterable, Mapping
from math import ceil, prod
from typing import Annotated, Final

from msgspec import Meta

from kvcore.base.errors import EngineRefusalError
from kvcore.base.quantity import Grade, Quantity, Unit, explained, given
from kvcore.base.term import added, same
from kvcore.base.units import ceil_div, round_up
from kvcore.engine import divided
from kvcore.flags import FLAGS
from kvcore.model.caches import RecurrentState
from kvcore.tables import Record, Reviewed, Source, TableFile, one_of

Bits = Annotated[int, Meta(ge=1, le=64)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 20)]

INDEXER_SCALE_BLOCK: Final = 128
"""Elements that share one float32 scale in an indexer's fp8 key cache."""
SPECS: Final = "vllm/v1/kv_cache_interface.py (0.33.0)"
LAYER_TOKEN: Final = "layer_token_bytes"
"""Name of the quantity of bytes that one token takes in one layer on one rank."""


class KvFormat(Record, frozen=True, kw_only=True):
    """The storage of one head of one token; formats.toml explains the fields."""

    source: Source
    key_bits: Bits
    value_bits: Bits
    key_overhead_bytes: Bytes = 0
    value_overhead_bytes: Bytes = 0
    scale_group: Annotated[int, Meta(ge=0, le=1024)] = 0
    slot_multiple: Annotated[int, Meta(ge=1, le=1024)] = 1
    boundary_layers: Annotated[int, Meta(ge=0, le=64)] = 0
    """Attention layers at each end of the model that stay in the model's dtype."""
    latent_bytes: Bytes = 0

    def head_bytes(self, head_size: int, head_size_v: int) -> int:
        """Bytes of key and value of one head of one token.

        Example:
            >>> kv_format("turboquant_4bit_nc").head_bytes(128, 128)
            134
        """
        key = ceil_div(head_size * self.key_bits, 8) + self.key_overhead_bytes
        value = ceil_div(head_size_v * self.value_bits, 8) + self.value_overhead_bytes if head_size_v else 0
        if self.scale_group:
            key += head_size // self.scale_group
            value += head_size_v // self.scale_group
        return round_up(key + value, self.slot_multiple)

    def heads(self, heads: int, head_size: int, head_size_v: int) -> Quantity:
        """Bytes of keys and values of one token in one layer that stores `heads` heads.

        Example:
            >>> kv_format("fp8").heads(8, 128, 128).substituted
            '2 × 8 × 128 × 1'
        """
        head, size = given("kv_heads", heads), self.head_bytes(head_size, head_size_v)
        if not self._is_plain:
            return layer_token(prod, (head, given("head_bytes", size, Unit.BYTES)))
        element = given("element_bytes", self.key_bits // 8)
        if head_size == head_size_v:
            return layer_token(keys_and_values, head, given("head_dim", head_size), element)
        dimensions = given("key_dim", head_size), given("value_dim", head_size_v)
        return layer_token(keys_and_other_values, head, *dimensions, element)

    @property
    def _is_plain(self) -> bool:
        """Whether keys and values are stored as they are, without scales."""
        extra = self.key_overhead_bytes or self.value_overhead_bytes or self.scale_group
        return (
            not extra
            and self.slot_multiple == 1
            and self.key_bits == self.value_bits
            and self.key_bits % 8 == 0
        )

    def latent_vector(self, rank: int, rope: int, index: int = 0) -> Quantity:
        """Bytes of one token's latent vector of `rank` numbers and `rope` for the position, in one layer; `index` of a
        key behind it."""
        if self.latent_bytes:
            return layer_token(same, given("packed_bytes", self.latent_bytes, Unit.BYTES))
        dimensions = [given("latent_rank", rank), given("rope_dim", rope)]
        if index:
            dimensions.append(given("index_dim", index))
        if self.key_bits % 8:
            return layer_token(latent_in_bits, tuple(dimensions), given("element_bytes", self.key_bits / 8))
        return layer_token(latent, tuple(dimensions), given("element_bytes", self.key_bits // 8))

    def latent_vector_bytes(self, size: int) -> int:
        """Bytes of one token's latent vector of `size` elements.

        Example:
            >>> [kv_format(name).latent_vector_bytes(576) for name in ("bfloat16", "fp8_e4m3", "fp8_ds_mla")]
            [1152, 576, 656]
        """
        return self.latent_bytes or ceil_div(size * self.key_bits, 8)


NAMES: Final = (*(name for name in FLAGS["kv_cache_dtype"].choices if name != "auto"), "float32", "int8")
"""Values of --kv-cache-dtype, a model in 32 bits, and ModelSlim's C8 (`model/quantization/modelslim.py`)."""


class FormatTables(Reviewed, frozen=True, kw_only=True):
    """formats.toml."""

    formats: Mapping[Annotated[str, one_of(NAMES)], KvFormat]

    def __post_init__(self) -> None:
        if missing := sorted(set(NAMES) - self.formats.keys()):
            raise ValueError(f"formats has no {', '.join(missing)}")


FORMATS: Final = TableFile("kvcore.cache", "formats.toml", FormatTables)


def layer_token(rule: Callable[..., int], *arguments: Quantity | tuple[Quantity, ...]) -> Quantity:
    """Bytes that one token takes in one layer on one rank."""
    return explained(LAYER_TOKEN, rule, *arguments, grade=Grade.EXACT, source=SPECS)


def keys_and_values(kv_heads: int, head_dim: int, element_bytes: int) -> int:
    """Bytes of one token in one layer, keys and values alike."""
    return 2 * kv_heads * head_dim * element_bytes


def keys_and_other_values(kv_heads: int, key_dim: int, value_dim: int, element_bytes: int) -> int:
    """Bytes of one token in one layer whose values differ in size from its keys."""
    return kv_heads * (key_dim + value_dim) * element_bytes


def latent(dimensions: tuple[int, ...], element_bytes: int) -> int:
    """Bytes of one token's latent vector, its position and index key behind it."""
    return added(dimensions) * element_bytes


def latent_in_bits(dimensions: tuple[int, ...], element_bytes: float) -> int:
    """The same in elements of less than a byte, rounded up."""
    return ceil(added(dimensions) * element_bytes)


def index_keys(dimension: int, element_bytes: int) -> Quantity:
    """One token's keys of a sparse indexer; with elements of 0 bytes those in fp8 with a scale for each 128 of them.

    Example:
        >>> index_keys(128, 0).substituted, index_keys(128, 2).value
        ('128 + 4 bytes', 256)
    """
    keys = given("index_dim", dimension)
    if element_bytes:
        return layer_token(prod, (keys, given("element_bytes", element_bytes)))
    scales = 4 * (dimension // INDEXER_SCALE_BLOCK)
    scale_bytes = given("scale_bytes", scales, Unit.BYTES)
    return layer_token(added, (keys, scale_bytes))


def aligned_states(states: int, state_bytes: int, page_alignment: int) -> Quantity:
    """Bytes of a page of compressed vectors; an alignment of 1 adds nothing."""
    stored = given("page_states", states), given("state_bytes", state_bytes, Unit.BYTES)
    if page_alignment == 1:
        return explained("page_states_bytes", prod, stored, source=SPECS)
    alignment = given("page_alignment", page_alignment, Unit.BYTES)
    return explained("aligned_states_bytes", aligned_bytes, *stored, alignment, source=SPECS)


def aligned_bytes(page_states: int, state_bytes: int, page_alignment: int) -> int:
    """Bytes of the states of a page, rounded up."""
    return round_up(page_states * state_bytes, page_alignment)


def state_tensor_bytes(
    state: RecurrentState, ranks: int, dtype: str, num_speculative_tokens: int, ssm_dtype: str = ""
) -> tuple[int, ...]:
    """Bytes of each tensor of one request's state of one layer on one rank.

    replicated × sharded / ranks × element bytes; groups that do not divide are replicated up to one per rank. An
    element of the state itself is of `ssm_dtype` where a flag says so, else as the config says, else of `dtype`.

    Raises EngineRefusalError when the heads do not divide.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py:MambaStateShapeCalculator (0.32.0).

    Example:
        >>> from kvcore.model.caches import StateShape
        >>> delta_net = RecurrentState(kind="gdn_attention", heads=32, shapes=(
        ...     StateShape(sharded=3 * 8192, replicated=1), StateShape(sharded=32, replicated=128 * 128)))
        >>> state_tensor_bytes(delta_net, 1, "bfloat16", 0)
        (49152, 1048576)
    """
    heads, ranks = state.heads, 1 if state.is_whole else ranks
    if heads % ranks:
        field = "tensor_parallel_size"
        raise EngineRefusalError(
            "state-heads-not-divisible", field=field, value=ranks, heads=heads, ranks=ranks
        )
    extra_groups = ranks - state.replicable_groups if state.replicable_groups % ranks else 0
    sizes = []
    for shape in state.shapes:
        sharded = shape.sharded + shape.sharded_per_group * max(0, extra_groups)
        per_token = shape.sharded_per_speculative_token * sharded // max(1, shape.sharded)
        elements = divided(sharded + per_token * num_speculative_tokens, ranks) * shape.replicated
        element = (shape.is_ssm and ssm_dtype) or shape.dtype or dtype
        sizes.append(elements * kv_format(element).key_bits // 8)
    return tuple(sizes)


def state_tensors(tensor_bytes: Iterable[int]) -> Quantity:
    """Bytes of one recurrent state of one layer on one rank."""
    tensors = tuple(given("state_tensor", size, Unit.BYTES) for size in tensor_bytes)
    return explained("layer_state_bytes", added, tensors, source=SPECS)


def kv_format(kv_cache_dtype: str) -> KvFormat:
    """The format that the engine calls `kv_cache_dtype`.

    Raises EngineRefusalError for a name it does not know.
    """
    found = FORMATS.load().formats.get(kv_cache_dtype)
    if found is None:
        raise EngineRefusalError("unknown-kv-cache-dtype", field="kv_cache_dtype", value=kv_cache_dtype)
    return found
