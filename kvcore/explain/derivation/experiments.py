"""What to try on each step: one control of the sidebar, and what the plan with it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kvcore.errors import KvPlannerError
from kvcore.explain.derivation.lesson import Effect, Experiment, StepName
from kvcore.explain.derivation.requests_step import shorter_concurrency
from kvcore.explain.numbers import any_cache
from kvcore.planning import Plan, plan
from kvcore.quantity import Quantity, format_bytes
from kvcore.scenario import edit
from kvcore.texts.words import DASH, MINUS, Words, concurrency_text, count, kib_text, msg

CONTROLS: Final = {
    "gpu_memory_utilization": msg("GPU memory utilization"),
    "tensor_parallel_size": msg("Tensor parallel size"),
    "max_num_batched_tokens": msg("Max batched tokens"),
    "kv_cache_dtype": msg("KV cache dtype"),
    "max_model_len": msg("Context length (tokens)"),
    "max_num_seqs": msg("Max sequences at once"),
    "quantization": msg("Weight precision"),
}
"""The controls by the labels that the sidebar has."""
IN_MORE_OPTIONS: Final = ("max_num_batched_tokens", "max_num_seqs")
LOW_SHARE: Final = 0.6
STEPS_OF_SHARE: Final = (0.1, 0.05, 0.02)
MAX_RANKS: Final = 16
"""The largest size that the sidebar offers."""


class Figure(NamedTuple):
    """One figure of a plan, as text."""

    meaning: str
    text: Callable[[Plan], str]


def _size(of: Callable[[Plan], Quantity | None]) -> Callable[[Plan], str]:
    def text(planned: Plan) -> str:
        quantity = of(planned)
        return DASH if quantity is None else _bytes(quantity.value)

    return text


def _bytes(size_bytes: float) -> str:
    """As the equations show it."""
    return format_bytes(size_bytes).replace("-", MINUS) if size_bytes else "0 GiB"


def _available(planned: Plan) -> str:
    return DASH if planned.available_kv_bytes is None else _bytes(planned.available_kv_bytes)


def _tokens(planned: Plan) -> str:
    return DASH if planned.cache is None else count(planned.cache.tokens)


def _requests(planned: Plan) -> str:
    return DASH if planned.cache is None else concurrency_text(planned.cache.max_concurrency)


def _shorter(planned: Plan) -> str:
    return concurrency_text(shorter_concurrency(planned))


def _per_token(planned: Plan) -> str:
    cache = any_cache(planned)
    return DASH if cache is None else kib_text(cache.bytes_per_token)


def _request(planned: Plan) -> str:
    cache = any_cache(planned)
    return DASH if cache is None else _bytes(cache.needed_bytes)


BUDGET: Final = Figure(msg("Budget"), _size(lambda one: one.memory.budget if one.memory else None))
WEIGHTS: Final = Figure(
    msg("Weights"), _size(lambda one: one.memory.weights if one.memory else one.loaded_weights)
)
ACTIVATIONS: Final = Figure(
    msg("Activations"), _size(lambda one: one.memory.activations if one.memory else None)
)
AVAILABLE: Final = Figure(msg("Available for the KV cache"), _available)
PER_TOKEN: Final = Figure(msg("KV per token"), _per_token)
REQUEST: Final = Figure(msg("One request of the full length"), _request)
TOKENS: Final = Figure(msg("KV cache tokens"), _tokens)
REQUESTS: Final = Figure(msg("Requests at once"), _requests)

Move = tuple[str, object]


def _other_share(base: Plan) -> Iterator[Move]:
    share = base.resolved.gpu_memory_utilization
    goes_up = share < LOW_SHARE or not _fits_something(base)
    for step in STEPS_OF_SHARE:
        other = round(share + step if goes_up else share - step, 4)
        if 0 < other <= 1:
            yield "gpu_memory_utilization", other


def _enough_cards(base: Plan) -> Iterator[Move]:
    """Where nothing is left for the KV cache: the sizes that divide the weights further."""
    size = 2 * base.scenario.parallel.tensor_parallel_size
    while not _fits_something(base) and size <= MAX_RANKS:
        yield "tensor_parallel_size", size
        size *= 2


def _other_size(base: Plan) -> Iterator[Move]:
    size = base.scenario.parallel.tensor_parallel_size
    for other in (2 * size, size // 2):
        if 1 <= other <= MAX_RANKS:
            yield "tensor_parallel_size", other


def _other_batch(base: Plan) -> Iterator[Move]:
    batch = base.resolved.max_num_batched_tokens
    for other in (2 * batch, batch // 2):
        if other:
            yield "max_num_batched_tokens", other


def _other_dtype(base: Plan) -> Iterator[Move]:
    yield "kv_cache_dtype", "fp8" if base.scenario.kv_cache_dtype == "auto" else "auto"


def _other_length(base: Plan) -> Iterator[Move]:
    length = base.resolved.max_model_len
    if length > 1:
        yield "max_model_len", length // 2


def _longer(base: Plan) -> Iterator[Move]:
    length = base.resolved.max_model_len
    if 2 * length <= base.resolved.derived_max_model_len:
        yield "max_model_len", 2 * length
    yield from _other_length(base)


MOVES: Final[dict[StepName, tuple[tuple[Callable[[Plan], Iterator[Move]], ...], tuple[Figure, ...]]]] = {
    StepName.PARTS: ((_enough_cards, _other_size, _other_share), (WEIGHTS, AVAILABLE)),
    StepName.BUDGET: ((_other_share,), (BUDGET, WEIGHTS, AVAILABLE)),
    StepName.WEIGHTS: ((_enough_cards, _other_size, _other_share), (WEIGHTS, AVAILABLE)),
    StepName.OVERHEADS: ((_other_batch, _other_share), (ACTIVATIONS, AVAILABLE)),
    StepName.TOKEN: ((_other_dtype, _other_size), (PER_TOKEN, REQUEST)),
    StepName.POOL: ((_enough_cards, _other_share), (AVAILABLE, TOKENS)),
    StepName.REQUESTS: ((_enough_cards, _other_length), (REQUESTS, REQUEST)),
    StepName.LIMITS: ((_enough_cards, _longer), (REQUEST, REQUESTS)),
}
"""Of each step the moves to try in turn, and the figures to look at; one of them has to change."""


def _fits_something(planned: Plan) -> bool:
    """Whether blocks are left for the KV cache, or none are asked for."""
    return planned.available_kv_bytes is None or planned.available_kv_bytes > 0


def experiment(base: Plan, name: StepName, t: Words) -> Experiment | None:
    """The first move that the engine takes, that changes something and leaves a KV cache where there is one.

    None where there is none.
    """
    moves, figures = MOVES[name]
    for candidates in moves:
        for field, value in candidates(base):
            try:
                scenario = edit.with_field(base.scenario, field, value)
                after = plan(scenario)
            except KvPlannerError:
                continue
            if not _fits_something(after) and (_fits_something(base) or candidates is _enough_cards):
                continue
            effects = tuple(
                Effect(meaning=t(figure.meaning), before=figure.text(base), after=figure.text(after))
                for figure in figures
            )
            if any(effect.before != effect.after for effect in effects):
                return Experiment(
                    field=field,
                    value=value,
                    control=t(CONTROLS[field]),
                    before=_now(base, field),
                    after=_text(value),
                    effects=effects,
                    scenario=scenario,
                )
    return None


def _now(base: Plan, field: str) -> str:
    if field == "tensor_parallel_size":
        return str(base.scenario.parallel.tensor_parallel_size)
    if field == "kv_cache_dtype":
        return base.scenario.kv_cache_dtype
    return _text(getattr(base.resolved, field))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return count(value) if isinstance(value, int) and value >= 1000 else str(value)
