"""Files that people deploy -> for each workload whether it starts. See docs/check-files.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from kvcore import catalogue
from kvcore.base.errors import CatalogueError, KvPlannerError, Notice, notice, shorten
from kvcore.base.units import rounded_gib
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engines.registry import engine_for, find_engine, is_planned
from kvcore.manifests.build import PLANNED_VARIABLES
from kvcore.manifests.files import Read, Source, read_files
from kvcore.manifests.machines import card_named, is_assumed_size
from kvcore.manifests.models import known_model, names_of
from kvcore.manifests.unknowns import joined
from kvcore.manifests.workload import Workload
from kvcore.planning import Batch, Plan, Verdict, plan
from kvcore.wire.request import scenario_from_request

MAX_FIXES: Final = 3
MAX_CARDS: Final = 12


class Outcome(StrEnum):
    """What can be said of a workload's start."""

    STARTS = "starts"
    DOES_NOT_START = "does-not-start"
    CANNOT_BE_KNOWN = "cannot-be-known"


EXIT: Final[Mapping[Outcome, int]] = {
    Outcome.STARTS: 0,
    Outcome.DOES_NOT_START: 1,
    Outcome.CANNOT_BE_KNOWN: 3,
}
NOT_READ: Final = 2


class Checked(Struct, frozen=True, kw_only=True):
    """One workload with its outcome."""

    workload: Workload
    outcome: Outcome
    plans: tuple[Plan, ...] = ()
    """One for each card that may serve it."""
    reasons: tuple[Notice, ...] = ()
    """Why it does not start, or why that cannot be known."""
    assumed: tuple[Notice, ...] = ()


class Checks(Struct, frozen=True, kw_only=True):
    """All workloads of files."""

    read: Read
    checked: tuple[Checked, ...]

    @property
    def status(self) -> int:
        """1 where one does not start, 2 where something cannot be read, 3 where one cannot be known, else 0."""
        outcomes = {one.outcome for one in self.checked}
        if Outcome.DOES_NOT_START in outcomes:
            return EXIT[Outcome.DOES_NOT_START]
        if self.read.problems or not self.checked:
            return NOT_READ
        return EXIT[Outcome.CANNOT_BE_KNOWN] if Outcome.CANNOT_BE_KNOWN in outcomes else EXIT[Outcome.STARTS]


class Tight(StrEnum):
    """What a tight plan counts as."""

    STARTS = "starts"
    DOES_NOT_START = "does-not-start"
    CANNOT_BE_KNOWN = "cannot-be-known"


def check_files(
    sources: Iterable[Source], accelerator: str | None = None, tight: Tight = Tight.STARTS
) -> Checks:
    """The workloads of files that belong together, each with its outcome; `accelerator` for those that name no card.

    Raises CatalogueError `unknown-accelerator`.

    Example:
        >>> found = check_files([Source("run.sh", "vllm serve Qwen/Qwen3-8B --max-model-len 8192")], "L4-24GB")
        >>> found.checked[0].outcome.value, found.status
        ('starts', 0)
    """
    card = None if accelerator is None else catalogue.find_accelerator(accelerator)
    read, batch = read_files(sources), Batch()
    return Checks(read=read, checked=tuple(_checked(one, card, tight, batch) for one in read.workloads))


def _checked(one: Workload, given: Accelerator | None, tight: Tight, batch: Batch) -> Checked:
    unknown = list(_open_questions(one))
    cards, count, about = _cards(one, given)
    assumed = list(about)
    if one.open_arguments:
        assumed.append(notice("check-arguments-empty", names=joined(one.open_arguments)))
    if not is_planned(one.engine):
        return Checked(workload=one, outcome=Outcome.CANNOT_BE_KNOWN, reasons=tuple(unknown))
    if not cards:
        unknown.append(
            notice("check-no-card" if one.card is None else "check-card-unknown", card=one.card or "")
        )
    contradiction = _too_few_gpus(one, count)
    model, why = _model(one)
    if why is not None:
        unknown.append(why)
    if contradiction is not None:
        reasons = (contradiction, *unknown)
        return Checked(workload=one, outcome=Outcome.DOES_NOT_START, reasons=reasons, assumed=tuple(assumed))
    if unknown or model is None:
        reasons = tuple(unknown)
        return Checked(workload=one, outcome=Outcome.CANNOT_BE_KNOWN, reasons=reasons, assumed=tuple(assumed))
    if model != one.model and one.model is not None:
        assumed.append(notice("check-model-assumed", said=one.model, model=model))
    if one.release is None:
        assumed.append(notice("check-release-assumed", release=str(find_engine(one.engine).releases()[0][0])))
    plans: list[Plan] = []
    for card in cards[:MAX_CARDS]:
        try:
            plans.append(plan(scenario_from_request(request_of(one, model, card)), batch))
        except KvPlannerError as error:
            refused = Notice(code=error.code, field=error.field, params=error.params)
            is_sure = type(error).__name__ == "EngineRefusalError"
            outcome = Outcome.DOES_NOT_START if is_sure else Outcome.CANNOT_BE_KNOWN
            return Checked(workload=one, outcome=outcome, reasons=(refused,), assumed=tuple(assumed))
    outcomes = {_outcome(one_plan, tight) for one_plan in plans}
    reasons = tuple(reason for one_plan in plans for reason in _reasons(one_plan))
    if len(outcomes) > 1:
        outcomes, reasons = (
            {Outcome.CANNOT_BE_KNOWN},
            (notice("check-depends-on-card", cards=_each(plans, tight)), *reasons),
        )
    return Checked(
        workload=one, outcome=outcomes.pop(), plans=tuple(plans), reasons=reasons, assumed=tuple(assumed)
    )


def _outcome(planned: Plan, tight: Tight) -> Outcome:
    if planned.verdict is Verdict.TIGHT:
        return Outcome(tight.value)
    return Outcome.STARTS if planned.verdict is Verdict.FITS else Outcome.DOES_NOT_START


def _each(plans: Sequence[Plan], tight: Tight) -> str:
    named = [(one.scenario.accelerator, _outcome(one, tight).value) for one in plans]
    return ", ".join(f"{card.id}: {outcome}" for card, outcome in named if card is not None)


def _open_questions(one: Workload) -> Iterator[Notice]:
    """What nobody can know from the files alone."""
    hidden = [name for name, value in one.request.items() if value is None]
    if one.undefined and (hidden or one.model is None):
        about = joined([*hidden, *(["model"] if one.model is None else [])])
        yield notice("check-undefined", names=joined(one.undefined), fields=about)
    if not is_planned(one.engine):
        yield notice("check-engine-not-planned", engine=one.engine)
    if one.unusable:
        yield notice("check-unusable", flags=joined(one.unusable))


def _cards(one: Workload, given: Accelerator | None) -> tuple[list[Accelerator], int | None, list[Notice]]:
    """The cards that may serve, how many of them a machine has, and what was assumed about them."""
    if given is not None:
        return [given], None, []
    found: list[Accelerator] = []
    counts: set[int | None] = set()
    about: list[Notice] = []
    for text in one.card_choices or ((one.card,) if one.card else ()):
        card, count = card_named(text)
        counts.add(count)
        if card is None:
            return [], None, []
        if card.id not in [other.id for other in found]:
            found.append(card)
        if is_assumed_size(text, card):
            about.append(notice("check-card-assumed", card=card.id, text=text))
    return found, counts.pop() if len(counts) == 1 else None, about


def _too_few_gpus(one: Workload, of_machine: int | None) -> Notice | None:
    """The contradiction between the GPUs of a pod and the ranks of a replica."""
    gpus = one.gpus if isinstance(one.gpus, int) else of_machine
    sizes = [one.planned.get(name) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    if gpus is None or sizes == [None, None]:
        return None
    tensor, pipeline = (size if isinstance(size, int) else 1 for size in sizes)
    if tensor * pipeline <= gpus * one.nodes or (one.kind == "production-stack" and pipeline > 1):
        return None
    return notice(
        "check-too-few-gpus", "tensor_parallel_size", ranks=tensor * pipeline, tensor=tensor, pipeline=pipeline,
        gpus=gpus * one.nodes,
    )  # fmt: skip


def _model(one: Workload) -> tuple[str | None, Notice | None]:
    """The model's id of the catalogue, or why there is none."""
    found = known_model(one)
    if found is not None:
        return found, None
    names = names_of(one)
    if not names:
        return None, None if one.undefined else notice("check-no-model")
    try:
        catalogue.find_model(names[0])
    except CatalogueError as error:
        return None, Notice(code=error.code, field=error.field, params=error.params)
    return names[0], None


def request_of(one: Workload, model: str | None = None, card: Accelerator | None = None) -> dict[str, Any]:
    """A workload as a request that `plan` takes."""
    plug_in = None
    if (
        card is not None
        and not find_engine(one.engine).facts.releases
        and not find_engine(one.engine).runs_on(card)
    ):
        plug_in = engine_for(card).name
    env = {name: value for name, value in one.environment.items() if name in PLANNED_VARIABLES}
    request: dict[str, Any] = {"model": model or one.model, "engine": plug_in or one.engine, **one.planned}
    if one.release is not None and plug_in is None:
        request["engine_version"] = one.release
    if card is not None:
        request["accelerator"] = card.id
    return request | ({"env": env} if env else {})


def _reasons(planned: Plan) -> Iterator[Notice]:
    """Why a plan does not start, with its figures."""
    if planned.verdict in (Verdict.FITS, Verdict.TIGHT):
        return
    card = planned.scenario.accelerator
    named = card.id if card is not None else "?"
    if planned.verdict is Verdict.WEIGHTS_DO_NOT_FIT:
        weights = rounded_gib(planned.loaded_weights.value)
        yield notice("check-weights-do-not-fit", weights=f"{weights:,.1f}", card=named)
    elif planned.verdict is Verdict.NO_KV_MEMORY:
        yield notice("check-no-kv-memory", card=named)
    else:
        tokens = planned.cache.longest_request_tokens if planned.cache is not None else 0
        length = planned.resolved.max_model_len
        yield notice(
            "check-context-too-long", "max_model_len", length=f"{length:,}", tokens=f"{tokens:,}", card=named
        )


# -- as JSON and as lines


def check_result(found: Checks) -> dict[str, Any]:
    """All outcomes as JSON: docs/check-files.md names the fields."""
    return {
        "status": "ok" if not found.read.problems and found.checked else "error",
        "exit_status": found.status,
        "workloads": [_row(one) for one in found.checked],
        "others": [
            {"name": one.name, "role": one.role, "file": one.place.file, "line": one.place.line}
            for one in found.read.others
        ],
        "problems": [
            {"file": one.file, "line": one.line, **_message(one.error)} for one in found.read.problems
        ],
    }  # fmt: skip


def _message(one: KvPlannerError | Notice) -> dict[str, str]:
    return {"code": one.code, "message": one.message, "next_step": one.next_step}


def _row(one: Checked) -> dict[str, Any]:
    own = one.workload
    return {
        "name": own.name,
        "kind": own.kind,
        "file": own.place.file,
        "line": own.place.line,
        "engine": own.engine,
        "engine_version": own.release,
        "model": own.model,
        "served_name": own.served_name,
        "request": dict(own.request),
        "accelerator": own.card,
        "gpus": own.gpus,
        "replicas": own.replicas,
        "host_memory_gib": own.host_memory_gib,
        "shm_gib": own.shm_gib,
        "environment": dict(own.environment),
        "undefined": list(own.undefined),
        "extra": dict(own.extra),
        "verdict": one.outcome.value,
        "plans": [_planned(planned) for planned in one.plans],
        "reasons": [{"field": reason.field, **_message(reason)} for reason in one.reasons],
        "assumed": [_message(reason) for reason in one.assumed],
        "fixes": [
            {"field": fix.field, "value": fix.value, "verdict": fix.verdict.value} for fix in _fixes(one)
        ],
    }  # fmt: skip


def _fixes(one: Checked) -> list[Any]:
    if one.outcome is not Outcome.DOES_NOT_START or not one.plans:
        return []
    from kvcore.advice.fixes import fixes

    broken = next((planned for planned in one.plans if planned.verdict is not Verdict.FITS), None)
    return list(islice(fixes(broken), MAX_FIXES)) if broken is not None else []


def _planned(planned: Plan) -> dict[str, Any]:
    card, cache = planned.scenario.accelerator, planned.cache
    return {
        "verdict": planned.verdict.value,
        "model": planned.scenario.model,
        "accelerator": None if card is None else card.id,
        "engine_version": str(planned.resolved.engine_version),
        "weights_gib": rounded_gib(planned.loaded_weights.value),
        "kv_gib": rounded_gib(planned.available_kv_bytes) if planned.available_kv_bytes is not None else None,
        "kv_tokens": None if cache is None else cache.tokens,
        "max_model_len": planned.resolved.max_model_len,
        "max_concurrency": None if cache is None else cache.max_concurrency,
    }


def check_lines(found: Checks) -> Iterator[str]:
    """All outcomes as lines for people."""
    for one in found.checked:
        own = one.workload
        name = shorten(own.name or own.model or "?", 40)
        engine = " ".join(filter(None, (own.engine, own.release)))
        yield f"{one.outcome.value:<16} {name}  ({own.place.file}:{own.place.line})"
        yield f"  {own.model or '-'}  on {_on(one)}  {engine}"
        flags = ", ".join(f"{key}={_short(value)}" for key, value in own.request.items())
        if flags:
            yield f"  {shorten(flags, 400)}"
        for planned in one.plans:
            row = _planned(planned)
            kv = "-" if row["kv_tokens"] is None else f"{row['kv_tokens']:,} tokens of KV cache"
            yield f"  {row['accelerator']}: {row['verdict']}, {row['weights_gib']:.1f} GiB of weights a GPU, {kv}"
        for reason in one.reasons:
            yield f"  {reason.message}; {reason.next_step}"
        for fix in _fixes(one):
            yield f"  fix: {fix.field} = {_short(fix.value)}"
        for reason in one.assumed:
            yield f"  assumed: {reason.message}"
    for other in found.read.others:
        yield f"{'no engine':<16} {shorten(other.name, 40)}: {other.role}  ({other.place.file}:{other.place.line})"
    for problem in found.read.problems:
        where = f"{problem.file}:{problem.line}" if problem.line else problem.file
        yield f"{'cannot be read':<16} {where}: {problem.error.message}; {problem.error.next_step}"
    if not found.checked:
        yield notice("check-nothing-found").message + "; " + notice("check-nothing-found").next_step


def _short(value: object) -> str:
    return shorten("unknown" if value is None else value, 60)


def _on(one: Checked) -> str:
    own = one.workload
    count = f"{own.gpus} x " if isinstance(own.gpus, int) else ""
    return f"{count}{shorten(own.card or ('cards' if count else 'no card named'), 60)}"
