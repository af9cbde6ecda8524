"""Facts about the engine's model classes (`classes.toml`, one table a fact), and which releases lack one."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final

from msgspec import Meta, Struct
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.base.kept import kept
from kvcore.engine.records import Adaptable, End, LoraLimits
from kvcore.engine.switches import AttentionBackend
from kvcore.engines.vllm.start import VllmPlatform
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.tables import (
    NEVER,
    OLDEST,
    Record,
    ReleaseRange,
    Releases,
    Reviewed,
    Source,
    TableFile,
    one_of,
)

ModelClass = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
AdaptedModule = Annotated[str, one_of(("embed_tokens", "lm_head", "qkv_proj", "gate_up_proj"))]


class Table(Record, frozen=True, kw_only=True):
    """One fact, with its source."""

    source: Source
    reviewed: Version | None = None
    """The release that it was compared with, where that is later than the file's."""


class Absence(Struct, frozen=True, kw_only=True):
    """Releases from `first` to `last` lack a class: it came with `since`, or the last release with it is `until`."""

    first: Version
    last: Version
    since: Version | None = None
    until: Version | None = None

    def covers(self, version: Version) -> bool:
        """Whether `version` surely lacks the class."""
        return self.first <= version <= self.last

    def is_unsure(self, version: Version) -> bool:
        """Whether `version` lacks the class, or comes after the last one that has it in the engine's own words."""
        return version <= self.last and (
            version >= self.first if self.until is None else version > self.until
        )


class GoneRow(Record, frozen=True, kw_only=True):
    """Classes that were dropped: the first read release without them, and the last one with them in its own words."""

    first_without: Version
    until: Version
    architectures: tuple[ModelClass, ...]
    back: Version | None = None


class Registry(Table, frozen=True, kw_only=True, dict=True):
    """Classes by release."""

    read: tuple[Version, ...]
    since: Releases[tuple[ModelClass, ...]]
    transformers: Releases[tuple[ModelClass, ...]]
    gone: tuple[GoneRow, ...]

    def __post_init__(self) -> None:
        if list(self.read) != sorted(set(self.read)):
            raise ValueError("read holds each release once, oldest first")
        self.absences  # noqa: B018 - what is wrong in the lists is found with them

    @cached_property
    def absences(self) -> Mapping[str, tuple[Absence, ...]]:
        """Absences by class. Raises ValueError for a class that is listed twice, or not where it has to be."""
        earlier = by_class(self.transformers)
        absences: dict[str, list[Absence]] = {}
        for name, since in by_class(self.since).items():
            last = self.before(earlier.pop(name, since))
            absences[name] = [Absence(first=OLDEST, last=last, since=since)]
        if earlier:
            raise ValueError("transformers names a class that since does not: " + ", ".join(sorted(earlier)))
        for row in self.gone:
            self.before(row.first_without)
            last = NEVER if row.back is None else self.before(row.back)
            absence = Absence(first=row.first_without, last=last, until=row.until)
            for name in row.architectures:
                absences.setdefault(name, []).append(absence)
        return {name: tuple(rows) for name, rows in absences.items()}

    def before(self, version: Version) -> Version:
        """The read release before that one. Raises ValueError for one that was not read, or is the first."""
        found = self._earlier.get(version)
        if found is None:
            raise ValueError(f"{version} is not a release that was read, with one before it")
        return found

    @cached_property
    def _earlier(self) -> Mapping[Version, Version]:
        return dict(zip(self.read[1:], self.read, strict=False))


def by_class(table: Mapping[Version, tuple[str, ...]]) -> dict[str, Version]:
    """Class -> the release that it is listed under. Raises ValueError for a class that is listed twice."""
    found: dict[str, Version] = {}
    for release, names in table.items():
        for name in names:
            if name in found:
                raise ValueError(f"{name} is listed twice")
            found[name] = release
    return found


class Languages(Table, frozen=True, kw_only=True):
    """The class that runs the language part of a multimodal model, by the model_type of that part."""

    classes: Mapping[Annotated[str, Meta(pattern=r"^[a-z0-9_.-]+$")], ModelClass]


class ClassRow(ReleaseRange, frozen=True, kw_only=True):
    """Some classes, in some releases."""

    architectures: frozenset[ModelClass]


class UnsupportedRow(ClassRow, frozen=True, kw_only=True):
    """Classes that the engine does not cut into stages."""

    source: Source


class EveryStageRow(UnsupportedRow, frozen=True, kw_only=True):
    """Ends that some classes build on every stage."""

    modules: frozenset[End]


class Stages(Table, frozen=True, kw_only=True):
    """How classes are cut into pipeline stages."""

    every_stage: tuple[EveryStageRow, ...]
    unsupported: tuple[UnsupportedRow, ...]


class AdaptedRow(ClassRow, frozen=True, kw_only=True):
    """Modules of some classes."""

    modules: frozenset[AdaptedModule]


class Lora(Table, frozen=True, kw_only=True):
    """Which modules of a class get adapter slots."""

    limits: tuple[LoraLimits, ...]
    vocabulary: tuple[AdaptedRow, ...]
    """Whose embedding or lm_head is adapted."""
    unsupported: frozenset[ModelClass]
    taught: Releases[frozenset[ModelClass]]
    """Those among them that take adapters from a release on."""
    one_slice: tuple[AdaptedRow, ...]
    fused_expert_gates: frozenset[ModelClass]


class Uncompiled(Table, frozen=True, kw_only=True):
    """Model classes that are not compiled, by the release that they are in first."""

    classes: Releases[frozenset[ModelClass]]

    def covers(self, name: str, version: Version) -> bool:
        """Whether `version` does not compile the class."""
        return any(since <= version and name in names for since, names in self.classes.items())


class ForcedBackends(Table, frozen=True, kw_only=True):
    """Classes that have to ask for an attention backend."""

    classes: Mapping[AttentionBackend, frozenset[ModelClass]]


class Runners(Table, frozen=True, kw_only=True):
    """Names whose class generates, although they end like one that pools."""

    generate: frozenset[ModelClass]


class V2Runner(Table, frozen=True, kw_only=True):
    """Classes that run with the V2 model runner before it is everybody's."""

    dense: frozenset[ModelClass]
    experts: frozenset[ModelClass]


class ClassTables(Reviewed, frozen=True, kw_only=True):
    """classes.toml."""

    registry: Registry
    language: Languages
    stages: Stages
    lora: Lora
    uncompiled: Uncompiled
    attention_backend: ForcedBackends
    runner: Runners
    v2_runner: V2Runner


CLASSES: Final = TableFile("kvcore.engines.vllm", "classes.toml", ClassTables)


def language_class(model_type: str) -> str:
    """The class for a language part of that model_type; "" for one without an entry.

    Example:
        >>> language_class("qwen3_vl_moe_text"), language_class("resnet")
        ('Qwen3MoeForCausalLM', '')
    """
    return CLASSES.load().language.classes.get(model_type, "")


def known_absences() -> Mapping[str, tuple[Absence, ...]]:
    """Which releases lack a class, by class."""
    return CLASSES.load().registry.absences


def check_architectures(names: tuple[str, ...], engine: VllmPlatform, version: Version) -> None:
    """Raises EngineRefusalError where `version` surely has none of the model classes `names` of a config.

    `architecture-not-in-release` for the first of them that it does not have yet, `architecture-gone-from-release` for
    one that it has no more.

    Source: vllm/model_executor/models/registry.py:_ModelRegistry._raise_for_unsupported (0.11.0, 0.32.0).
    """
    absence = absence_of(names, engine, version)
    if absence is None:
        return
    code, facts = "architecture-gone-from-release", {"until": absence.until}
    if absence.until is None:
        code, facts = "architecture-not-in-release", {"since": absence.since}
    raise EngineRefusalError(code, "engine_version", names[0], version=version, **facts)


def absence_of(names: tuple[str, ...], engine: VllmPlatform, version: Version) -> Absence | None:
    """Why `version` has none of `names`, of the first of them; None where it has one, or that is not known.

    Example:
        >>> from kvcore.engines.registry import find_engine
        >>> vllm, names = find_engine("vllm"), ("Qwen3_5ForConditionalGeneration",)
        >>> absence_of(names, vllm, Version("0.9.2")).since
        <Version('0.17.1')>
        >>> absence_of(names, vllm, Version("0.19.1"))
    """
    if not engine.lists_classes(version):
        return None
    absences = known_absences()
    found = [
        next((absence for absence in absences.get(name, ()) if absence.covers(version)), None)
        for name in names
    ]
    return found[0] if found and all(found) else None


def is_surely_there(names: tuple[str, ...], version: Version) -> bool:
    """Whether nothing speaks against a release of vLLM for a config of the classes `names`.

    Example:
        >>> is_surely_there(("BaichuanForCausalLM",), Version("0.23.0"))
        True
        >>> is_surely_there(("BaichuanForCausalLM",), Version("0.24.0"))
        False
    """
    absences = known_absences()
    return not names or any(
        not any(absence.is_unsure(version) for absence in absences.get(name, ())) for name in names
    )


@kept
def adaptable(config: ModelConfig, version: Version) -> Adaptable:
    """The modules of a model that LoRA adapters may adapt.

    Source: vllm/lora/utils.py:get_supported_lora_modules (0.11.0, 0.32.0).
    """
    tables = CLASSES.load().lora
    own = frozenset(config.architectures)
    language = language_class(config.language.model_type)
    names = own if config.language is config.root or not language else own | {language}
    modules = modules_of(tables.vocabulary, names, version)
    taught = frozenset(name for since, them in tables.taught.items() if since <= version for name in them)
    return Adaptable(
        limits=next(row for row in tables.limits if row.covers(version)),
        is_supported=not (own & tables.unsupported) - taught,
        embedding="embed_tokens" in modules,
        head="lm_head" in modules,
        one_slice=modules_of(tables.one_slice, names, version),
        fused_expert_gates=bool(own & tables.fused_expert_gates),
    )


def modules_of(rows: tuple[AdaptedRow, ...], names: frozenset[str], version: Version) -> frozenset[str]:
    """The modules that the rows name for any of these classes in this version."""
    matching = (row for row in rows if row.covers(version) and names & row.architectures)
    return frozenset(module for row in matching for module in row.modules)


def compiles(architecture: Architecture, version: Version) -> bool:
    """Whether `version` compiles the class of the model."""
    return not CLASSES.load().uncompiled.covers(architecture.read_as, version)


def ends_on_every_stage(architecture: Architecture, version: Version) -> frozenset[End]:
    """The ends that each of several pipeline stages stores a copy of.

    A class that nobody reads may store all of them, as most do, and is charged with them.

    Raises EngineRefusalError `pipeline-unsupported` for a class that is not cut into stages.

    Source: the classes of vllm/model_executor/models, the rows' own; vllm/config/model.py:
    ModelConfig.verify_with_parallel_config (0.11.0, 0.32.0).
    """
    if architecture.is_assumed:
        return frozenset(End)
    language = language_class(architecture.language_type or architecture.read_as)
    return ends_of_class(architecture.read_as, language, version)


def ends_of_class(own: str, language: str, version: Version) -> frozenset[End]:
    """The ends that the classes `own` and `language` build on every stage.

    Raises EngineRefusalError `pipeline-unsupported` for a class that is not cut into stages.

    Example:
        >>> sorted(ends_of_class("Qwen3NextForCausalLM", "", Version("0.32.0")))
        [<End.EMBEDDING: 'embedding'>, <End.HEAD: 'head'>]
    """
    tables = CLASSES.load().stages
    if any(own in row.architectures and row.covers(version) for row in tables.unsupported):
        raise EngineRefusalError("pipeline-unsupported", field="pipeline_parallel_size", value=own)
    rows = (row for row in tables.every_stage if row.covers(version))
    nothing: frozenset[End] = frozenset()
    return nothing.union(*(row.modules for row in rows if {own, language} & row.architectures))
