"""Published guides next to the figures of this planner.

A parameter has its default by version, and the plan for a few values of it; what a document gets wrong has what is
true, with figures.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import DASH, concurrency_text, count, exact_gib_text, gib_text, kib_text, plain
from kvcore.base.units import GIB, ceil_div
from kvcore.base.words import Words
from kvcore.controls.edit import with_field
from kvcore.controls.offers import engine_versions, tensor_parallel_sizes
from kvcore.deploy.going_live import COMFORTABLE_SHARE, default_load, expected_log_lines, thresholds
from kvcore.engines.registry import engine_of, view_of
from kvcore.planning import Plan, plan
from kvcore.scenario import Scenario, SpeculativeConfig
from kvcore.tables import Record, Source, TableFile
from kvcore.texts import Correction, Parameter, Trial
from kvcore.wire.request import scenario_from_request

POST_MORTEM: Final[Mapping[str, Any]] = {
    "model": "meta-llama/Llama-2-70b-chat-hf",
    "accelerator": "A100-80GB",
    "tensor_parallel_size": 4,
    "dtype": "float16",
    "gpu_memory_utilization": 0.9,
    "max_model_len": 8192,
    "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
}
"""The post-mortem's start, as a link."""
RULE_OF_THUMB: Final[Mapping[str, Any]] = {
    "model": "Qwen/Qwen3-32B",
    "accelerator": "RTX-4090-24GB",
    "tensor_parallel_size": 8,
    "dtype": "float16",
    "gpu_memory_utilization": 0.75,
    "max_model_len": 8192,
    "accelerator.memory_gib": 24,
    "measured.weights_gib": 8,
    "measured.non_torch_gib": 5,
    "measured.peak_activation_gib": 0,
    "measured.cuda_graph_gib": 0,
}
"""The rule of thumb with its assumptions as the user's own figures, as a link. By yorickbao, CC BY 4.0."""
BATCH: Final = 8
PROMPT_TOKENS: Final = 1500
LATENT_POOL_GIB: Final = 8


class Effect(Struct, frozen=True, kw_only=True):
    """The plan with one value of a parameter; `plan` is None where the engine refuses it."""

    value: Any
    label: str
    is_present: bool
    plan: Plan | None
    refusal: KvPlannerError | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the KV cache per replica; 0 where there is none, or where the start fails."""
        return self.plan.cache.tokens if self.plan and self.plan.cache and self.plan.cache.fits else 0

    @property
    def concurrency(self) -> float:
        """Requests of the full length at once, per replica; 0 where the start fails."""
        cache = self.plan.cache if self.plan else None
        return cache.max_concurrency if cache is not None and cache.fits else 0.0


class DefaultRun(Struct, frozen=True, kw_only=True):
    """A default, and the first and last known version that has it."""

    value: Any
    first: str
    last: str


NGRAM: Final = SpeculativeConfig(method="ngram", num_speculative_tokens=4)
_VALUES: Final[dict[Trial, tuple[Any, ...]]] = {
    Trial.SHARES: (0.7, 0.8, 0.85, 0.9, 0.95),
    Trial.PIPELINES: (1, 2, 4),
    Trial.PRECISIONS: (None, "fp8", "bitsandbytes"),
    Trial.KV_DTYPES: ("auto", "fp8"),
    Trial.DTYPES: ("auto", "bfloat16", "float16", "float32"),
    Trial.SEATS: (16, 64, 128, 256, 512, 1024),
    Trial.BATCHES: (2048, 4096, 8192, 16384, 32768),
    Trial.BLOCKS: (16, 32, 64, 128),
    Trial.SWITCH: (False, True),
    Trial.SPECULATION: (None, NGRAM),
    Trial.OFFLOADS: (0.0, 4.0, 8.0, 16.0),
    Trial.NPU_TOTALS: ("32", "64"),
    Trial.NPU_MODELS: ("30", "40", "50", "55"),
}
LENGTH_STEPS: Final = (2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1 << 20)
DEFAULTED: Final = (
    "max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "block_size",
    "enable_prefix_caching", "enable_chunked_prefill",
)  # fmt: skip
"""Fields whose default depends on the version; the scenario has None for it."""


def values_of(planned: Plan, parameter: Parameter) -> tuple[Any, ...]:
    """The values to try: round ones that the scenario may take, and the present one."""
    scenario, trial, field = planned.scenario, parameter.trial, parameter.field
    if trial is None or field is None:
        return ()
    if trial is Trial.LENGTHS:
        limit = planned.resolved.derived_max_model_len
        lengths = {step for step in LENGTH_STEPS if step <= limit} | {limit, planned.resolved.max_model_len}
        return tuple(sorted(lengths))[-7:] if len(lengths) > 7 else tuple(sorted(lengths))
    if trial is Trial.SIZES:
        return tensor_parallel_sizes(scenario)
    values: tuple[Any, ...] = _VALUES[trial]
    present = present_value(planned, field)
    if present in values or isinstance(present, SpeculativeConfig):
        return values
    extended = (*values, present)
    return tuple(sorted(extended)) if all(isinstance(value, int | float) for value in extended) else extended


def present_value(planned: Plan, field: str) -> Any:
    """The value of `field` in the plan, defaults filled in."""
    scenario, resolved = planned.scenario, planned.resolved
    if field.startswith("env."):
        name = field.removeprefix("env.")
        return scenario.env.get(name, _variable_defaults(scenario).get(name))
    if field in DEFAULTED:
        return getattr(resolved, field)
    if hasattr(scenario.parallel, field):
        return getattr(scenario.parallel, field)
    return getattr(scenario, field)


def takes_part(planned: Plan, parameter: Parameter) -> bool:
    """Whether the engine of the scenario reads the parameter: variables belong to one engine."""
    field = parameter.field or ""
    return not field.startswith("env.") or field.removeprefix("env.") in _variable_defaults(planned.scenario)


def _variable_defaults(scenario: Scenario) -> Mapping[str, str]:
    engine = engine_of(scenario)
    variables = engine.variables_in(engine.planned_release(scenario).version)
    return variables.defaults() if variables is not None else {}


def effects(planned: Plan, parameter: Parameter, t: Words) -> tuple[Effect, ...]:
    """The plan for each value of the parameter, everything else as it is; empty where it does nothing here."""
    field = parameter.field
    if field is None or not takes_part(planned, parameter):
        return ()
    present = present_value(planned, field)
    found = []
    for value in values_of(planned, parameter):
        tried: Plan | None = planned
        refusal = None
        if value != present:
            try:
                tried = plan(_with(planned.scenario, field, value))
            except KvPlannerError as error:
                tried, refusal = None, error
        found.append(
            Effect(
                value=value,
                label=value_text(value, t),
                is_present=value == present,
                plan=tried,
                refusal=refusal,
            )
        )
    return tuple(found)


def _with(scenario: Scenario, field: str, value: Any) -> Scenario:
    if field.startswith("env."):
        return replace(scenario, env={**scenario.env, field.removeprefix("env."): value})
    return with_field(scenario, field, value)


def value_text(value: Any, t: Words) -> str:
    """A value as a person reads it."""
    if value is None:
        return t("none")
    if isinstance(value, bool):
        return t("on") if value else t("off")
    if isinstance(value, SpeculativeConfig):
        return f"{value.method} × {value.num_speculative_tokens}"
    if isinstance(value, int):
        return count(value)
    return plain(value) if isinstance(value, float) else str(value)


def defaults_by_version(planned: Plan) -> dict[str, tuple[DefaultRun, ...]]:
    """Field -> its default over the known versions of the engine, oldest first, with all other fields as they are.

    Versions that refuse the scenario without that field are left out. Block sizes are those before hybrid layers are
    aligned.
    """
    scenario = planned.scenario
    given = [field for field in DEFAULTED if getattr(scenario, field) is not None]
    without: list[tuple[Scenario, Iterable[str]]] = [
        (scenario, [one for one in DEFAULTED if one not in given])
    ]
    for field in given:
        nothing: dict[str, Any] = {field: None}
        without.append((replace(scenario, **nothing), (field,)))
    runs: dict[str, list[DefaultRun]] = {field: [] for field in DEFAULTED}
    engine = engine_of(scenario)
    card = view_of(planned.accelerator, scenario.accelerator is None)
    for version in reversed(engine_versions(engine.name)):
        for bare, fields in without:
            try:
                resolved = engine.resolve(replace(bare, engine_version=version), planned.architecture, card)
            except KvPlannerError:
                continue
            for field in fields:
                value, found = getattr(resolved, field), runs[field]
                if found and found[-1].value == value:
                    found[-1] = replace(found[-1], last=version)
                else:
                    found.append(DefaultRun(value=value, first=version, last=version))
    return {field: tuple(found) for field, found in runs.items()}


def matching(parameters: Iterable[Parameter], query: str, t: Words) -> tuple[Parameter, ...]:
    """The parameters that have every word of `query`, in either language's texts."""
    wanted = query.lower().replace("_", "-").split()
    return tuple(
        parameter for parameter in parameters if all(word in _searched(parameter, t) for word in wanted)
    )


def _searched(parameter: Parameter, t: Words) -> str:
    texts = (parameter.meaning, parameter.memory, parameter.mistake, parameter.advice)
    spoken = " ".join((parameter.flag, *texts, *(t(text) for text in texts)))
    return spoken.lower().replace("_", "-")


def facts(planned: Plan) -> dict[str, dict[str, str]]:
    """The parameters of each correction's truth, for the engine version of the present plan.

    A correction whose parameters have `OTHERWISE` is said by its other text: this release behaves otherwise.
    """
    resolved = planned.resolved
    names = {
        role: one.name for role, one in resolved.engine.metrics(resolved.version, resolved.is_v0).items()
    }
    lines = expected_log_lines(planned)
    return _facts_of_starts(_release_of(planned)) | {
        "gpu_alarm": {"metric": names["kv_cache_usage"]},
        "latency_metric": {"metric": names["request_latency"]},
        "hit_rate": {
            "hits": names.get("prefix_cache_hits", DASH),
            "queries": names.get("prefix_cache_queries", DASH),
            "usage": names["kv_cache_usage"],
            "preemptions": names["preemptions"],
            **({} if "prefix_cache_hits" in names else {OTHERWISE: "1"}),
        },
        "peak_limit": {"limit": f"{COMFORTABLE_SHARE * 100:g}"},
        "more_memory": {"usage": names["kv_cache_usage"], "preemptions": names["preemptions"]},
        "cut_answers": {"waiting": names["waiting"]},
        "queue": {"limit": count(thresholds(planned, default_load(planned)).waiting_requests)},
        "wrk": {"program": " ".join(resolved.engine.load_generator(resolved.version).words)},
        "log_line": {"lines": lines[-1] if lines else "GPU KV cache size"},
        "batched_tokens": _small_steps(planned),
    }


OTHERWISE: Final = "otherwise"
"""A parameter of corrections for which the release shown behaves otherwise."""
SMALL_STEP: Final = 256
"""Tokens of a step that the list of parameters advises for short response times."""


def _release_of(planned: Plan) -> str | None:
    """The release in which the documents' own starts are planned: that of the plan, None (the newest) if it is another
    engine's."""
    newest = plan(scenario_from_request(_post_mortem()))
    shown, known = planned.resolved.engine_version, engine_versions(newest.resolved.engine.name)
    return shown if planned.resolved.engine is newest.resolved.engine and shown in known else None


def _post_mortem(**changed: Any) -> dict[str, Any]:
    """The post-mortem's start as a request, with some of its fields changed."""
    fields = {name: value for name, value in POST_MORTEM.items() if "." not in name}
    return {**fields, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, **changed}


def _small_steps(planned: Plan) -> dict[str, str]:
    """The present start with a step of SMALL_STEP tokens and no other limit of the scheduler."""
    usual = _try(replace(planned.scenario, max_num_batched_tokens=None, max_num_seqs=None)) or planned
    small = _try(replace(planned.scenario, max_num_batched_tokens=SMALL_STEP, max_num_seqs=None))
    return {
        "version": _release_text(planned),
        "small": count(SMALL_STEP),
        "seats": count(usual.resolved.max_num_seqs),
        "prompt": count(usual.resolved.max_model_len),
        "steps": count(ceil_div(usual.resolved.max_model_len, SMALL_STEP)),
        **({OTHERWISE: "1"} if small is None else {"lowered": count(small.resolved.max_num_seqs)}),
    }


def _try(scenario: Scenario) -> Plan | None:
    try:
        return plan(scenario)
    except KvPlannerError:
        return None


def _release_text(planned: Plan) -> str:
    return f"{planned.resolved.engine.name} {planned.resolved.engine_version}"


@cache
def _facts_of_starts(release: str | None) -> dict[str, dict[str, str]]:
    """Facts of the post-mortem's own start in a release, and of DeepSeek-V3 in the newest."""
    changed = {} if release is None else {"engine_version": release}
    long = plan(scenario_from_request(_post_mortem(**changed)))
    length = long.resolved.max_model_len
    heads, kv_heads = long.architecture.num_attention_heads, long.architecture.num_kv_heads
    per_token = long.cache.bytes_per_token if long.cache is not None else 0.0
    right = per_token * long.scenario.parallel.tensor_parallel_size * length
    wrong = long.architecture.num_layers * 2 * long.architecture.hidden_size * length * 2
    held = {
        tokens: plan(scenario_from_request(_post_mortem(**changed, max_model_len=tokens)))
        for tokens in (2048, 4096)
    }
    return {
        "hidden_size": {
            "heads": str(heads),
            "kv_heads": str(kv_heads),
            "factor": str(heads // kv_heads),
            "length": count(length),
            "right": exact_gib_text(right),
            "wrong": exact_gib_text(wrong),
        },
        "batch": {
            "batch": str(BATCH),
            "printed": exact_gib_text(BATCH * wrong),
            "wrong": exact_gib_text(wrong),
            "right": exact_gib_text(right),
        },
        "reserve": _reserved(long, held[2048]),
        "boundaries": {
            "tokens": count(long.cache.tokens if long.cache is not None else 0),
            **{
                f"at_{tokens}": concurrency_text(one.cache.max_concurrency) if one.cache is not None else DASH
                for tokens, one in held.items()
            },
        },
        "model_limit": {"limit": count(long.resolved.derived_max_model_len)},
        "latent": _latent_facts(),
    }


def _reserved(long: Plan, short: Plan) -> dict[str, str]:
    """The pools of the post-mortem's start with its long and with its short max_model_len."""
    at_8192, at_2048 = (one.memory.kv_cache.value if one.memory is not None else 0.0 for one in (long, short))
    return {
        "version": _release_text(long),
        "block": str(long.resolved.block_size),
        "blocks": str(ceil_div(PROMPT_TOKENS, long.resolved.block_size)),
        "at_8192": gib_text(at_8192),
        "at_2048": gib_text(at_2048),
        **({OTHERWISE: "1", "percent": f"{100 * (1 - at_8192 / at_2048):.1f}"} if at_8192 != at_2048 else {}),
    }


def _latent_facts() -> dict[str, str]:
    request = {"model": "deepseek-ai/DeepSeek-V3", "accelerator": "H200-141GB", "tensor_parallel_size": 8}
    latent = plan(scenario_from_request({**request, "max_model_len": 16384}))
    per_token = latent.cache.bytes_per_token if latent.cache is not None else 0.0
    architecture, config = latent.architecture, latent.scenario.config
    wrong = architecture.num_layers * architecture.num_attention_heads * int(config.raw["v_head_dim"]) * 2
    return {
        "right": kib_text(per_token),
        "wrong": kib_text(wrong),
        "tokens": count(LATENT_POOL_GIB * GIB // per_token if per_token else 0),
    }


def truth(correction: Correction, known: Mapping[str, Mapping[str, str]], t: Words) -> str:
    """The correct statement in the reader's language, with its figures."""
    figures = known.get(correction.name, {})
    return t(correction.otherwise if OTHERWISE in figures else correction.truth, **figures)


Score = Annotated[float, Meta(ge=0.0, le=100.0)]
Stated = Annotated[str, Meta(min_length=1)]
WEIGHTS: Final = "weights"


class PublishedScore(Record, frozen=True, kw_only=True):
    """One published result of a model with fewer bits, next to the unquantized one; scores in per cent."""

    model: Stated
    format: Stated
    kept: Literal["weights", "both"]
    """The part with fewer bits: the weights, or both they and the KV cache."""
    bits: int
    benchmark: Stated
    before: Score
    after: Score
    source: Source

    @property
    def points(self) -> float:
        """after − before, in points of the benchmark."""
        return self.after - self.before


class _Quality(Record, frozen=True, kw_only=True):
    """quality.toml."""

    result: tuple[PublishedScore, ...]


_QUALITY: Final = TableFile("kvcore.explain", "quality.toml", _Quality)


def published_scores() -> tuple[PublishedScore, ...]:
    """Every row of quality.toml, in its order.

    Example:
        >>> first = published_scores()[0]
        >>> first.format, round(first.points, 2)
        ('FP8', -0.49)
    """
    return _QUALITY.load().result


def largest_loss(bits: int) -> float:
    """Points that the worst of the published results with that many bits in the weights alone lost.

    Example:
        >>> round(largest_loss(8), 2), round(largest_loss(4), 2)
        (0.49, 1.75)
    """
    rows = [row for row in published_scores() if row.bits == bits and row.kept == WEIGHTS]
    return max(-row.points for row in rows)
