"""Files that people deploy -> for each workload whether it starts and serves. See docs/check-files.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from kvcore import catalogue
from kvcore.advice.target import served
from kvcore.base.errors import CatalogueError, EngineRefusalError, KvPlannerError, Notice, notice
from kvcore.base.units import ceil_div, rounded_gib
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engines.registry import engine_for, find_engine, is_planned
from kvcore.host.limits import SHM
from kvcore.manifests.build import PLANNED_VARIABLES
from kvcore.manifests.files import Read, Source, read_files
from kvcore.manifests.machines import card_named, is_assumed_size
from kvcore.manifests.models import known_model, names_of
from kvcore.manifests.unknowns import joined
from kvcore.manifests.workload import Workload
from kvcore.planning import Batch, Plan, Verdict, plan
from kvcore.preflight.limits import (
    ABOVE_MODEL,
    above_model_length,
    container_limits,
    contradictions,
    risks,
    tight_start,
    too_few_gpus,
    weight_risks,
)
from kvcore.wire.request import scenario_from_request

MAX_CARDS: Final = 12


class Outcome(StrEnum):
    """What can be said of a workload's start."""

    STARTS = "starts"
    FALLS_SHORT = "falls-short"
    """It starts, and serves fewer requests at once than are wanted."""
    DOES_NOT_START = "does-not-start"
    CANNOT_BE_KNOWN = "cannot-be-known"


EXIT: Final[Mapping[Outcome, int]] = {
    Outcome.STARTS: 0,
    Outcome.FALLS_SHORT: 1,
    Outcome.DOES_NOT_START: 1,
    Outcome.CANNOT_BE_KNOWN: 3,
}
NOT_READ: Final = 2


class Tight(StrEnum):
    """What a tight plan counts as."""

    STARTS = "starts"
    DOES_NOT_START = "does-not-start"
    CANNOT_BE_KNOWN = "cannot-be-known"


class Asked(Struct, frozen=True, kw_only=True):
    """What a check is to take for granted, and what it is to hold a start against."""

    accelerator: Accelerator | None = None
    """The card, in place of what the files say of it."""
    tight: Tight = Tight.STARTS
    target: int | None = None
    """Requests of full length at once, over all replicas."""
    release: str | None = None
    """Of the engine, in place of what the files say."""


class Checked(Struct, frozen=True, kw_only=True):
    """One workload with its outcome."""

    workload: Workload
    outcome: Outcome
    plans: tuple[Plan, ...] = ()
    """One for each card that may serve it."""
    reasons: tuple[Notice, ...] = ()
    """Why it does not start, or why that cannot be known."""
    assumed: tuple[Notice, ...] = ()
    warnings: tuple[Notice, ...] = ()
    """What may break a start that counts as one, or what the file says and does not mean."""

    @property
    def is_tight(self) -> bool:
        """Whether it counts as a start that may fail within the error of the plan."""
        counts = self.outcome in (Outcome.STARTS, Outcome.FALLS_SHORT)
        return counts and any(each.verdict is Verdict.TIGHT for each in self.plans)


class Checks(Struct, frozen=True, kw_only=True):
    """All workloads of files."""

    read: Read
    checked: tuple[Checked, ...]
    asked: Asked = Asked()
    sources: tuple[Source, ...] = ()

    @property
    def status(self) -> int:
        """1 where one does not start or falls short, 2 where something cannot be read, 3 where one cannot be known."""
        found = {EXIT[one.outcome] for one in self.checked}
        if EXIT[Outcome.DOES_NOT_START] in found:
            return EXIT[Outcome.DOES_NOT_START]
        if self.read.problems or not self.checked:
            return NOT_READ
        return max(found)


def check_files(
    sources: Iterable[Source],
    accelerator: str | None = None,
    tight: Tight = Tight.STARTS,
    target: int | None = None,
) -> Checks:
    """The workloads of files that belong together, each with its outcome; `accelerator` for those that name no card.

    Raises CatalogueError `unknown-accelerator`.

    Example:
        >>> found = check_files([Source("run.sh", "vllm serve Qwen/Qwen3-8B --max-model-len 8192")], "L4-24GB")
        >>> found.checked[0].outcome.value, found.status
        ('starts', 0)
    """
    card = None if accelerator is None else catalogue.find_accelerator(accelerator)
    return checks_of(tuple(sources), Asked(accelerator=card, tight=tight, target=target))


def checks_of(sources: tuple[Source, ...], asked: Asked, most: int | None = None) -> Checks:
    """The workloads of files that belong together, each with its outcome; the first `most` of them."""
    read, batch = read_files(sources), Batch()
    checked = tuple(judged(one, asked, batch) for one in read.workloads[:most])
    return Checks(read=read, checked=checked, asked=asked, sources=sources)


def judged(one: Workload, asked: Asked, batch: Batch) -> Checked:
    """One workload with its outcome."""
    unknown = list(_open_questions(one))
    cards, count, assumed = cards_of(one, asked.accelerator)
    warnings = tuple(risks(one, count))
    assumed += one.notices
    if one.open_arguments:
        assumed.append(notice("check-arguments-empty", names=joined(one.open_arguments)))
    if not is_planned(one.engine):
        return Checked(
            workload=one, outcome=Outcome.CANNOT_BE_KNOWN, reasons=tuple(unknown), warnings=warnings
        )
    if not cards:
        unknown.append(
            notice("check-no-card" if one.card is None else "check-card-unknown", card=one.card or "")
        )
    model, why = _model(one)
    unknown += [] if why is None else [why]
    against = (*contradictions(one, cards), *too_few_gpus(one, count))
    if against or unknown or model is None:
        return Checked(
            workload=one, outcome=Outcome.DOES_NOT_START if against else Outcome.CANNOT_BE_KNOWN,
            reasons=(*against, *unknown), assumed=tuple(assumed), warnings=warnings,
        )  # fmt: skip
    if model != one.model and one.model is not None:
        assumed.append(notice("check-model-assumed", said=one.model, model=model))
    return _planned(one, model, cards, asked, batch, tuple(assumed), warnings)


def _planned(
    one: Workload, model: str, cards: Sequence[Accelerator], asked: Asked, batch: Batch,
    assumed: tuple[Notice, ...], warnings: tuple[Notice, ...],
) -> Checked:  # fmt: skip
    plans: list[Plan] = []
    reasons: list[Notice] = []
    outcomes: list[Outcome] = []
    about: list[Notice] = []
    for card in cards[:MAX_CARDS]:
        try:
            plans.append(plan(scenario_from_request(request_of(one, model, card, asked)), batch))
        except KvPlannerError as error:
            refused = Notice(code=error.code, field=error.field, params=error.params)
            is_sure = isinstance(error, EngineRefusalError)
            outcome = Outcome.DOES_NOT_START if is_sure else Outcome.CANNOT_BE_KNOWN
            return Checked(
                workload=one, outcome=outcome, reasons=(refused,), assumed=assumed, warnings=warnings
            )
        limits, tight = container_limits(one, plans[-1])
        outcome, why = _outcome(plans[-1], one, asked, [*above_model_length(one, plans[-1]), *limits])
        outcomes.append(outcome)
        reasons += why
        if any(said.field == SHM for said in limits):
            warnings = tuple(said for said in warnings if said.code != "check-small-shm")
        if plans[-1].verdict is Verdict.TIGHT and outcome in (Outcome.STARTS, Outcome.FALLS_SHORT):
            tight.insert(0, tight_start(plans[-1]))
        about += [said for said in (*tight, *weight_risks(one, plans[-1])) if said not in about]
    if len(set(outcomes)) > 1:
        each = ", ".join(
            f"{card.id}: {outcome.value}" for card, outcome in zip(cards, outcomes, strict=False)
        )
        reasons.insert(0, notice("check-depends-on-card", cards=each))
        outcomes = [Outcome.CANNOT_BE_KNOWN]
    if (asked.release or one.release) is None:
        release = str(plans[0].resolved.engine_version)
        assumed = (*assumed, notice("check-release-assumed", release=release))
    return Checked(
        workload=one, outcome=outcomes[0], plans=tuple(plans), reasons=tuple(reasons), assumed=assumed,
        warnings=(*warnings, *about),
    )  # fmt: skip


def _outcome(
    planned: Plan, one: Workload, asked: Asked, limits: list[Notice]
) -> tuple[Outcome, list[Notice]]:
    """The outcome of one plan, and why it is none that starts."""
    if planned.verdict not in (Verdict.FITS, Verdict.TIGHT):
        return Outcome.DOES_NOT_START, [
            *_reasons(planned),
            *(said for said in limits if said.code == ABOVE_MODEL),
        ]
    if limits:
        return Outcome.DOES_NOT_START, limits
    if planned.verdict is Verdict.TIGHT and asked.tight is not Tight.STARTS:
        return Outcome(asked.tight.value), [tight_start(planned)]
    target = served(planned)
    if target is not None and not target.enough:
        replicas = one.replicas or 1
        said = {"served": target.total * replicas, "wanted": asked.target}
        return Outcome.FALLS_SHORT, [notice("check-falls-short", "wanted", card=_card_id(planned), **said)]
    return Outcome.STARTS, []


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


def cards_of(one: Workload, given: Accelerator | None) -> tuple[list[Accelerator], int | None, list[Notice]]:
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


def request_of(
    one: Workload, model: str | None = None, card: Accelerator | None = None, asked: Asked | None = None
) -> dict[str, Any]:
    """A workload as a request that `plan` takes."""
    plug_in = None
    if card is not None and not find_engine(one.engine).facts.releases:
        plug_in = None if find_engine(one.engine).runs_on(card) else engine_for(card).name
    env = {name: value for name, value in one.environment.items() if name in PLANNED_VARIABLES}
    request: dict[str, Any] = {"model": model or one.model, "engine": plug_in or one.engine, **one.planned}
    release = one.release if asked is None or asked.release is None else asked.release
    if release is not None and plug_in is None:
        request["engine_version"] = release
    if card is not None:
        request["accelerator"] = card.id
    if asked is not None and asked.target is not None:
        request["wanted"] = ceil_div(asked.target, one.replicas or 1)
    return request | ({"env": env} if env else {})


def _card_id(planned: Plan) -> str:
    card = planned.scenario.accelerator
    return card.id if card is not None else "?"


def _reasons(planned: Plan) -> Iterator[Notice]:
    """Why a plan does not start, with its figures."""
    named = _card_id(planned)
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
