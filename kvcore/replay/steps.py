"""The step contract: a case as JSON in, all steps of the scheduler out (`python -m kvcore replay --steps -`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from kvcore.base.errors import KvPlannerError, WorkloadError, defect, invalid
from kvcore.base.untrusted import parse_json_object, utf8_text
from kvcore.cache.rules import rules_in_force
from kvcore.cache.spec import WINDOW_KINDS, CacheKind, Demand, LayerSpec, blocks_per_request
from kvcore.engines.registry import find_engine
from kvcore.replay.hybrid import scheduler_of
from kvcore.replay.scheduler import Totals
from kvcore.replay.settings import WINDOWS, Drafts, Group, Settings, blocks_held, checked_groups, rules_of
from kvcore.replay.trace import MAX_COUNT, MAX_PIECES, MAX_REQUESTS, TraceRequest
from kvcore.scenario import DEFAULT_ENGINE, Runner

Row = tuple[int, int, int, int, int]
"""Used blocks, running, waiting, tokens, preempted: right after `schedule()`."""
MAX_LINE_BYTES: Final = 8 << 20
"""Bytes of a case; a longer line is refused in pieces."""
MAX_STEPS: Final = 2_000_000
MAX_BLOCKS_COMPUTED: Final = 20_000_000
"""Blocks that all requests of one replay fill, which bounds its time and memory."""


def case_rows(settings: Settings, requests: tuple[TraceRequest, ...]) -> tuple[list[Row], Totals]:
    """The five numbers of every step, until all requests have ended; `arrival` is a step.

    Raises WorkloadError `replay-too-long` after MAX_STEPS.

    Example:
        >>> from kvcore.replay.settings import rules_of
        >>> settings = Settings(num_blocks=9, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64,
        ...                     rules=rules_of(Version("0.32.0")), async_scheduling=False)
        >>> one = TraceRequest(id="a", arrival=0, prompt=(("a", 20),), answer_tokens=2)
        >>> case_rows(settings, (one,))[0]
        [(2, 1, 0, 20, 0), (2, 1, 0, 1, 0)]
    """
    check_fits(settings, requests)
    scheduler = scheduler_of(settings, requests)
    rows: list[Row] = []
    step = at = 0
    if requests and requests[-1].arrival > MAX_STEPS:
        raise WorkloadError("replay-too-long", field="requests", limit=f"{MAX_STEPS:,}")
    while at < len(requests) or scheduler.running or scheduler.waiting:
        if is_idle(rows) and not scheduler.running and not scheduler.waiting:
            # Nothing changes until the next request arrives.
            idle = max(0, int(requests[at].arrival) - step)
            scheduler.skip(idle)
            rows += rows[-1:] * idle
            step += idle
        while at < len(requests) and requests[at].arrival <= step:
            scheduler.add(at, requests[at])
            at += 1
        scheduler.step()
        rows.append(
            (scheduler.used_blocks, scheduler.running_requests, scheduler.waiting_requests, scheduler.tokens,
             scheduler.preempted)
        )  # fmt: skip
        step += 1
        if step > MAX_STEPS:
            raise WorkloadError("replay-too-long", field="requests", limit=f"{MAX_STEPS:,}")
    return rows, scheduler.totals


def is_idle(rows: list[Row]) -> bool:
    """Whether the last two steps were equal and idle: the end of a request shows in the next step."""
    return len(rows) > 1 and rows[-1] == rows[-2] and not any(rows[-1][1:])


def check_fits(settings: Settings, requests: tuple[TraceRequest, ...]) -> None:
    """Raises WorkloadError for requests that never fit into the pool, and for replays beyond MAX_BLOCKS_COMPUTED."""
    size, filled = settings.hash_block_size, 0
    for request in requests:
        prompt = request.prompt_tokens
        whole = min(prompt + request.answer_tokens, settings.max_model_len)
        filled += whole // size + 1
        if prompt >= settings.max_model_len:
            raise WorkloadError("replay-prompt-too-long", field="prompt", value=request.id, tokens=prompt,
                                limit=settings.max_model_len)  # fmt: skip
        drafts = settings.drafts
        ahead = drafts.tokens if drafts is not None and drafts.writes_ahead else 0
        if blocks_held(settings, min(whole - 1 + ahead, settings.max_model_len)) > settings.usable_blocks:
            raise WorkloadError("replay-never-fits", field="num_blocks", value=request.id, tokens=whole,
                                pool=settings.usable_blocks * size // max(1, len(settings.groups)))  # fmt: skip
    if filled > MAX_BLOCKS_COMPUTED:
        raise WorkloadError("replay-too-long", field="requests", limit=f"{MAX_BLOCKS_COMPUTED:,}")


NOT_REPLAYED: Final = (
    "kv_connector",
    "kv_transfer_config",
    "kv_offloading_size",
    "sliding_window",
    "encoder_cache_size",
    "max_num_encoder_input_tokens",
)
"""Fields of a case that would change its steps in ways that are not replayed."""


def case_answer(line: bytes) -> dict[str, Any]:
    """The answer to one case: its rows and totals, or a coded error.

    Example:
        >>> case_answer(b"{}")["error"]["code"]
        'invalid-value'
    """
    case_id: object = None
    try:
        case = parse_json_object(utf8_text(line))
        case_id = case.get("id") if isinstance(case.get("id"), str) else None
        rows, totals = case_rows(case_settings(case), case_requests(case))
    except Exception as unexpected:  # the last net: one case must not end a batch
        error = unexpected if isinstance(unexpected, KvPlannerError) else defect(unexpected)
        words = {
            "code": error.code,
            "field": error.field,
            "message": str(error),
            "next_step": error.next_step,
        }
        return {"id": case_id, "error": words}
    return {
        "id": case_id,
        "steps": rows,
        "preemptions": totals.preemptions,
        "prefix_query_tokens": totals.query_tokens,
        "prefix_hit_tokens": totals.hit_tokens,
        "resumed_query_tokens": totals.resumed_query_tokens,
        "resumed_hit_tokens": totals.resumed_hit_tokens,
        "answers_cut": totals.answers_cut,
    }


def case_settings(case: Mapping[str, Any]) -> Settings:
    """The settings of a case. Raises WorkloadError or ScenarioError for invalid values and for what is not replayed."""
    version = case.get("engine_version", "")
    try:
        rules = rules_of(Version(version))
    except (InvalidVersion, TypeError):
        raise invalid("engine_version", version, "it is a release such as 0.32.0") from None
    for name in NOT_REPLAYED:
        if case.get(name):
            raise WorkloadError("replay-unsupported", field=name)
    for name in ("data_parallel_size", "pipeline_parallel_size"):
        if case.get(name) not in (None, 1):
            raise WorkloadError("replay-unsupported", field=name)
    if case.get("runner") == Runner.POOLING:
        raise WorkloadError("replay-unsupported", field="runner")
    watermark = case.get("watermark")
    if watermark is None:
        watermark = 0.0
    if type(watermark) not in (int, float) or not 0 <= watermark < 1:
        raise invalid("watermark", watermark, "it must be a share from 0 to below 1")
    plain = Settings(
        num_blocks=_count(case, "num_blocks", least=2),
        block_size=_count(case, "block_size", least=1),
        max_num_seqs=_count(case, "max_num_seqs", least=1),
        max_num_batched_tokens=_count(case, "max_num_batched_tokens", least=1),
        max_model_len=_count(case, "max_model_len", least=2),
        enable_prefix_caching=_flag(case, "enable_prefix_caching"),
        async_scheduling=_flag(case, "async_scheduling"),
        watermark=float(watermark),
        long_prefill_token_threshold=_count(case, "long_prefill_token_threshold", least=0, default=0),
        rules=rules,
    )
    return with_drafts(with_groups(plain, case, Version(version)), case)


def case_requests(case: Mapping[str, Any]) -> tuple[TraceRequest, ...]:
    """The requests of a case, in order of arrival. Raises ScenarioError."""
    given = case.get("requests")
    if not isinstance(given, list) or len(given) > MAX_REQUESTS:
        raise invalid("requests", None, f"it must be a list of at most {MAX_REQUESTS:,} requests")
    found = [_request(row, f"requests[{at}]") for at, row in enumerate(given)]
    if len({request.id for request in found}) < len(found):
        raise invalid("requests", None, "every request needs an id of its own")
    return tuple(sorted(found, key=lambda request: request.arrival))


def _request(row: object, where: str) -> TraceRequest:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        raise invalid(where, None, "a request is an object with an id")
    pieces = row.get("prompt")
    if not isinstance(pieces, list) or len(pieces) > MAX_PIECES:
        raise invalid(f"{where}.prompt", None, f"it must be a list of at most {MAX_PIECES} pieces")
    prompt = tuple(_piece(piece, f"{where}.prompt") for piece in pieces)
    if not any(tokens for _, tokens in prompt):
        raise invalid(f"{where}.prompt", None, "it must have at least one token")
    return TraceRequest(
        id=row["id"],
        arrival=_count(row, "arrival_step", least=0, where=where),
        prompt=prompt,
        answer_tokens=_count(row, "answer_tokens", least=1, where=where),
    )


def _piece(piece: object, where: str) -> tuple[str, int]:
    if isinstance(piece, list) and len(piece) == 2 and isinstance(piece[0], str):
        tokens = piece[1]
        if type(tokens) is int and 0 <= tokens <= MAX_COUNT:
            return piece[0], tokens
    raise invalid(where, None, "a piece is a name and a number of tokens")


def _count(
    row: Mapping[str, Any], name: str, *, least: int, default: int | None = None, where: str = ""
) -> int:
    value = row.get(name, default)
    field = f"{where}.{name}" if where else name
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if type(value) is not int or not least <= value <= MAX_COUNT:
        raise invalid(field, value, f"it must be a whole number from {least} to {MAX_COUNT:,}")
    return value


def _flag(row: Mapping[str, Any], name: str) -> bool:
    value = row.get(name)
    if not isinstance(value, bool):
        raise invalid(name, value, "it must be true or false")
    return value


class _Method(NamedTuple):
    """Properties of a speculative method for the scheduler.

    Source: vllm/config/vllm.py:VllmConfig.num_lookahead_tokens; vllm/config/speculative.py:SpeculativeConfig.use_eagle,
    uses_draft_model, max_num_new_slots_for_drafting, EagleModelTypes, NgramGPUTypes (0.32.0).
    """

    writes_ahead: bool
    drops_last_block: bool
    slots: int
    may_be_async: bool


_HIDDEN_STATES: Final = _Method(True, True, 0, True)
METHODS: Final = {
    "eagle": _HIDDEN_STATES,
    "eagle3": _HIDDEN_STATES,
    "mtp": _HIDDEN_STATES,
    "draft_model": _Method(True, False, 1, True),
    "ngram": _Method(False, False, 0, False),
    "suffix": _Method(False, False, 0, False),
    "medusa": _Method(False, False, 0, False),
    "ngram_gpu": _Method(False, False, 0, True),
}
MAX_DRAFTS: Final = 64
MAX_PATTERN: Final = 4096


def with_drafts(settings: Settings, case: Mapping[str, Any]) -> Settings:
    """The settings of a case with its `speculative_config`.

    It is an object with `method`, `num_speculative_tokens` and `accepted_tokens`, a list of how many drafts are
    accepted, for one verifying step of a request after the other, over and over; and `proposed_tokens`, the same for
    how many drafts a step finds, where it is not always all of them.

    Raises WorkloadError `replay-unsupported`, field `speculative_config`, for what is not replayed.
    """
    stated = case.get("speculative_config")
    if not stated:
        return settings
    where = "speculative_config"
    if not isinstance(stated, dict):
        raise invalid(where, None, "it is an object with method and num_speculative_tokens")
    method = METHODS.get(stated["method"]) if isinstance(stated.get("method"), str) else None
    if method is None or settings.groups or not settings.rules.replays_drafts:
        raise WorkloadError("replay-unsupported", field=where)
    if settings.async_scheduling and not method.may_be_async:
        raise invalid(f"{where}.method", stated["method"], "the engine has no async_scheduling with it")
    tokens = stated.get("num_speculative_tokens")
    if type(tokens) is not int or not 1 <= tokens <= MAX_DRAFTS:
        raise invalid(f"{where}.num_speculative_tokens", tokens, f"it must be from 1 to {MAX_DRAFTS}")
    proposed: tuple[int, ...] = ()
    if not settings.async_scheduling and stated.get("proposed_tokens") is not None:
        proposed = _pattern(stated, "proposed_tokens", tokens, where)
    return replace(
        settings,
        drafts=Drafts(
            tokens=tokens,
            accepted=_pattern(stated, "accepted_tokens", tokens, where),
            proposed=proposed,
            writes_ahead=method.writes_ahead,
            drops_last_block=method.drops_last_block,
            slots=method.slots,
        ),
    )


def _pattern(stated: Mapping[str, Any], name: str, most: int, where: str) -> tuple[int, ...]:
    given = stated.get(name)
    if (
        not isinstance(given, list)
        or not 1 <= len(given) <= MAX_PATTERN
        or any(type(number) is not int or not 0 <= number <= most for number in given)
    ):
        raise invalid(f"{where}.{name}", None, f"it must be a list of numbers from 0 to {most}")
    return tuple(given)


MAX_GROUPS: Final = 64
MAX_BLOCK_TOKENS: Final = 1 << 26


def with_groups(settings: Settings, case: Mapping[str, Any], version: Version) -> Settings:
    """The settings of a case with its `kv_cache_groups` and `prefix_cache_retention_interval`.

    A group has `kind`, `block_size`, and by its kind `sliding_window`, `attention_chunk_size`, `mamba_cache_mode`,
    `num_checkpoint_blocks`.
    """
    rows = case.get("kv_cache_groups")
    if not rows:
        return settings
    if not isinstance(rows, list) or len(rows) > MAX_GROUPS:
        raise invalid("kv_cache_groups", None, f"it must be a list of at most {MAX_GROUPS} groups")
    groups = tuple(_group(row, f"kv_cache_groups[{at}]", settings, version) for at, row in enumerate(rows))
    modes = {str(row.get("mamba_cache_mode", "none")) for row in rows if row["kind"] == CacheKind.MAMBA}
    if len(modes) > 1:
        raise WorkloadError("replay-unsupported", field="kv_cache_groups")
    kept = checked_groups(
        groups, settings.rules, caches=settings.enable_prefix_caching, mamba_cache_mode="".join(modes)
    )
    if not kept:
        return replace(settings, block_size=groups[0].block_size)
    default = 0 if settings.rules.keeps_boundaries else None
    interval = case.get("prefix_cache_retention_interval", default)
    found = replace(settings, groups=kept, retention_interval=interval)
    unit = found.scheduler_block_size
    if unit > MAX_BLOCK_TOKENS:
        raise WorkloadError("replay-unsupported", field="kv_cache_groups")
    if interval is not None and (type(interval) is not int or interval < 0 or interval % unit):
        raise invalid(
            "prefix_cache_retention_interval", interval, f"it must be a multiple of {unit}, or null"
        )
    return found


def _group(row: object, where: str, settings: Settings, version: Version) -> Group:
    try:
        kind = CacheKind(row["kind"]) if isinstance(row, dict) else None
    except (KeyError, ValueError, TypeError):
        kind = None
    if kind is None or not isinstance(row, dict):
        raise invalid(where, None, "a group is an object with a kind such as full_attention")
    size = _tokens(row, "block_size", where)
    window = _tokens(row, WINDOWS[kind], where) if kind in WINDOWS else 0
    checkpoints = row.get("num_checkpoint_blocks", 0)
    if checkpoints not in (0, 1) or type(checkpoints) is not int:
        raise invalid(f"{where}.num_checkpoint_blocks", checkpoints, "it must be 0 or 1")
    spec = LayerSpec(
        kind=kind,
        layers=1,
        block_size=size,
        page_size_bytes=0,
        sliding_window=window if kind in WINDOW_KINDS else 0,
        attention_chunk_size=window if kind is CacheKind.CHUNKED_LOCAL_ATTENTION else 0,
    )
    most = None
    if window and settings.rules.caps_admission:
        most = blocks_per_request(spec, settings.max_model_len, _demand(settings, version))
    return Group(kind=kind, block_size=size, window=window, most_blocks=most, checkpoint_blocks=checkpoints)


def _demand(settings: Settings, version: Version) -> Demand:
    rules = rules_in_force(find_engine(DEFAULT_ENGINE), version)
    batches = 2 if settings.async_scheduling and rules.in_flight_batches else 1
    return Demand(
        rules=rules,
        in_flight_tokens=settings.max_num_batched_tokens * batches,
        batch_tokens=settings.max_num_batched_tokens,
        context_ranks=1,
        mamba_cache_mode="align",
    )


def _tokens(row: Mapping[str, Any], name: str, where: str) -> int:
    value = row.get(name)
    if type(value) is not int or not 1 <= value <= MAX_BLOCK_TOKENS:
        raise invalid(f"{where}.{name}", value, f"it must be a whole number from 1 to {MAX_BLOCK_TOKENS:,}")
    return value
