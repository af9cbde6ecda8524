"""Encoders of images and audio, built from their rows in encoders.toml.

In a row a name stands for what was given with the row, for one of its `sizes` or `keys`, or for what the row around it
calls so; what all rows call alike is the row `common`, and `COMPUTED` what no formula says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from kvcore.base.errors import ModelError
from kvcore.base.words import NONE_NAMED
from kvcore.model.architecture import (
    AudioEncoder,
    Linear,
    Module,
    Output,
    Parameter,
    RotaryTable,
    Split,
    VisionEncoder,
)
from kvcore.model.config import MAX_LAYERS, Section
from kvcore.model.parts import blocks, vision
from kvcore.model.parts.encoder_rows import (
    COMMON,
    ENCODERS,
    Formula,
    Key,
    Kind,
    Make,
    Part,
    Place,
    Row,
    evaluate,
    parse,
)
from kvcore.tables import wrong

LAYERS: Final[Mapping[Make | None, Callable[..., Linear]]] = {
    Make.REPLICATED: blocks.replicated,
    Make.WHOLE: vision.whole,
    Make.COLUMN: blocks.column,
    Make.ROW: blocks.row,
    Make.MERGED: vision.merged,
}
"""Linear layers, of a name and what goes in and out."""


class Scope:
    """A row with the config that it reads and the numbers that it was given."""

    def __init__(
        self,
        row: Row,
        sections: Mapping[str, Section],
        given: Mapping[str, int] | None = None,
        outer: Scope | None = None,
    ) -> None:
        self.row, self.outer = row, outer
        self._sections, self._known = dict(sections), dict(given or {})
        self._names = {*self._known, *row.sizes, *row.keys}

    def __getitem__(self, name: str) -> int:
        """What a name stands for. Raises ModelError for a value of the config that cannot be."""
        if name not in self._names and (outer := self._around(name)):
            return outer[name]
        if name not in self._known:
            self._known[name] = self._find(self.row if name in self._names else COMMON, name)
        return self._known[name]

    def _around(self, name: str) -> Scope | None:
        scope = self.outer
        while scope is not None and name not in scope._names:
            scope = scope.outer
        return scope

    def _find(self, row: Row, name: str) -> int:
        if name in row.sizes:
            return self.value(row.sizes[name])
        if name in row.keys:
            key = row.keys[name]
            return self.read(Key(key=key) if isinstance(key, str) else key)
        if name not in COMPUTED:
            raise wrong("encoders.toml", f"{name!r} is no size")
        return COMPUTED[name](self)

    def section(self, name: str) -> Section:
        """A section of the config. Raises ModelError where there is none."""
        if name not in self._sections:
            place = self.row.sections.get(name)
            if place is None and self.outer is not None:
                return self.outer.section(name)
            if place is None:
                raise wrong("encoders.toml", f"{name!r} is no section")
            self._sections[name] = self._nested(Place(key=place) if isinstance(place, str) else place)
        return self._sections[name]

    def _nested(self, place: Place) -> Section:
        around = self.section(place.at)
        if place.constants:
            return Section(place.constants, f"{around.path}.{place.key}", place.defaults)
        found = around.optional_section(place.key, place.defaults)
        if found is not None:
            return found
        return self.section(place.otherwise) if place.otherwise else around.section(place.key, place.defaults)

    def value(self, formula: Formula) -> int:
        """The value of a formula."""
        return evaluate(parse(formula), self.__getitem__) if isinstance(formula, str) else formula

    def read(self, key: Key) -> int:
        """What the config says under a key. Raises ModelError for anything else."""
        section = self.section(key.at)
        name = key.otherwise if key.otherwise and section.get(key.key) is None else key.key
        if key.kind is Kind.GIVEN:
            return section.get(name) is not None
        if key.kind is Kind.WORD:
            return section.string(name, str(key.default or "")) == key.word
        if key.kind is Kind.LENGTH:
            return len(section.integers(name, minimum=-MAX_LAYERS) or ())
        default = None if key.default is None else self.value(key.default)
        if key.kind is Kind.FLAG:
            return section.boolean(name, None if default is None else bool(default))
        if key.kind is Kind.SHARE:
            return int(self["width"] * section.number(name, default))
        if key.kind in (Kind.FIRST, Kind.SECOND):
            pair = section.integers(name, minimum=1) or (() if default is None else (default, default))
            if len(pair) != 2:
                raise section.invalid(name, pair, "expected two numbers")
            return pair[key.kind is Kind.SECOND]
        if key.kind is Kind.SQUARE and isinstance(section.get(name), list):
            sides = set(section.integers(name, minimum=1) or ())
            if len(sides) != 1:
                raise section.contradicting(name, f"{name} is no square")
            return sides.pop()
        lowest, highest = self.value(key.minimum), self.value(key.maximum)
        wide = section.integer(name, default, minimum=lowest, maximum=highest)
        if key.kind is Kind.HALF and wide % 2:
            raise section.contradicting(name, f"{wide} is two halves, and odd")
        return wide // 2 if key.kind is Kind.HALF else wide

    def name(self, template: str) -> str:
        """A name with the values of its formulas."""
        return re.sub(r"{(.+?)}", lambda found: str(self.value(found[1])), template)

    def build(self) -> vision.Encoder:
        """The row's modules, the limits of its images and recordings, and its rotary tables."""
        parts = [self.part(name, part) for name, part in self.row.modules.items() if self.value(part.when)]
        return vision.Encoder(
            modules=tuple(module for part in parts for module in part.modules),
            vision=self.limits() or next((part.vision for part in parts if part.vision), None),
            audio=self._own_audio() or next((part.audio for part in parts if part.audio), None),
            tables=(*self.tables(), *(table for part in parts for table in part.tables)),
        )

    def part(self, template: str, part: Part) -> vision.Encoder:
        """A module of the row, or what a part uses of another row, as often as it says."""
        if part.make is not None:
            return vision.Encoder(modules=(self.module(part, self.name(template)),))
        sections = {"own": self.section(part.at)} if part.at else {}
        given = {name: self.value(formula) for name, formula in part.given.items()}
        row = ENCODERS[self.named_row(part) if part.use_named else part.use]
        if part.times is None:
            built = Scope(row, sections, given, self).build()
            return replace(built, modules=behind(self.name(template), built.modules))
        built, modules = vision.Encoder(modules=()), list[Module]()
        for index in range(self.value(part.times)):
            scope = Scope(row, sections, {**given, "index": index}, self)
            if index == 0 or part.is_numbered:
                built = scope.build()
            modules += behind(scope.name(template), built.modules)
        return replace(built, modules=tuple(modules))

    def named_row(self, part: Part) -> str:
        """The row that the config names. Raises ModelError `unknown-architecture` for one that is not known."""
        section, key = self.section(part.named_at), part.named_by
        name = section.model_type if key == "model_type" else section.string(key)
        if name not in part.use_named:
            raise not_read(section, name, reason="this vision encoder is not known", key=key)
        return name

    def limits(self) -> VisionEncoder | None:
        """What the profile run must know of the row's images."""
        limits = self.row.limits
        if limits is None:
            return None
        return VisionEncoder(
            hidden_size=self.value(limits.width),
            intermediate_size=self.value(limits.inner),
            max_tokens_per_item=self.value(limits.tokens),
            patches_per_token=self.value(limits.patches),
            deepstack_levels=self.value(limits.deepstack),
            values_per_patch=self.value(limits.values),
            unit=self.value(limits.unit),
            draws_video=bool(self.value(limits.video)),
        )

    def _own_audio(self) -> AudioEncoder | None:
        """What the profile run must know of the row's recordings."""
        audio = self.row.audio
        if audio is None:
            return None
        return AudioEncoder(
            hidden_size=self.value(audio.width),
            intermediate_size=self.value(audio.inner),
            tokens_per_chunk=self.value(audio.tokens),
            positions_per_chunk=self.value(audio.positions),
            values_per_chunk=self.value(audio.values),
            chunks_per_item=self.value(audio.chunks),
            chunks_at_once=self.value(audio.at_once),
            items_per_prompt=self.value(audio.most),
            is_whole=bool(self.value(audio.is_whole)),
            windows_per_chunk=self.value(audio.windows),
            window_elements=self.value(audio.window_elements),
            most_windows=self.value(audio.most_windows),
            pair_elements=self.value(audio.pairs),
        )

    def tables(self) -> tuple[RotaryTable, ...]:
        """The row's own rotary tables."""
        return tuple(
            RotaryTable(
                max_positions=self.value(each.positions),
                rotary_dim=self.value(each.dim),
                dtype=each.dtype,
                is_plain=each.is_plain,
            )
            for each in self.row.rotary
        )

    def module(self, part: Part, name: str) -> Module:
        """A module of the row."""
        sizes, bias = [self.value(size) for size in part.of], bool(self.value(part.bias))
        match part.make:
            case Make.TENSOR:
                return Parameter(name=name, replicated=math.prod(sizes), dtype=part.dtype)
            case Make.CONVOLUTION:
                return vision.convolution(name, sizes[0], sizes[1], sizes[2:], bias=bias)
            case Make.NORM:
                return blocks.norm(name, sizes[0], bias=bias)
            case Make.QKV:
                made = blocks.qkv(self.heads(), name, part.parts, bias=bias)
            case Make.KV:
                half = Output(units=self["kv_heads"], width=self["head"], replicable=True)
                made = Linear(
                    name=name,
                    in_features=sizes[0],
                    outputs=(half, half),
                    split=Split.COLUMN,
                    bias=bias,
                    parts=part.parts,
                )
            case _:
                made = replace(LAYERS[part.make](name, *sizes, bias=bias), parts=part.parts)
        if part.is_whole:
            made = replace(made, split=Split.REPLICATED, quantizable=False, parts=())
        return replace(
            made,
            dtype=part.dtype or made.dtype,
            quantizable=made.quantizable and bool(self.value(part.quantized)),
            whole_unless_divided=self.value(part.unless_divided),
        )

    def heads(self) -> blocks.Heads:
        """The heads of the row's attention."""
        return blocks.Heads(
            hidden_size=self["width"],
            num_heads=self["heads"],
            num_kv_heads=self["kv_heads"],
            head_dim=self["head"],
        )


def behind(prefix: str, modules: tuple[Module, ...]) -> tuple[Module, ...]:
    """The modules with their names, and those of their parts, behind a prefix."""
    if not prefix:
        return modules
    found: list[Module] = []
    for module in modules:
        name = f"{prefix}.{module.name}".rstrip(".")
        if isinstance(module, Linear) and module.parts:
            module = replace(module, parts=tuple(f"{prefix}.{part}" for part in module.parts))
        found.append(replace(module, name=name))
    return tuple(found)


def not_read(section: Section, named: str, *, reason: str, key: str = "model_type") -> ModelError:
    """The error that what a section names is not known."""
    return ModelError(
        "unknown-architecture",
        field=f"{section.path}.{key}",
        architecture=named or NONE_NAMED,
        reason=reason,
    )


def head_size(scope: Scope) -> int:
    """Of an encoder whose width its heads must divide."""
    hidden, num_heads = scope["width"], scope["heads"]
    if hidden % num_heads:
        raise scope.section("own").contradicting(
            "hidden_size", f"{hidden} is not divisible by {num_heads} attention heads"
        )
    return hidden // num_heads


def side(scope: Scope) -> int:
    """Patches along one side of the square input image."""
    image_size, patch_size = scope["image"], scope["patch"]
    if image_size < patch_size:
        raise scope.section("own").contradicting(
            "image_size", f"an image of {image_size} has no patch of {patch_size}"
        )
    return image_size // patch_size


def features(scope: Scope) -> int:
    """How many blocks are built: up to the deepest layer whose features are used.

    Source: vllm/model_executor/models/llava.py:_get_num_hidden_layers (0.32).
    """
    root, total = scope.section("root"), scope["total"]
    wanted = root.get("vision_feature_layer")
    last = (scope["last_feature"],)
    chosen = last if wanted is None else wanted if isinstance(wanted, list | tuple) else (wanted,)
    counts = []
    for index in chosen:
        if isinstance(index, bool) or not isinstance(index, int) or not -MAX_LAYERS <= index <= MAX_LAYERS:
            raise root.invalid("vision_feature_layer", index, "expected an integer or a list of them")
        counts.append(total + index + 1 if index < 0 else index)
    if not counts or not 0 < max(counts) <= total:
        raise root.contradicting("vision_feature_layer", f"the encoder has {total} layers")
    return max(counts)


def downsampling(scope: Scope) -> float:
    """Patches along a side that a pixel shuffle makes one, from its ratio."""
    root = scope.section("root")
    ratio = root.number("downsample_ratio", 0.5)
    if not 0 < ratio <= 1:
        raise root.invalid("downsample_ratio", ratio, "expected more than 0 and at most 1")
    return 1 / ratio


def grouped_heads(scope: Scope) -> int:
    """Key and value heads, as many as queries unless the config says."""
    section, count = scope.section("own"), scope["heads"]
    heads = blocks.Heads(
        hidden_size=scope["width"], num_heads=count, num_kv_heads=count, head_dim=scope["head"]
    )
    found = section.optional_integer("num_key_value_heads")
    return blocks.with_kv_heads(section, heads, found).num_kv_heads


def aria_queries(scope: Scope) -> int:
    """The most queries of Aria's projector, whatever the number of patches."""
    root = scope.section("root")
    counts = root.get("projector_patch_to_query_dict") or {"1225": 128, "4900": 256}
    if not isinstance(counts, Mapping) or not all(isinstance(count, int) for count in counts.values()):
        raise root.invalid("projector_patch_to_query_dict", counts, "expected numbers of queries by patches")
    return int(max(counts.values()))


def radio_side(scope: Scope) -> int:
    """Patches along a side of the largest image that C-RADIO has positions for."""
    return round(scope.section("arguments").integer("cpe_max_size", 2048) / scope["patch"])


def radio_tokens(scope: Scope) -> int:
    """A token for each teacher, or one, and registers up to a multiple of `register_multiple`."""
    arguments = scope.section("arguments")
    teachers = arguments.sequence("teachers") or ()
    names = {str(each.get("name")) for each in teachers if isinstance(each, Mapping)}
    tokens = max(1, len(names)) if arguments.boolean("cls_token_per_teacher", True) else 1
    multiple = arguments.optional_integer("register_multiple", minimum=0)
    return tokens + (multiple - tokens % multiple if multiple else 0)


SIGLIP_IMAGE: Final = 384
SIGLIP_PATCH: Final = 14
"""Of the row timm_siglip."""


def deepseek_tokens(scope: Scope) -> int:
    """Tokens of the largest of `candidate_resolutions`: the whole image, its tiles, a separator a row, and one.

    Source: vllm/model_executor/models/deepseek_vl2.py:get_num_image_tokens (0.32).
    """
    root, side = scope.section("root"), -(-(SIGLIP_IMAGE // SIGLIP_PATCH) // scope["merge"])
    tiles = [(1, 1)]
    for sides in root.sequence("candidate_resolutions") or ():
        if not isinstance(sides, list) or len(sides) != 2 or not all(isinstance(each, int) for each in sides):
            raise root.invalid("candidate_resolutions", sides, "expected pairs of integers")
        tiles.append((sides[0] // SIGLIP_IMAGE, sides[1] // SIGLIP_IMAGE))
    largest = max(height * side * (width * side + 1) for width, height in tiles)
    return side * (side + 1) + largest + 1


SHORT_VECTOR: Final = ("embed_dim", "dims", "dim", "projection_dim", "colbert_dim")


def short_vector(scope: Scope) -> int:
    """The width of the vector for each token; 0 where the config does not say it.

    Source: vllm/model_executor/models/colqwen3.py:ColQwen3Model (0.33).
    """
    root = scope.section("root")
    return next(filter(None, (root.optional_integer(key) for key in SHORT_VECTOR)), 0)


COMPUTED: Final[Mapping[str, Callable[[Scope], int]]] = {
    "checked_head": head_size,
    "side": side,
    "features": features,
    "grouped_heads": grouped_heads,
    "aria_queries": aria_queries,
    "short_vector": short_vector,
    "shuffle": lambda scope: int(downsampling(scope)),
    "nearest_shuffle": lambda scope: round(downsampling(scope)),
    "radio_side": radio_side,
    "radio_tokens": radio_tokens,
    "deepseek_tokens": deepseek_tokens,
    "halvings": lambda scope: scope["reduction"].bit_length() - 2,
}
"""Sizes that no formula says, by name."""


def read_encoder(name: str, section: Section, prefix: str = "", **given: int) -> vision.Encoder:
    """The encoder of a row for its section of the config; `given` are numbers that its names stand for.

    Example:
        >>> section = Section({"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        ...     "num_hidden_layers": 2, "image_size": 32, "patch_size": 16, "num_channels": 3})
        >>> read_encoder("siglip", section, "vision_tower", layers=1).modules[0].name
        'vision_tower.embeddings.patch_embedding'
    """
    built = Scope(ENCODERS[name], {"own": section}, given).build()
    return replace(built, modules=behind(prefix, built.modules))
