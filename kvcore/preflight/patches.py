"""The smallest change of a file with which its workload starts, as a patch of that file.

Every edit is read again: it counts only where the workload changes in that one setting, nothing else in the files
does, and the workload then starts. Where no edit does that, no patch is offered.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.advice.fixes import Fix, FixPair, fix_pairs, fix_with, fixes, refusal_fixes, surer
from kvcore.advice.sweep_cell import STARTS
from kvcore.base.errors import EngineRefusalError, KvPlannerError
from kvcore.base.units import GIB
from kvcore.engines.registry import find_engine, is_planned
from kvcore.manifests.arguments import Given
from kvcore.manifests.files import Read, Source, read_files
from kvcore.manifests.models import known_model
from kvcore.manifests.workload import Workload
from kvcore.planning import Batch, Plan, Verdict, plan
from kvcore.preflight.edits import (
    Edit,
    behind_model,
    container_insertions,
    count_places,
    edited,
    insertions,
    line_start,
    size_places,
    spellings,
    value_places,
)
from kvcore.preflight.limits import ABOVE_MODEL
from kvcore.preflight.outcome import Asked, Checked, Checks, Outcome, Tight, cards_of, judged, request_of
from kvcore.preflight.secrets import secret_values, shows_secret
from kvcore.wire.request import scenario_from_request

MAX_FIXES: Final = 6
"""Most single changes of which a patch is tried."""
MAX_READ: Final = 120
"""Most times that a text is read again for one patch."""
MAX_CHARACTERS: Final = 1 << 19
"""Largest file that is patched."""
MAX_FILES: Final = 12
CONTEXT: Final = 3

GPUS: Final = "gpus"
MEMORY: Final = "host_memory_gib"
SHM: Final = "shm_gib"
NOT_IN_FILES: Final = ("kernels_compiled", "accelerator")
"""Fixes that no line of a file makes: a second start, another card."""

Change = tuple[str, Any]


class Patch(Struct, frozen=True, kw_only=True):
    """A change of one file."""

    file: str
    changes: tuple[tuple[str, Any, Any], ...]
    """Settings with their value before and after."""
    diff: str
    """Unified; without lines around it where those would show a secret."""
    text: str
    """The whole file with the change made."""


def fixes_of(one: Checked) -> tuple[Fix, ...]:
    """Single changes that make a workload start, or serve what is wanted, the smallest first; none where it does.

    Some start tight: `that_count` leaves those out where a tight start counts as none.
    """
    if one.outcome not in (Outcome.DOES_NOT_START, Outcome.FALLS_SHORT) or not one.plans:
        return ()
    broken = _broken(one)
    of_pod = _of_pod(one)
    if of_pod and broken.verdict in STARTS:
        return tuple(_fix_of_pod(broken, change) for change in of_pod) if len(of_pod) == 1 else ()
    found = fixes(broken)
    longest = next((int(said.params["derived"]) for said in one.reasons if said.code == ABOVE_MODEL), None)
    if longest is not None:
        shortened = fix_with(broken, "max_model_len", longest)
        within = (fix for fix in found if fix.field == "max_model_len" and _within(fix.value, longest))
        found = (shortened,) if shortened is not None else tuple(within)
    return tuple(islice(found, MAX_FIXES))


def that_count(found: Sequence[Fix], tight: Tight) -> tuple[Fix, ...]:
    """The fixes whose start counts as one."""
    return tuple(fix for fix in found if tight is Tight.STARTS or fix.verdict is not Verdict.TIGHT)


def surer_of(found: Sequence[Fix]) -> FixPair | None:
    """The fewest GPUs with which it starts tight, and a utilization with which it surely does; None where none are."""
    tight = (fix for fix in found if fix.field == "tensor_parallel_size" and fix.verdict is Verdict.TIGHT)
    return next(filter(None, map(surer, tight)), None)


def _broken(one: Checked) -> Plan:
    return next((each for each in one.plans if each.verdict.value != "fits"), one.plans[0])


def _within(value: object, longest: int) -> bool:
    return isinstance(value, int) and value <= longest


def _of_pod(one: Checked) -> tuple[Change, ...]:
    """Sizes that a container needs, where those of the files end the start."""
    host = one.plans[0].host if one.plans else None
    found: dict[str, int] = {}
    for said in one.reasons:
        if said.field == SHM:
            found[SHM] = int(said.params["needed"])
        elif said.code == "limit-below-host-memory" and host is not None:
            found[MEMORY] = host.limit_bounds[1] // GIB
    return tuple(found.items())


def _fix_of_pod(planned: Plan, change: Change) -> Fix:
    field, value = change
    scenario = replace(planned.scenario, shm_gib=value) if field == SHM else planned.scenario
    return Fix(field=field, value=value, scenario=scenario, verdict=planned.verdict)


def patch_of(found: Checks, one: Checked, known: Sequence[Fix] | None = None) -> Patch | None:
    """The smallest change of a file with which a workload starts; None where no single line does.

    `known`: its fixes, where they are worked out already.
    """
    if one.outcome not in (Outcome.DOES_NOT_START, Outcome.FALLS_SHORT):
        return None
    patcher = _Patcher(found, one)
    each = (
        patcher.patched(changes)
        for changes in _wanted(one, found.asked, fixes_of(one) if known is None else known)
    )
    return next(filter(None, each), None)


def _wanted(one: Checked, asked: Asked, known: Sequence[Fix]) -> Iterator[tuple[Change, ...]]:
    """Changes to try, the smallest first."""
    own, params = one.workload, {reason.code: reason.params for reason in one.reasons}
    if "check-too-few-gpus" in params:
        said = params["check-too-few-gpus"]
        gpus, ranks, pipeline = int(said["gpus"]), int(said["ranks"]), int(said["pipeline"])
        if pipeline == 1 and gpus >= 1:
            yield (("tensor_parallel_size", gpus),)
        if ranks % own.nodes == 0:
            yield ((GPUS, ranks // own.nodes),)
    of_pod = _of_pod(one)
    if of_pod:
        yield of_pod
        if _broken(one).verdict in STARTS:
            return
    for fix in known or _of_refusal(one, asked):
        if fix.field not in NOT_IN_FILES and that_count((fix,), asked.tight):
            yield from _with_gpus(own, (fix.field, fix.value))
        pair = surer_of((fix,))
        for size in () if pair is None else _with_gpus(own, pair.first):
            yield (*size, *(pair.changes[1:] if pair is not None else ()))
    if one.plans:
        for pair in fix_pairs(_broken(one)):
            if not {field for field, _ in pair.changes} & set(NOT_IN_FILES):
                yield pair.changes


def _with_gpus(own: Workload, change: Change) -> Iterator[tuple[Change, ...]]:
    """A change of the tensor parallel size with the cards that it needs."""
    field, value = change
    if field != "tensor_parallel_size" or not isinstance(own.gpus, int) or not isinstance(value, int):
        yield (change,)
        return
    pipeline = own.planned.get("pipeline_parallel_size")
    needed = value * (pipeline if isinstance(pipeline, int) else 1)
    each = -(-needed // own.nodes)
    yield (change,) if each <= own.gpus else (change, (GPUS, each))


def _of_refusal(one: Checked, asked: Asked) -> tuple[Fix, ...]:
    """Changes that end a refusal of the engine."""
    own = one.workload
    cards, _, _ = cards_of(own, asked.accelerator)
    model = known_model(own)
    if one.plans or model is None or not cards or one.outcome is not Outcome.DOES_NOT_START:
        return ()
    try:
        scenario = scenario_from_request(request_of(own, model, cards[0], asked))
    except KvPlannerError:
        return ()
    try:
        plan(scenario)
    except EngineRefusalError as refused:
        return refusal_fixes(scenario, refused)[:MAX_FIXES]
    except KvPlannerError:
        return ()
    return ()


class _Patcher:
    """Edits the files of one workload, and reads them again after each edit."""

    def __init__(self, found: Checks, one: Checked) -> None:
        self.one, self.asked = one, found.asked
        self.left = MAX_READ
        self.batch = Batch()
        held = {other.workload.place.file for other in found.checked} - {one.workload.place.file}
        self.sources = [source for source in found.sources if source.name not in held]
        """Its own file, and those that start nothing by themselves: variables, values, scripts."""
        self.texts = {source.name: text for source in self.sources if (text := _editable(source)) is not None}
        self.before = self._read({})
        self.alone = self._read({}, is_alone=True)
        self.index = _place_in(self.before, one.workload)
        self.stands_alone = len(self.sources) > 1 and _place_in(self.alone, one.workload) is not None
        """Whether its own file says the same without the others: then they are read again only to make sure."""

    def _read(self, changed: Mapping[str, str], *, is_alone: bool = False) -> Read:
        self.left -= 1
        own = self.one.workload.place.file
        return read_files(
            Source(source.name, changed.get(source.name, source.content))
            for source in self.sources
            if not is_alone or source.name == own
        )

    def patched(self, changes: Sequence[Change]) -> Patch | None:
        """One file with all changes made, where the workload then starts."""
        own = self.one.workload
        for file in self._candidates() if self.index is not None else ():
            text: str | None = self.texts[file]
            before = own
            for name, value in changes:
                step = None if text is None else self._changed(file, text, before, name, value)
                text, before = (None, before) if step is None else step
            if text is None or judged(before, self.asked, self.batch).outcome is not Outcome.STARTS:
                continue
            diff = unified(file, self.texts[file], text)
            if diff is None:
                return None
            said = tuple((name, _value(own, name), value) for name, value in changes)
            return Patch(file=file, changes=said, diff=diff, text=text)
        return None

    def _candidates(self) -> list[str]:
        own = self.one.workload.place.file
        others = [name for name in self.texts if name != own]
        return [name for name in (own, *others[:MAX_FILES]) if name in self.texts]

    def _changed(
        self, file: str, text: str, before: Workload, name: str, value: Any
    ) -> tuple[str, Workload] | None:
        """The text with one setting changed, and the workload that it then holds."""
        for edits in _proposals(text, before, name, value, is_own=file == before.place.file):
            if self.left <= 0:
                return None
            made = edited(text, edits)
            is_own = file == before.place.file
            if self.stands_alone and is_own and self._with(made, file, before, name, value, True) is None:
                continue
            after = self._with(made, file, before, name, value, False)
            if after is not None:
                return made, after
        return None

    def _with(
        self, made: str, file: str, before: Workload, name: str, value: Any, is_alone: bool
    ) -> Workload | None:
        """The workload of an edited text, where it differs in one setting and nothing else does."""
        first = self.alone if is_alone else self.before
        index = _place_in(first, self.one.workload)
        read = self._read({file: made}, is_alone=is_alone)
        workloads = read.workloads
        is_kept = len(workloads) == len(first.workloads) and len(read.problems) <= len(first.problems)
        if index is None or not is_kept or not _is_changed_in(before, workloads[index], name, value):
            return None
        pairs = enumerate(zip(first.workloads, workloads, strict=True))
        if any(at != index and not _same(one, other) for at, (one, other) in pairs):
            return None
        return workloads[index]


def _place_in(read: Read, own: Workload) -> int | None:
    """Where a workload stands among those that were read."""
    return next((place for place, other in enumerate(read.workloads) if other == own), None)


def _editable(source: Source) -> str | None:
    if len(source.content) > MAX_CHARACTERS:
        return None
    if isinstance(source.content, str):
        return source.content
    try:
        return source.content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _value(own: Workload, name: str) -> Any:
    if name in (GPUS, MEMORY, SHM):
        return getattr(own, name)
    return own.model if name == "model" else own.request.get(name)


def _same(one: Workload, other: Workload) -> bool:
    """Whether two workloads are the same but for the lines on which they stand."""
    return _without_lines(one) == _without_lines(other)


def _without_lines(one: Workload) -> Workload:
    return replace(one, place=replace(one.place, line=0), arguments=(), fallbacks=(), notices=())


def _is_changed_in(before: Workload, after: Workload, name: str, value: Any) -> bool:
    """Whether a workload changed in one setting alone."""
    if name in (GPUS, MEMORY, SHM):
        is_it = getattr(after, name) == value
        return is_it and _same(replace(after, **{name: getattr(before, name)}), before)
    if name == "model":
        return after.model == value and _same(replace(after, model=before.model), before)
    if not _equal(after.planned.get(name), _as_planned(before.engine, name, value)):
        return False
    own = own_setting(before.engine, name, value)
    names = {name} if own is None else {name, own[0]}
    changed = {
        key: {
            **{other: held for other, held in getattr(after, key).items() if other not in names},
            **{other: held for other, held in getattr(before, key).items() if other in names},
        }
        for key in ("request", "planned")
    }
    return _same(replace(after, **changed), before)


def own_setting(engine: str, field: str, value: Any) -> tuple[str, Any] | None:
    """A setting by the engine's own name of it; None where it has no such argument.

    Example:
        >>> own_setting("vllm", "max_model_len", 8192)
        ('max_model_len', 8192)
    """
    return find_engine(engine).own_setting(field, value) if is_planned(engine) else (field, value)


def _as_planned(engine: str, field: str, value: Any) -> Any:
    """The value of a setting as a plan takes it once the engine's own argument is read."""
    own = own_setting(engine, field, value)
    if own is None or own == (field, value):
        return value
    return find_engine(engine).fields_of_command(dict([own])).get(field, value)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        return numbers and abs(float(one) - float(other)) < 1e-9  # type: ignore[arg-type]
    return one == other


def _proposals(
    text: str, before: Workload, name: str, value: Any, *, is_own: bool
) -> Iterator[tuple[Edit, ...]]:
    """Edits that may change one setting, the likeliest first."""
    first = line_start(text, before.place.line) if is_own else 0
    if name == GPUS:
        if isinstance(before.gpus, int):
            for group in count_places(text, before.gpus, first):
                yield tuple(Edit(one.begin, one.end, str(value)) for one in group)
        return
    if name in (MEMORY, SHM):
        now = getattr(before, name)
        if now is None and name == SHM:
            yield from ((edit,) for edit in container_insertions(text, value, first))
        for place, unit in size_places(text, now, first) if now is not None else ():
            is_decimal = len(unit) == 1 and unit.isupper()
            yield (Edit(place.begin, place.end, f"{value}{'Gi' if is_decimal or unit[1:2] == 'i' else 'g'}"),)
        return
    if name == "model":
        for place in value_places(text, before.model or "", None, first) if before.model else ():
            yield (Edit(place.begin, place.end, str(value)),)
        return
    own = own_setting(before.engine, name, value)
    if own is None:
        return
    name, value = own
    said = _said(value)
    held = next((one for one in reversed(before.arguments) if one.name == name), None)
    if held is not None and held.value not in ("True", "False"):
        for place in value_places(text, held.value, spellings(held.word, name), first):
            yield (Edit(place.begin, place.end, said),)
    if held is None and is_own:
        for anchor in _anchors(before):
            yield from ((edit,) for edit in insertions(text, anchor, name, said, first))
        if before.model:
            yield from ((edit,) for edit in behind_model(text, before.model, name, said, first))


_BEFORE_OTHERS: Final = ("max_model_len", "gpu_memory_utilization", "max_num_seqs", "tensor_parallel_size")
_MODEL_KEYS: Final = re.compile(r"(?<![\w-])(?:--model|model|model_id|model_source)(?![\w-])")


def _anchors(before: Workload) -> Iterator[re.Pattern[str]]:
    """Arguments beside which one more may be put: those about memory, then all others, then the model's."""
    given = {one.name: one for one in before.arguments if one.word and not one.word.startswith("VLLM_")}
    names = [
        *filter(given.__contains__, _BEFORE_OTHERS),
        *(one for one in given if one not in _BEFORE_OTHERS),
    ]
    yield from (_anchor(given[name]) for name in names[:8])
    yield _MODEL_KEYS


def _anchor(one: Given) -> re.Pattern[str]:
    return spellings(one.word, one.name.partition(".")[0])


def _said(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.4f}".rstrip("0").rstrip(".")


def unified(file: str, before: str, after: str) -> str | None:
    """A unified diff, with as many lines around it as show no secret; None where a changed line holds one.

    Example:
        >>> print(unified("a.sh", "x 1\\n", "x 2\\n"), end="")
        --- a/a.sh
        +++ b/a.sh
        @@ -1 +1 @@
        -x 1
        +x 2
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    name, secrets = file.lstrip("/").replace("\n", " "), secret_values(before)
    for around in range(CONTEXT, -1, -1):
        lines = list(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=around))
        body = lines[2:]
        if not any(shows_secret(line[1:], secrets) for line in body):
            return "".join(
                line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
            )
    return None
