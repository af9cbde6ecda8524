"""The pattern of a model's layers: which of them have experts, and layers of two parts put together by kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from kvcore.model.architecture import Layer, Module
from kvcore.model.config import Section

Kind = TypeVar("Kind", bound=Hashable)
Mixer = TypeVar("Mixer", bound=Hashable)
Body = TypeVar("Body", bound=Hashable)

SPARSE: Final = "sparse"
MLP_KINDS: Final = ("dense", SPARSE)
"""Values of `mlp_layer_types`: an MLP, or experts."""


def by_kind(kinds: Iterable[Kind], build: Callable[[Kind], Layer]) -> tuple[Layer, ...]:
    """A layer for each of `kinds`; layers of one kind are one object, built where it is first met.

    Example:
        >>> layers = by_kind(("full", "full"), lambda kind: Layer(modules=()))
        >>> layers[0] is layers[1]
        True
    """
    order = tuple(kinds)
    built = {kind: build(kind) for kind in dict.fromkeys(order)}
    return tuple(built[kind] for kind in order)


def crossed(
    kinds: Iterable[tuple[Mixer, Body]],
    mixers: Mapping[Mixer, Layer],
    bodies: Mapping[Body, tuple[Module, ...]],
    around: tuple[Module, ...] = (),
) -> tuple[Layer, ...]:
    """Layers that each have one of `mixers`, the modules `around` it, and one of `bodies`."""
    return by_kind(kinds, lambda kind: with_modules(mixers[kind[0]], *around, *bodies[kind[1]]))


def with_modules(layer: Layer, *modules: Module) -> Layer:
    """The layer with more modules."""
    return replace(layer, modules=(*layer.modules, *modules))


def sparse_from(section: Section, key: str = "first_k_dense_replace", default: int = 0) -> tuple[bool, ...]:
    """Whether each layer has experts: all but the first ones, of which `key` gives the number."""
    first = section.integer(key, default, minimum=0)
    return tuple(index >= first for index in range(section.layers()))


def sparse_by_frequency(section: Section) -> tuple[bool, ...]:
    """Whether each layer has experts: every `moe_layer_freq`th of those after the dense ones."""
    every = section.integer("moe_layer_freq", 1)
    after = sparse_from(section)
    return tuple(is_after and index % every == 0 for index, is_after in enumerate(after))


def sparse_by_step(section: Section) -> tuple[bool, ...]:
    """Whether each layer has experts: every `decoder_sparse_step`th that is not in `mlp_only_layers`."""
    step = section.integer("decoder_sparse_step", 1)
    dense = frozenset(section.integers("mlp_only_layers") or ())
    return tuple(index not in dense and (index + 1) % step == 0 for index in range(section.layers()))


def sparse_by_interval(section: Section) -> tuple[bool, ...]:
    """Whether each layer has experts: every `moe_layer_interval`th between two layers."""
    count = section.layers()
    step = section.integer("moe_layer_interval", 1)
    start = section.integer("moe_layer_start_index", 0, minimum=0)
    end = section.integer("moe_layer_end_index", count - 1, minimum=-1)
    end = count - 1 if end == -1 else end
    return tuple((index + 1) % step == 0 and start <= index <= end for index in range(count))


def sparse_by_types(section: Section) -> tuple[bool, ...] | None:
    """Whether each layer has experts, by the list `mlp_layer_types`; None without it."""
    kinds = section.words("mlp_layer_types", MLP_KINDS, section.layers())
    return None if kinds is None else tuple(kind == SPARSE for kind in kinds)


def sparse_but_the_first(section: Section) -> tuple[bool, ...]:
    """Whether each layer has experts: by `mlp_layer_types`, and without it all but the first."""
    return sparse_by_types(section) or tuple(index > 0 for index in range(section.layers()))


SPARSE_BY: Final[Mapping[str, Callable[[Section], tuple[bool, ...]]]] = {
    "everywhere": lambda section: (True,) * section.layers(),
    "first_k_dense_replace": sparse_from,
    "num_dense_layers": lambda section: sparse_from(section, "num_dense_layers"),
    "mlp_layer_types": lambda section: sparse_by_types(section) or sparse_from(section),
    "all_but_the_first": sparse_but_the_first,
    "decoder_sparse_step": sparse_by_step,
    "moe_layer_interval": sparse_by_interval,
}
"""Layers with experts: all, or by the config key that decides."""


def marked(section: Section, name: str, count: int, *, default: bool = False) -> tuple[bool, ...]:
    """Layers that the list `name` marks with something else than 0; all of them `default` without a list."""
    marks = section.integers(name)
    if marks is None:
        return (default,) * count
    if len(marks) < count:
        raise section.contradicting(name, f"{len(marks)} entries for {count} layers")
    return tuple(mark != 0 for mark in marks[:count])


def layer_windows(section: Section) -> tuple[int | None, ...]:
    """The sliding window of each layer in tokens, None for full attention.

    One window for all layers, unless `layer_types` names sliding and full ones or a pattern says which; a window of 0
    and `use_sliding_window` false switch it off; with `max_window_layers` the layers from that one on slide.

    Source: vllm/engine/arg_utils.py:create_engine_config, config/model.py (0.32).
    """
    count = section.layers()
    window = section.optional_integer("sliding_window")
    if not window or not section.boolean("use_sliding_window", True):
        return (None,) * count
    slides = which_layers_slide(section, count)
    written = section.integers("sliding_windows", minimum=1)
    if written is None:
        return tuple(window if each else None for each in slides)
    if len(written) < count:
        raise section.contradicting("sliding_windows", f"{len(written)} entries for {count} layers")
    return tuple(own if each else None for own, each in zip(written, slides, strict=False))


PERIOD_KEYS: Final = ("sliding_window_pattern", "global_attn_every_n_layers")

CLASS_PERIODS: Final = {"olmo3": 4, "vaultgemma": 2}
"""Every so many layers one attends fully, where the config leaves it to its class.

Source: transformers/models/olmo3/configuration_olmo3.py:Olmo3Config, vaultgemma likewise (5.19).
"""


FULL: Final = "full_attention"
WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention"})
"""Layer types that keep a window of `sliding_window` tokens; chunks are Rnj-1's.

Source: vllm/model_executor/models/rnj1.py:Rnj1Attention (0.32).
"""


def which_layers_slide(section: Section, count: int) -> tuple[bool, ...]:
    """Whether each layer of a model with a sliding window has it."""
    kinds = section.words("layer_types", {FULL, *WINDOWED}, count)
    if kinds is not None:
        return tuple(kind in WINDOWED for kind in kinds)
    key = next((name for name in PERIOD_KEYS if section.get(name) is not None), "sliding_window_pattern")
    pattern = section.get(key)
    if isinstance(pattern, str) and pattern:
        return tuple(pattern[index % len(pattern)] == "L" for index in range(count))
    if pattern is not None:
        period = section.integer(key)
        return tuple((index + 1) % period != 0 for index in range(count))
    if section.has("use_sliding_window") and section.has("max_window_layers"):
        full = section.integer("max_window_layers", minimum=0)
        return tuple(index >= full for index in range(count))
    usual = CLASS_PERIODS.get(section.model_type)
    return tuple(usual is None or (index + 1) % usual != 0 for index in range(count))
