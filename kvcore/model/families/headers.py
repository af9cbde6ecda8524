"""A model whose class no family reads: names and sizes of its checkpoint's tensors -> Architecture.

Exact: the bytes in the files. By name: how tensor parallelism cuts a tensor, and the caches of a layer. Not visible: a
window that the config does not name, and what the engine fuses, pads or leaves out.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

from msgspec.structs import replace

from kvcore.base.errors import ModelError, Notice, notice
from kvcore.base.units import gib
from kvcore.model import architecture as arch
from kvcore.model.architecture import Architecture, Layer, Module
from kvcore.model.caches import CacheState, KeysAndValues, Mla, RecurrentState, SparseIndexer
from kvcore.model.config import MAX_LAYERS, ModelConfig, Section
from kvcore.model.headers import Headers
from kvcore.model.parts import blocks, mixers
from kvcore.model.parts.blocks import Heads
from kvcore.model.parts.named import FLOATS, NAMES, Cutter, Part, Words, first
from kvcore.model.parts.pattern import layer_windows

_ENCODER: Final = re.compile(
    r"(?:^|\.)(vis|vit|audio|image|img|speech|mm_|multi_modal|[a-z_]*(?:projector|connector|merger|aligner))"
)
_DRAFT: Final = re.compile(r"(?:^|\.)(mtp|nextn|eagle|medusa|draft)")
_CROSS: Final = re.compile(r"cross|encoder")
USUAL_HEAD_SIZE: Final = 128
"""Width of keys where neither a norm nor the config gives it; the number of KV heads is a guess then."""
NOTABLE_BYTES: Final = 1 << 20
"""Tensors of unknown names below this are not worth a word."""
MAX_PARTS: Final = 1 << 14
"""Tensors of all layers that differ from each other: some 200 layers, each unlike all others, of 80 tensors."""
MAX_MODULES: Final = 1 << 17
"""Tensors apart from those of experts: some 60 layers of 2,000."""
MOST_NAMES: Final = 4
"""Names listed in a notice."""


def read_with_headers(config: ModelConfig, headers: Headers) -> Architecture:
    """The architecture that the tensors of a checkpoint show, with what the config says in the usual keys.

    Raises ModelError `unknown-architecture` where no layer with keys and values is named, `contradicting-config` where
    layers are missing, or what reading a key raises.
    """
    return _Reader(config, headers).architecture()


class _Reader:
    def __init__(self, config: ModelConfig, headers: Headers) -> None:
        self.config, self.section = config, config.language
        parts = [Part(row) for row in headers.rows]
        self.prefix = _decoder_prefix(parts, self.section)
        self.layers = [part for part in parts if part.tensors.layers and part.tensors.prefix == self.prefix]
        others = [part for part in parts if not part.tensors.layers or part.tensors.prefix != self.prefix]
        self.drafts = [part for part in others if _DRAFT.search(part.full_name)]
        others = [part for part in others if not _DRAFT.search(part.full_name)]
        self.encoders = [part for part in others if _ENCODER.search(part.full_name)]
        self.ends = [part for part in others if not _ENCODER.search(part.full_name)]
        self.count = self._layers()
        self._check_modules()
        sizes = Counter[str]()
        for part in parts:
            sizes[part.tensors.dtype] += part.tensors.bytes_of_all
        quantization = config.root.optional_section("quantization_config")
        self.cutter = Cutter(
            hidden_size=self._hidden(),
            main_dtype=next((dtype for dtype, _ in sizes.most_common() if dtype in FLOATS), "BF16"),
            is_quantized=any(part.tensors.dtype not in FLOATS and not part.is_vector for part in self.layers),
            packed_bits=4 if quantization is None else quantization.integer("bits", 4, maximum=8),
        )
        self.top_k = self._first(NAMES.top_k_keys) or 1

    def architecture(self) -> Architecture:
        """The whole model."""
        windows = self._windows()
        of_layer: list[list[int]] = [[] for _ in range(self.count)]
        for number, part in enumerate(self.layers):
            for layer in part.tensors.layers_below(self.count):
                of_layer[layer].append(number)
        kinds = list(zip(map(tuple, of_layer), windows, strict=True))
        if sum(len(numbers) for numbers, _ in set(kinds)) > MAX_PARTS:
            raise self._unreadable(reason=f"its layers differ in more than {MAX_PARTS:,} kinds of tensors")
        built = {
            kind: self._layer([self.layers[number] for number in kind[0]], kind[1]) for kind in set(kinds)
        }
        layers = tuple(built[kind] for kind in kinds)
        embeddings = [part for part in self.ends if part.is_matrix and part.is_called(NAMES.embedding)]
        heads = [part for part in self.ends if part.is_called(NAMES.head)]
        rest = [part for part in self.ends if part not in (*embeddings, *heads)]
        head = first(heads, NAMES.head)
        tied = head is None or blocks.is_tied(self.config, self.section, False)
        caches = [cache for layer in layers for cache in layer.caches]
        if not caches:
            raise self._unreadable(reason="no tensor is named like keys and values")
        model = blocks.decoder(
            self.config,
            section=self.section,
            heads=self._heads(caches),
            layers=layers,
            intermediate_size=self._width(),
            first=tuple(self.cutter.table(part) for part in embeddings),
            last=(
                *self._cut(rest),
                *(() if head is None or tied else (self.cutter.table(head, is_head=True),)),
                *(() if tied else self._cut(part for part in heads if part is not head)),
            ),
            every=tuple(self._cut(self.encoders, is_encoder=True)),
            tied=tied,
            layer_prefix=self.prefix,
            moe=self._moe(layers),
            vocab_size=embeddings[0].tensors.shape[0] if embeddings else self.section.integer("vocab_size"),
            is_multimodal=bool(self.encoders),
            is_mla=any(isinstance(cache, Mla) for cache in caches),
        )
        return dataclasses.replace(model, is_assumed=True, notices=tuple(self._notices(layers, windows)))

    def _layers(self) -> int:
        count = self.section.optional_integer("num_hidden_layers", minimum=1, maximum=MAX_LAYERS)
        count = count or max((part.tensors.last_layer for part in self.layers), default=-1) + 1
        if not 0 < count <= MAX_LAYERS:
            raise self._unreadable(reason="no tensor is numbered like those of layers")
        there = {layer for part in self.layers for layer in part.tensors.layers_below(count)}
        missing = set(range(count)) - there
        if missing:
            lacking, at = len(missing), min(missing)
            raise ModelError(
                "contradicting-config",
                field="headers",
                reason=f"{lacking} of {count} layers have no tensor, {at} is the first",
            )
        return count

    def _check_modules(self) -> None:
        """Raises ModelError `unknown-architecture` for more modules than a plan counts one by one."""
        apart = [part for part in self.layers if not part.is_of_experts]
        tensors = (part.tensors for part in (*apart, *self.encoders, *self.ends))
        if sum(one.each * max(one.num_layers, 1) for one in tensors) > MAX_MODULES:
            raise self._unreadable(reason=f"it has more than {MAX_MODULES:,} tensors apart from experts")

    def _hidden(self) -> int:
        given = self.section.optional_integer("hidden_size", minimum=1)
        norms = Counter(part.tensors.elements for part in self.layers if "norm" in part.module)
        if given is None and not norms:
            raise self.section.missing("hidden_size")
        return given or norms.most_common(1)[0][0]

    def _windows(self) -> tuple[int | None, ...]:
        """The window of each layer, where the config names them; all attend fully where it leaves that to its class."""
        if any(self.section.get(key) is not None for key in NAMES.window_keys):
            try:
                return layer_windows(self.section)
            except ModelError:
                pass
        return (None,) * self.count

    def _unreadable(self, *, reason: str) -> ModelError:
        named = ", ".join(filter(None, (*self.config.architectures, self.config.model_type)))
        return ModelError("unknown-architecture", field="headers", architecture=named, reason=reason)

    def _cut(self, parts: Iterable[Part], *, is_encoder: bool = False) -> Iterator[Module]:
        """Tensors that are of no decoder layer."""
        for part in parts:
            module = self.cutter.cut(part, is_encoder=is_encoder)
            yield from repeat(module, part.tensors.each * max(part.tensors.num_layers, 1))

    # -- one layer --------------------------------------------------------------------------------------------------

    def _layer(self, parts: list[Part], window: int | None) -> Layer:
        states = {part.path[:-1] for part in parts if part.is_called(NAMES.recurrent)}
        modules: list[Module] = []
        caches: list[CacheState] = []
        loading: list[arch.Parameter] = []
        mixers_of: dict[Words, list[Part]] = {}
        for part in parts:
            if not part.is_of_experts:
                mixers_of.setdefault(_owner(part, states), []).append(part)
        for owner, members in mixers_of.items():
            heads, down = None, first(members, NAMES.latent_down)
            if owner in states:
                caches += self._state(members)
            elif down is not None:
                caches += self._latent(down, members, parts)
                loading += self._copies(members)
            else:
                heads = self._attention(members)
                if heads is not None and not _CROSS.search(".".join(owner)):
                    caches.append(blocks.cache_of(heads, window))
            for part in members:
                modules += (self.cutter.cut(part, heads),) * part.tensors.each
        modules += self.cutter.experts([part for part in parts if part.is_of_experts], self.top_k)
        return Layer(modules=tuple(modules), caches=tuple(caches), loading=tuple(loading))

    def _attention(self, members: list[Part]) -> Heads | None:
        """Keys and values of one attention, by the rows of their projections; None where there are none."""
        keys, fused = first(members, NAMES.key), first(members, NAMES.query_key_value)
        if not any(part.is_called((*NAMES.key, *NAMES.query_key_value)) for part in members):
            return None
        rows, rows_v = self.cutter.rows(keys), self.cutter.rows(first(members, NAMES.value))
        if keys is None:
            whole, attended = self.cutter.rows(fused), self._attended(members)
            rows = rows_v = None if whole is None or attended is None else (whole - attended) // 2
        if rows is None or rows <= 0:
            return blocks.read_heads(self.section)
        norm = next((part.tensors.elements for part in members if part.is_called(NAMES.key_norm)), None)
        given = self.section.optional_integer("num_key_value_heads", minimum=1)
        count = self.section.optional_integer("num_attention_heads", minimum=1)
        sizes = (
            None if norm == rows else norm,
            self.section.optional_integer("head_dim"),
            rows // given if given else None,
            self.cutter.hidden_size // count if count else None,
            USUAL_HEAD_SIZE,
            rows,
        )
        size = next(size for size in sizes if size and rows % size == 0)
        kv = rows // size
        return Heads(
            hidden_size=self.cutter.hidden_size,
            num_heads=self._num_heads(size),
            num_kv_heads=kv,
            head_dim=size,
            value_dim=rows_v // kv if rows_v and rows_v % kv == 0 else size,
        )

    def _attended(self, members: Iterable[Part]) -> int | None:
        """Elements that attention or another mixer gives its last projection."""
        found = (self.cutter.columns(part) for part in members if part.is_row and part.module != "x_proj")
        return next(filter(None, found), None)

    def _num_heads(self, size: int) -> int:
        """Attention heads, by the config or by the inputs of attention's last projection."""
        given = self.section.optional_integer("num_attention_heads", minimum=1)
        if given:
            return given
        attended = self._attended(part for part in self.layers if "mlp" not in part.path)
        if attended is None or not size or attended % size:
            raise self.section.missing("num_attention_heads")
        return attended // size

    def _latent(self, down: Part, members: list[Part], parts: list[Part]) -> Iterator[CacheState]:
        """The latent vector with the rotated part of the keys, and the keys of a sparse indexer."""
        indexer = self.cutter.rows(first(parts, NAMES.indexer_key))
        if indexer is not None:
            yield SparseIndexer(index_head_dim=indexer)
        norm = next((part.tensors.elements for part in members if part.is_called(NAMES.latent_norm)), None)
        rank, rows = norm or self.section.optional_integer("kv_lora_rank"), self.cutter.rows(down)
        if not rank or not rows or rows < rank:
            raise self._unreadable(reason="the latent vector's width is not to be seen")
        yield Mla(kv_lora_rank=rank, qk_rope_head_dim=rows - rank)

    def _copies(self, members: list[Part]) -> Iterator[arch.Parameter]:
        """Copies of the way up from the latent vector that decoding keeps, as `parts.latent.absorbed` has it."""
        up = first(members, NAMES.latent_up)
        if up is not None:
            heads = self._num_heads(0)
            yield arch.Parameter(name="absorbed", sharded=heads, replicated=up.tensors.elements // heads)

    def _state(self, members: list[Part]) -> Iterator[CacheState]:
        """The cache states of a mixer, by its convolutions, its decay and its last projection."""
        taps = [
            part.tensors.shape for part in members if "conv" in part.module and len(part.tensors.shape) == 3
        ]
        decay = next((part.tensors.shape for part in members if part.is_called(NAMES.decay)), ())
        channels, inner = sum(shape[0] for shape in taps), self._attended(members)
        shapes = [mixers.conv_rows(shape[0], shape[2]) for shape in taps if shape[2] > 1]
        if len(decay) == 2:
            shapes = [replace(shape, sharded_per_speculative_token=0) for shape in shapes]
            states = (*shapes, mixers.matrices(*decay))
            yield RecurrentState(kind="mamba1", heads=decay[0], shapes=states)
        elif decay and inner:
            heads, rest = math.prod(decay), max(channels - inner, 0)
            is_delta = any(part.is_called(NAMES.delta) for part in members)
            width = max(inner // heads, 1)
            given = self._first(NAMES.key_width_keys if is_delta else NAMES.state_keys)
            size = given or (width if is_delta else max(rest // 2, 1))
            dtypes = (self.section.string(key, "") for key in NAMES.state_dtype_keys)
            groups = 0 if is_delta else rest // (2 * size)
            if groups and shapes:
                shapes[0] = replace(shapes[0], sharded_per_group=2 * size * (taps[0][2] - 1))
            yield RecurrentState(
                kind="gdn_attention" if is_delta else "mamba2",
                heads=heads,
                replicable_groups=groups,
                chunk_size=self._first(NAMES.chunk_keys) or 2048,
                shapes=(*shapes, mixers.matrices(heads, width * size, next(filter(None, dtypes), ""))),
            )
        elif shapes:
            yield RecurrentState(kind="short_conv", heads=channels, shapes=tuple(shapes))

    # -- the whole model --------------------------------------------------------------------------------------------

    def _heads(self, caches: Sequence[CacheState]) -> Heads:
        hidden = self.cutter.hidden_size
        kept = [cache for cache in caches if isinstance(cache, KeysAndValues)]
        latent = next((cache for cache in caches if isinstance(cache, Mla)), None)
        if latent is not None:
            width = latent.kv_lora_rank + latent.qk_rope_head_dim
            return Heads(hidden_size=hidden, num_heads=self._num_heads(0), num_kv_heads=1, head_dim=width)
        if not kept:
            return Heads(hidden_size=hidden, num_heads=0, num_kv_heads=0, head_dim=USUAL_HEAD_SIZE)
        most = max(kept, key=lambda cache: cache.num_kv_heads * cache.head_size)
        return Heads(
            hidden_size=hidden,
            num_heads=self._num_heads(most.head_size),
            num_kv_heads=most.num_kv_heads,
            head_dim=most.head_size,
        )

    def _width(self) -> int:
        """The widest MLP, by the projections down; the config's where none is named."""
        parts = (part for part in self.layers if part.is_row and not part.is_called(("o_proj", "out_proj")))
        widths = filter(None, map(self.cutter.columns, parts))
        return max(widths, default=0) or self.section.integer(
            "intermediate_size", 4 * self.cutter.hidden_size
        )

    def _moe(self, layers: tuple[Layer, ...]) -> arch.MixtureOfExperts | None:
        modules = [module for layer in dict.fromkeys(layers) for module in layer.modules]
        experts = next((module for module in modules if isinstance(module, arch.Experts)), None)
        counts = (module.experts for module in modules if isinstance(module, arch.Parameter))
        count = max(counts, default=0) if experts is None else experts.num_experts
        if not count:
            return None
        shared = (part for part in self.layers if part.is_row and any("shared" in word for word in part.path))
        width = self._first(NAMES.expert_width_keys) if experts is None else experts.intermediate_size
        return arch.MixtureOfExperts(
            num_experts=count,
            top_k=self.top_k,
            moe_intermediate_size=width or self._width(),
            shared_intermediate_size=max(filter(None, map(self.cutter.columns, shared)), default=0),
        )

    def _first(self, keys: Words) -> int | None:
        values = (self.section.optional_integer(key, minimum=1) for key in keys)
        return next(filter(None, values), None)

    def _notices(self, layers: tuple[Layer, ...], windows: tuple[int | None, ...]) -> Iterator[Notice]:
        named = (*self.config.architectures, self.config.model_type)[0]
        yield notice("architecture-from-headers", "config.architectures", architecture=named)
        whole = Counter[str]()
        for part in (*self.layers, *self.ends):
            is_table = part.is_called((*NAMES.embedding, *NAMES.head))
            if self.cutter.is_unsure(part) and not is_table:
                whole[part.name] += part.tensors.bytes_of_all
        if whole.total() >= NOTABLE_BYTES:
            names, size = (name for name, _ in whole.most_common()), f"{gib(whole.total()):.2f}"
            yield notice("headers-whole-tensors", "headers", names=_listed(names), size=size)
        states = [any(isinstance(cache, RecurrentState) for cache in layer.caches) for layer in layers]
        if any(states):
            yield notice("headers-state-layers", "headers", layers=sum(states))
        has_window = (
            self.section.has("sliding_window") and self.section.get("use_sliding_window") is not False
        )
        if (has_window or self.section.has("attention_chunk_size")) and not any(windows):
            yield notice("headers-windows", "headers")
        beyond = [part for part in self.layers if part.tensors.last_layer >= self.count]
        if self.drafts or beyond:
            names = (part.tensors.prefix or part.path[0] for part in (*self.drafts, *beyond))
            yield notice("headers-drafts", "headers", names=_listed(names))
        if self.encoders:
            names = (part.tensors.prefix or part.path[0] for part in self.encoders)
            yield notice("headers-encoder", "headers", names=_listed(names))


def _decoder_prefix(parts: list[Part], section: Section) -> str:
    """The prefix of the layers' numbers: that of the largest stack that is no encoder, as deep as the config says."""
    sizes, depths = Counter[str](), Counter[str]()
    for part in parts:
        prefix, layers = part.tensors.prefix, part.tensors.layers
        if layers and not _ENCODER.search(prefix) and not _DRAFT.search(prefix):
            sizes[prefix] += part.tensors.bytes_of_all
            depths[prefix] = max(depths[prefix], part.tensors.last_layer + 1)
    wanted = section.optional_integer("num_hidden_layers", minimum=1) or 0
    return max(sizes, key=lambda prefix: (depths[prefix] >= wanted, sizes[prefix]), default="")


def _owner(part: Part, states: set[Words]) -> Words:
    """The mixer of a tensor: one that keeps a state, else the module around it."""
    return next((state for state in states if state and part.path[: len(state)] == state), part.path[:-1])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(list(dict.fromkeys(names))[:MOST_NAMES])
