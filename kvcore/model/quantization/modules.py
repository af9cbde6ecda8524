"""How a checkpoint names its modules, and the lists of them in its config, asked as each of the engine's methods asks.

A list may have thousands of entries and a model thousands of modules, so none is asked entry by entry where a set does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import takewhile
from typing import Final

from msgspec import Struct

from kvcore.model.quantization.patterns import Allowance, Patterns
from kvcore.tables import TableFile

SHORT_LIST: Final = 64
"""Entries up to which a list is read through: faster than every piece of a name."""
CHARACTERS_PER_STEP: Final = 2048
"""Characters of one long text that are searched in the time of one step of an automaton."""
ASKING_STEPS: Final = 8
EXPERTS: Final = "experts"
_SPECIAL: Final = frozenset("*?[")


class Spellings(Struct, frozen=True, kw_only=True):
    """The names of modules.toml."""

    encoders: frozenset[str]
    quantized_encoders: tuple[str, ...]
    expert_projections: tuple[tuple[str, ...], ...]
    wrappers: tuple[tuple[str, str], ...]


SPELLINGS: Final = TableFile("kvcore.model.quantization", "modules.toml", Spellings).load()


class Kind(StrEnum):
    """Kinds of modules that a quantizer tells apart."""

    LINEAR = "linear"
    EXPERTS = "experts"
    VOCAB = "vocab"


class ModuleName(Struct, frozen=True, kw_only=True):
    """A module by its full checkpoint name and, where the engine fuses several tensors, theirs."""

    name: str
    parts: tuple[str, ...] = ()
    kind: Kind = Kind.LINEAR

    @property
    def shards(self) -> tuple[str, ...]:
        """The names of the checkpoint's own modules."""
        return self.parts or (self.name,)

    @property
    def expert_shards(self) -> tuple[tuple[str, ...], ...]:
        """The projections of the first expert, by each of the usual spellings."""
        return tuple(
            tuple(f"{self.name}.0.{part}" for part in parts) for parts in SPELLINGS.expert_projections
        )


def is_encoder(module: ModuleName) -> bool:
    """Whether the module belongs to an encoder or its projector.

    Example:
        >>> is_encoder(ModuleName(name="visual.blocks.0.attn.qkv"))
        True
    """
    return not SPELLINGS.encoders.isdisjoint(module.name.split("."))


def is_quantized_encoder(module: ModuleName) -> bool:
    """Whether the engine hands its quantization to this part of an encoder.

    Example:
        >>> is_quantized_encoder(ModuleName(name="vision_tower.transformer.layers.0.attention.o_proj"))
        True
    """
    return module.name.startswith(SPELLINGS.quantized_encoders)


def canonical(name: str) -> str:
    """`name` without what a multimodal checkpoint wraps around its language model.

    Example:
        >>> canonical("model.language_model.layers.3.mlp.experts")
        'model.layers.3.mlp.experts'
    """
    for wrapper, bare in SPELLINGS.wrappers:
        if name.startswith(wrapper):
            return bare + name[len(wrapper) :]
    return name


class NameList:
    """Names of modules and of the modules around them.

    Source: vllm/model_executor/layers/quantization/utils/quant_utils.py:is_layer_skipped (0.32).

    Example:
        >>> listed = NameList(["a.q_proj"], Allowance())
        >>> listed.covers(ModuleName(name="a.qkv_proj", parts=("a.q_proj", "a.k_proj")))
        False
    """

    def __init__(self, names: Iterable[str], allowance: Allowance) -> None:
        self.names = frozenset(names)
        experts = [name for name in self.names if EXPERTS in name]
        self._experts = "\n".join(experts)
        self._ends = "\n".join({name[: name.rindex(EXPERTS) + len(EXPERTS)] for name in experts})
        self._allowance = allowance

    def covers(self, module: ModuleName) -> bool:
        """Whether it names the module, one of its parents, or all of its parts; for experts also any of them."""
        if module.name in self.names:
            return True
        if module.kind is Kind.EXPERTS:
            # A name that ends so can only be found before the number of an expert, of which a layer has hundreds.
            names = self._ends if module.name.endswith(EXPERTS) else self._experts
            self._allowance.spend(len(names) // CHARACTERS_PER_STEP)
            if module.name in names:
                return True
        return all(self._has_parent(shard) for shard in module.shards)

    def _has_parent(self, name: str) -> bool:
        while name:
            if name in self.names:
                return True
            name = name.rpartition(".")[0]
        return False


class FragmentList:
    """Pieces of names (AWQ's `modules_to_not_convert`).

    Example:
        >>> FragmentList(["gate"], Allowance()).covers(ModuleName(name="model.layers.3.mlp.gate_up_proj"))
        True
    """

    def __init__(self, fragments: Iterable[str], allowance: Allowance) -> None:
        self._fragments = frozenset(fragments)
        self._lengths = sorted(set(map(len, self._fragments)))
        self._allowance = allowance

    def covers(self, module: ModuleName) -> bool:
        """Whether each of the module's names contains one of them."""
        return all(self.are_in(shard) for shard in module.shards)

    def are_in(self, name: str) -> bool:
        """Whether one of them is in `name`."""
        if len(self._fragments) <= SHORT_LIST:
            self._allowance.spend(len(self._fragments) // 8)
            return any(fragment in name for fragment in self._fragments)
        lengths = [length for length in self._lengths if length <= len(name)]
        self._allowance.spend(len(lengths) * len(name) // 16)
        return any(
            name[start : start + length] in self._fragments
            for length in lengths
            for start in range(len(name) - length + 1)
        )


class WildcardList:
    """ModelOpt's `exclude_modules`: names, fragments and wildcards.

    Source: vllm/model_executor/layers/quantization/modelopt.py:ModelOptQuantConfigBase.is_layer_excluded (0.32).

    Example:
        >>> listed = WildcardList(["model.layers.3.self_attn*"], Allowance())
        >>> listed.covers(ModuleName(name="model.layers.3.self_attn.o_proj"))
        True
    """

    def __init__(self, patterns: Iterable[str], allowance: Allowance) -> None:
        patterns = tuple(patterns)
        self._names = NameList(patterns, allowance)
        self._fragments = FragmentList(patterns, allowance)
        wildcards = [pattern for pattern in patterns if "*" in pattern]
        self._beginnings = frozenset(pattern[:-1] for pattern in wildcards if _is_beginning(pattern))
        others = [pattern for pattern in wildcards if not _is_beginning(pattern)]
        self._wildcards = Patterns(others, allowance, wildcards=True)

    def covers(self, module: ModuleName) -> bool:
        """Whether the list leaves the module out."""
        return (
            self._names.covers(module)
            or self._fragments.are_in(module.name)
            or not self._beginnings.isdisjoint(beginnings(module.name))
            or self._wildcards.first(module.name) is not None
        )


def _is_beginning(pattern: str) -> bool:
    return pattern.endswith("*") and _SPECIAL.isdisjoint(pattern[:-1])


class PatternList:
    """Names, and patterns after `re:` (compressed-tensors, Quark).

    Source: vllm/model_executor/layers/quantization/utils/config_utils.py:is_equal_or_regex_match,
    compressed_tensors/utils.py:should_ignore_layer, compressed_tensors_moe/compressed_tensors_moe.py:get_moe_method
    (0.32).

    Example:
        >>> listed = PatternList(["re:.*self_attn.*", "lm_head"], Allowance())
        >>> listed.covers(ModuleName(name="model.layers.0.self_attn.q_proj"))
        True
    """

    def __init__(self, entries: Iterable[str], allowance: Allowance) -> None:
        entries = tuple(entries)
        self._names = frozenset(entry for entry in entries if not entry.startswith("re:"))
        self._patterns = Patterns([entry[3:] for entry in entries if entry.startswith("re:")], allowance)
        self._allowance = allowance

    def covers(self, module: ModuleName) -> bool:
        """Whether it has the module or all of its parts; experts by the projections of the first one."""
        self._allowance.spend(ASKING_STEPS)
        if self._has(module.name):
            return True
        alternatives = module.expert_shards if module.kind is Kind.EXPERTS else (module.shards,)
        return any(all(map(self._has, shards)) for shards in alternatives)

    def _has(self, name: str) -> bool:
        return name in self._names or self._patterns.first(name) is not None


class PrefixIndex:
    """Names by how they begin, in the order in which they were given.

    Example:
        >>> list(PrefixIndex(["b.2", "a.1", "b.1"]).beginning_with("b."))
        ['b.2', 'b.1']
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self._sorted = sorted(self._places)

    def beginning_with(self, prefix: str) -> Iterator[str]:
        """The names that begin with `prefix`."""
        places = range(bisect_left(self._sorted, prefix), len(self._sorted))
        names = map(self._sorted.__getitem__, places)
        found = takewhile(lambda name: name.startswith(prefix), names)
        return iter(sorted(found, key=self._places.__getitem__))


def beginnings(name: str) -> Iterator[str]:
    """`name`, cut short after each of its characters.

    Example:
        >>> list(beginnings("abc"))
        ['', 'a', 'ab', 'abc']
    """
    return (name[:length] for length in range(len(name) + 1))


def component_runs(name: str) -> Iterator[str]:
    """Each run of whole components of a name.

    Example:
        >>> list(component_runs("a.b"))
        ['a', 'a.b', 'b']
    """
    components = name.split(".")
    return (
        ".".join(components[start:stop])
        for start in range(len(components))
        for stop in range(start + 1, len(components) + 1)
    )
