"""A JSON request -> a Scenario, its fields read by their rows of the registry. See docs/contract.md.

All input is untrusted: text is bounded before it is parsed, each field is checked for type and range, and errors are
coded and name the field.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import CatalogueError, KvPlannerError, ScenarioError, invalid, shorten
from kvcore.base.untrusted import is_json, parse_json_object
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.catalogue.models import BY_NAME, Checkpoint, ModelEntry
from kvcore.catalogue.names import Recognition, recognized
from kvcore.engines.registry import engine_for, find_engine, is_planned
from kvcore.flags import ENVIRONMENT_NAME, FLAGS, Kind
from kvcore.model.config import ModelConfig
from kvcore.model.overrides import read_overrides
from kvcore.scenario import (
    DEFAULT_ENGINE,
    NEEDED_DRAFTS,
    PARALLEL,
    CudagraphMode,
    Host,
    Installation,
    Link,
    Measured,
    Parallel,
    Runner,
    Scenario,
    SpeculativeConfig,
    Surroundings,
)
from kvcore.wire.fields import Fields, Json, read_integer, read_object

if TYPE_CHECKING:
    from kvcore.hub import HubModel

UNNAMED_MODEL: Final = "config.json"
"""Label of a model given only by its config."""

FetchModel = Callable[[str], "HubModel"]
ReadConfig = Callable[[Mapping[str, Any], Mapping[str, Any] | None], ModelConfig]


def from_hub(model: str) -> HubModel:
    """The facts of a model that is not bundled, from the Hugging Face Hub. Raises HubError."""
    from kvcore.hub import fetch_model

    return fetch_model(model)


def parse_request(text: str) -> Json:
    """One request from untrusted text.

    Raises ScenarioError `input-too-large`, `input-too-deep` or `invalid-json`.

    Example:
        >>> parse_request('{"model": "Qwen/Qwen3-32B"}')
        {'model': 'Qwen/Qwen3-32B'}
    """
    return parse_json_object(text)


def id_of(request: Json) -> object:
    """The `id` of a request, which the result repeats.

    Raises ScenarioError for one that JSON cannot repeat: NaN, an infinity, half of a surrogate pair.
    """
    found = request.get("id")
    if not is_json(found):
        raise invalid("id", shorten(found), "it must be a text of whole characters or a number")
    return found


_MEASURED: Final = Measured.__struct_fields__
_CHECKPOINT: Final = Checkpoint.__struct_fields__
_READ_APART: Final = (
    "model", "config", "checkpoint", "accelerator", "engine", "engine_version", "parallel", "speculative_config",
    "limit_mm_per_prompt", "mm_processor_kwargs", "hf_overrides", "kv_transfer_config", "additional_config",
    "server_args", "env",
    "surroundings", "measured",
)  # fmt: skip
_PLAIN: Final = tuple(name for name in Scenario.__struct_fields__ if name not in _READ_APART)
"""Fields of a scenario that need only their row of the registry."""
_ENUMS: Final[Mapping[str, type[StrEnum]]] = {
    "runner": Runner,
    "cudagraph_mode": CudagraphMode,
    "link": Link,
    "installation": Installation,
    "host": Host,
}
_ENVIRONMENT_NAME: Final = re.compile(ENVIRONMENT_NAME)


def scenario_from_request(
    request: Json, fetch: FetchModel | None = None, read_config: ReadConfig = ModelConfig.from_mapping
) -> Scenario:
    """The scenario that a request asks for.

    `fetch` finds models that the catalogue does not have; without it they are refused. `read_config` reads a given
    config: for many requests, use that of one `SharedConfigs`.
    Raises a KvPlannerError that names the field.

    Example:
        >>> scenario = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"})
        >>> scenario.accelerator.id, scenario.parallel.tensor_parallel_size
        ('H100-80GB', 1)
    """
    named = request.get("engine")
    if named is None or (isinstance(named, str) and is_planned(named)):
        request = find_engine(named or DEFAULT_ENGINE).adopted(request)
    asked = Fields(request)
    model, config, checkpoint = _model(asked, fetch, read_config)
    headers = asked.read("headers")
    if headers is not None:
        from kvcore.model.headers import read_headers  # which few requests have

        config = dataclasses.replace(config, headers=read_headers(headers))
    accelerator = _accelerator(asked)
    engine = asked.read("engine")
    if engine is None:
        engine = DEFAULT_ENGINE if accelerator is None else engine_for(accelerator).name
    engine_version = asked.read("engine_version")
    find_engine(engine).release(engine_version)
    parallel = Parallel(**asked.given(PARALLEL))
    overrides = None if request.get("hf_overrides") is None else read_overrides(request["hf_overrides"])
    if overrides is not None and overrides.others:
        config = overrides.applied(config)
        checkpoint = known_checkpoint(model, config, _checkpoint(asked))
    scenario = Scenario(
        model=model,
        config=config,
        checkpoint=checkpoint,
        accelerator=accelerator,
        engine=engine,
        engine_version=engine_version,
        parallel=parallel,
        speculative_config=_speculative(asked, fetch),
        limit_mm_per_prompt=_limits(asked),
        hf_overrides=None if overrides is None else overrides.text,
        env=_environment(asked),
        mm_processor_kwargs=_processor(asked),
        kv_transfer_config=read_object(asked.read("kv_transfer_config") or {}, "kv_transfer_config"),
        additional_config=read_object(asked.read("additional_config") or {}, "additional_config"),
        server_args=read_object(asked.read("server_args") or {}, "server_args"),
        surroundings=_surroundings(asked),
        measured=_measured(asked),
        **_with_enums(asked.given(_PLAIN)),
    )
    if asked.read("draft_config"):  # an engine that has it took it into the draft's own fields
        raise ScenarioError("field-of-another-engine", field="draft_config", engine=engine)
    return scenario


def _model(
    asked: Fields, fetch: FetchModel | None, read_config: ReadConfig
) -> tuple[str, ModelConfig, Checkpoint]:
    label = asked.read("model")
    config = asked.read("config")
    side_file = asked.read("hf_quant_config")
    facts = _checkpoint(asked)
    if config is not None:
        named = None if label is None else catalogue.bundled_model(label)
        if side_file is None and named is not None:
            side_file = named.config.hf_quant_config
        own = read_config(config, side_file)
        name = label or UNNAMED_MODEL
        return name, own, known_checkpoint(name, own, facts)
    if label is None:
        raise ScenarioError("missing-field", field="model")
    meant = recognized(label)
    entry = None if meant is None else catalogue.bundled_model(meant.model)
    if entry is None or entry.rank in BY_NAME:
        fetched = _fetched(label if meant is None else meant.model, fetch, entry)
        if fetched is not None:
            return label, fetched.config, _filled(facts, fetched.checkpoint)
    if entry is None or meant is None:
        entry = catalogue.find_model(label)
    name = entry.id if meant is not None and meant.how is Recognition.ID else label
    return name, entry.config, _filled(facts, entry.checkpoint)


def _fetched(model: str, fetch: FetchModel | None, entry: ModelEntry | None) -> HubModel | None:
    """The Hub's own facts of a model; None where there is no way to ask, or with `entry` where none can be had.

    Raises HubError for a model that the catalogue does not have.
    """
    if fetch is None:
        return None
    if entry is None:
        return fetch(model)
    from kvcore.hub import better_than_by_name

    return better_than_by_name(model, fetch)


def known_checkpoint(model: str, config: ModelConfig, facts: Checkpoint) -> Checkpoint:
    """`facts` completed by the catalogue's facts about the repository; sizes only for the catalogue's own config.

    All scenarios have them, however their config was given, so that a link without the config gives the same plan.
    """
    named = catalogue.bundled_model(model)
    if named is None:
        return facts
    known = named.checkpoint
    if config != named.config:
        known = Checkpoint(sentence_transformers=known.sentence_transformers)
    return _filled(facts, known)


def _filled(facts: Checkpoint, known: Checkpoint) -> Checkpoint:
    """`known` facts, replaced by those that are given."""
    stated = {name: value for name in _CHECKPOINT if (value := getattr(facts, name)) is not None}
    return replace(known, **stated)


def _checkpoint(asked: Fields) -> Checkpoint:
    return Checkpoint(**Fields(asked.read("checkpoint") or {}, "checkpoint").given(_CHECKPOINT))


def _accelerator(asked: Fields) -> Accelerator | None:
    raw = asked.read("accelerator")
    if raw is None:
        return None
    if isinstance(raw, str):
        return catalogue.find_accelerator(raw)
    inner = Fields(raw, "accelerator")
    memory_gib, name = inner.read("memory_gib"), inner.read("name")
    if memory_gib is None and name is None:
        raise ScenarioError("missing-field", field="accelerator.memory_gib")
    link = inner.read("interconnect")
    try:
        card = catalogue.accelerator_from_facts(memory_gib, inner.read("vendor"), name)
    except CatalogueError:
        return None
    card = card if link is None else catalogue.with_interconnect(card, Interconnect(link))
    return _as_described(card, inner)


def _as_described(card: Accelerator, inner: Fields) -> Accelerator:
    """`card` with the capability and the driver's memory that are given."""
    capability, total = inner.read("compute_capability"), inner.read("driver_total_mib")
    if capability is not None:
        major, _, minor = capability.partition(".")
        if major.isdecimal() and minor.isdecimal() and len(capability) < 6:
            card = dataclasses.replace(card, compute_capability=(int(major), int(minor)))
    return card if total is None else dataclasses.replace(card, driver_total_mib=total)


def _speculative(asked: Fields, fetch: FetchModel | None) -> SpeculativeConfig | None:
    raw = asked.read("speculative_config")
    if raw is None:
        return None
    inner = Fields(raw, "speculative_config")
    model, written = inner.read("model"), inner.read("config")
    method = inner.read("method") or speculative_method(model)
    if method is None:
        raise ScenarioError("missing-field", field="speculative_config.method")
    config = None if written is None else ModelConfig.from_mapping(written)
    if config is None and model is not None and (method in NEEDED_DRAFTS or method.startswith("eagle")):
        config = _draft_config(model, method, fetch)
    return SpeculativeConfig(
        method=method,
        model=model,
        config=config,
        **inner.given(("num_speculative_tokens", "draft_tensor_parallel_size", "enforce_eager")),
    )


def speculative_method(model: str | None) -> str | None:
    """The method that the engine infers from the name of a draft, where none is given.

    Source: vllm/config/speculative.py:SpeculativeConfig.__post_init__ (0.32).

    Example:
        >>> speculative_method("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"), speculative_method("Qwen/Qwen3-0.6B")
        ('eagle3', 'draft_model')
        >>> speculative_method("z-lab/Qwen3.5-9B-DFlash")
        'dflash'
    """
    if model is None:
        return None
    name = model.lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    if "eagle-" in name:
        return "eagle"
    return next((method for method in ("eagle3", "dflash", "dspark") if method in name), "draft_model")


def _draft_config(model: str, method: str, fetch: FetchModel | None) -> ModelConfig | None:
    """The config of a draft outside the catalogue; None for a bundled one, and for an unknown head."""
    if catalogue.bundled_model(model) is not None:
        return None
    is_needed = method in NEEDED_DRAFTS
    if fetch is not None:
        try:
            return fetch(model).config
        except KvPlannerError:
            if is_needed:
                raise
    elif is_needed:
        raise ScenarioError("draft-model-unknown", field="speculative_config.model", value=model)
    return None


def _limits(asked: Fields) -> Mapping[str, int] | None:
    raw = asked.read("limit_mm_per_prompt")
    if raw is None:
        return None
    said: dict[str, Any] = {}
    for name, value in raw.items():
        own = value if isinstance(value, dict) else {"count": value}
        said |= {name if key == "count" else f"{name}.{key}": one for key, one in own.items()}
    limits: dict[str, int] = {}
    for name, value in said.items():
        flag = FLAGS.get(f"limit_mm_per_prompt.{name}")
        if flag is None or (flag.kind is Kind.COUNT and type(value) is not int):
            raise invalid("limit_mm_per_prompt", raw, "it must give a whole number for image, video or audio")
        if value is not None:
            limits[name] = read_integer(flag, value)
    return limits


def _processor(asked: Fields) -> Mapping[str, float] | None:
    raw = asked.read("mm_processor_kwargs")
    return None if raw is None else read_fields(raw, "mm_processor_kwargs")


def _surroundings(asked: Fields) -> Surroundings:
    return Surroundings(**read_fields(asked.read("surroundings") or {}, "surroundings"))


def read_fields(raw: Json, parent: str) -> dict[str, Any]:
    """The fields of an object of a request that are not null.

    Raises ScenarioError `unknown-field` or `invalid-value`.

    Example:
        >>> read_fields({"link": "pcie", "host": None}, "surroundings")
        {'link': <Link.PCIE: 'pcie'>}
    """
    inner = Fields(raw, parent)
    return _with_enums(inner.given(tuple(inner.flags)))


def with_surroundings(scenario: Scenario, changes: Json) -> Scenario:
    """`scenario` with changed surroundings, None for unknown.

    Raises ScenarioError `unknown-field` or `invalid-value`.
    """
    read = {**dict.fromkeys(changes), **read_fields(changes, "surroundings")}
    return replace(scenario, surroundings=replace(scenario.surroundings, **read))


def _with_enums(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _ENUMS[name](value) if name in _ENUMS else value for name, value in values.items()}


def _environment(asked: Fields) -> Mapping[str, str]:
    raw = asked.read("env") or {}
    out: dict[str, str] = {}
    for name, value in raw.items():
        usable = isinstance(value, str | int | float) and len(str(value)) <= 400 and str(value).isprintable()
        if not usable or _ENVIRONMENT_NAME.fullmatch(name) is None:
            raise invalid(f"env.{str(name)[:80]}", value, "it must be a text or a number")
        out[name] = str(int(value)) if isinstance(value, bool) else str(value)
    return out


def _measured(asked: Fields) -> Measured:
    raw = asked.read("measured")
    if raw is None:
        return Measured()
    inner = Fields(raw, "measured")
    values = inner.given(_MEASURED)
    for name in ("fitted", "carried"):
        if not set(values.get(name, ())) <= values.keys():
            raise invalid(inner.flags[name].name, raw[name], "it must be a list of parts that are given here")
    return Measured(**values)
