"""Recomputes kvcore/catalogue/accuracy.jsonl: the prediction for every published start, next to its printed figures.

    python tools/accuracy.py --fit      rewrites the widths of kvcore/memory/intervals.toml (tools/fit_intervals.py)
    python tools/accuracy.py            rewrites the file and prints the errors
    python tools/accuracy.py --check    exit status 1 when the file is not what the code predicts now

benchmarks/data/published.jsonl has the starts: who published it (`group`: the publication, empty where it is not
known and nothing was fitted on it), the flags as their author stated them, and what the engine printed.
published_configs.jsonl has the models that the catalogue does not have, and published_peers.jsonl what other tools
(peers.toml) predict for the same starts. A start whose publication took part in the fit of a constant that it rests on
(starts.jsonl) is also predicted with that publication left out, where another one informs the constant.

Starts came in batches (`batch`: the day; batches.toml says how the planner stood on them before it knew them): each
batch is judged once more by what is fitted on the others alone.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kvcore import catalogue  # noqa: E402
from kvcore.base.errors import KvPlannerError  # noqa: E402
from kvcore.base.parts import ACTIVATIONS, CUDA_GRAPHS, FRAMEWORK, KV_CACHE, WEIGHTS  # noqa: E402
from kvcore.base.units import GIB, gib  # noqa: E402
from kvcore.evidence.accuracy import (  # noqa: E402
    FILE,
    FITTED,
    LEAST_GROUP,
    Accuracy,
    Check,
    PublishedStart,
    batches,
    groups,
    headline,
    held_out,
    of_one_source,
    off_platform,
    our_points,
    peer_points,
    read_accuracy,
    summarize,
    verdicts,
    without_batch,
)
from kvcore.planning import Plan, Verdict, plan  # noqa: E402
from kvcore.wire.request import scenario_from_request  # noqa: E402
from tools.fit_intervals import Score, between_gib, judged, judged_by, score_of, write  # noqa: E402
from tools.residuals import (  # noqa: E402
    Residual,
    by_constant,
    leave_out,
    predict,
    residuals_of,
    uses_of,
)

DATA = ROOT / "benchmarks" / "data"
OUT = ROOT / "kvcore" / "catalogue" / FILE
DIGITS = 6
KV = Check.KV_MEMORY.value
UNIFORM = ("uniform", "mla")
"""Layouts whose layers all grow alike: bytes per token are one number."""

Json = dict[str, Any]
Planned = tuple[Json, Mapping[str, Any], Plan | KvPlannerError]
"""A start with its config and its plan."""
Residuals = Mapping[str, Sequence[Residual]]
"""Residuals of the fitted starts, by constant."""

PARTS = {
    Check.KV_MEMORY: KV_CACHE.estimate,
    Check.ACTIVATIONS: ACTIVATIONS.name,
    Check.FRAMEWORK: FRAMEWORK.name,
    Check.CUDA_GRAPHS: CUDA_GRAPHS.name,
}


def lines_of(name: str) -> list[Json]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines() if line.strip()]


def configs() -> dict[str, Mapping[str, Any]]:
    """config.json of the models that are not bundled."""
    return {entry["model"]: entry["config"] for entry in lines_of("published_configs.jsonl")}


def planned(start: Json, config: Mapping[str, Any], **measured: float) -> Plan | KvPlannerError:
    """The plan of a start as its author stated it, or why there is none."""
    request = {**start["request"], "config": config}
    if measured:
        request["measured"] = measured
    try:
        return plan(scenario_from_request(request))
    except KvPlannerError as error:
        return error


def left_out(start: Json, config: Mapping[str, Any], checks: Json, residuals: Residuals) -> Json:
    """Predictions without the start's own publication, of the checks whose constants it took part in.

    None where no other publication informs one of them.
    """
    shown = [check for check in FITTED if checks.get(check.value, [None])[0] is not None]
    if not shown:
        return {}
    uses = uses_of(predict({**start, "request": {**start["request"], "config": config}}))
    found: Json = {}
    for check in shown:
        changed = leave_out(uses[PARTS[check]], start["group"], residuals)
        if changed is not None:
            change = changed.change_gib
            found[check.value] = [None if change is None else rounded(checks[check.value][0] + change)]
    return found


def record(
    start: Json,
    config: Mapping[str, Any],
    blind: Plan | KvPlannerError,
    peers: Mapping[str, Mapping[str, float]],
    residuals: Residuals,
) -> Json:
    """One line of the file; `blind` is the plan of the start as its author stated it."""
    measured, wanted = start["measured"], set(start["checks"])
    kv_gib = measured.get("available_kv_gib")
    given = planned(start, config, available_kv_gib=kv_gib) if kv_gib is not None else blind
    checks: Json = {}

    def add(
        check: Check,
        predicted: float | None,
        printed: float | None,
        interval: tuple[float, float] | None = None,
    ) -> None:
        if printed:
            bounds = [] if interval is None else [rounded(gib(bound)) for bound in interval]
            checks[check.value] = [rounded(predicted), printed, *bounds]

    memory = blind.memory if isinstance(blind, Plan) else None
    for name, check, part in (
        ("kv_gib", Check.KV_MEMORY, KV_CACHE),
        ("weights", Check.WEIGHTS, WEIGHTS),
        ("activations", Check.ACTIVATIONS, ACTIVATIONS),
        ("framework", Check.FRAMEWORK, FRAMEWORK),
        ("graphs", Check.CUDA_GRAPHS, CUDA_GRAPHS),
    ):
        if name not in wanted:
            continue
        quantity = None if memory is None else getattr(memory, part.estimate)
        if part is WEIGHTS and isinstance(blind, Plan):
            quantity = blind.loaded_weights
        value, interval = (None, None) if quantity is None else (gib(quantity.value), quantity.interval)
        add(check, value, measured.get(part.field), interval)
    given_cache = given.cache if isinstance(given, Plan) else None
    blind_cache = blind.cache if isinstance(blind, Plan) and memory is not None else None
    tokens, concurrency = measured.get("kv_tokens"), measured.get("max_concurrency")
    if "bytes_per_token" in wanted and tokens and kv_gib is not None:
        add(Check.BYTES_PER_TOKEN, bytes_per_token(start, given_cache, kv_gib), kv_gib * GIB / tokens)
    for name, given_check, blind_check, attribute, printed in (
        ("kv_tokens", Check.KV_TOKENS_GIVEN_KV, Check.KV_TOKENS, "tokens", tokens),
        (
            "concurrency",
            Check.MAX_CONCURRENCY_GIVEN_KV,
            Check.MAX_CONCURRENCY,
            "max_concurrency",
            concurrency,
        ),
    ):
        if name in wanted and kv_gib is not None:
            add(given_check, None if given_cache is None else getattr(given_cache, attribute), printed)
        if name in wanted and "kv_gib" in wanted:
            add(blind_check, None if blind_cache is None else getattr(blind_cache, attribute), printed)
    request = start["request"]
    return {
        "id": start["id"],
        "model": request["model"],
        "engine": request["engine"],
        "engine_version": request.get("engine_version"),
        "date": start["date"],
        "source": start["source"],
        "publication": start["group"],
        "card": request.get("accelerator", {}).get("name") or "not named",
        "family": start["family"],
        "layout": start["layout"],
        "tensor_parallel_size": request.get("tensor_parallel_size", 1),
        "card_gib": None if memory is None else rounded(gib(memory.total.value)),
        "surroundings": request.get("surroundings", {}),
        "inferred": start.get("inferred", []),
        "started": "verdict" not in measured and bool(wanted & {"kv_gib", "startup_ok"}),
        "checks": checks,
        "left_out": left_out(start, config, checks, residuals),
        "peers": {
            peer: found for peer, figures in peers.items() if (found := peer_checks(start, figures, checks))
        },
        "verdict": verdict_of(blind),
        "one_source": False,
        "batch": start["batch"],
        "by_batch": [],
        "failed_as": expected_verdicts(measured) if "startup_failure" in wanted else [],
    }


def verdict_of(blind: Plan | KvPlannerError) -> str:
    """The verdict on a start, or the code of the refusal; empty where the card is unknown."""
    if isinstance(blind, KvPlannerError):
        return blind.code
    return "" if blind.memory is None else blind.verdict.value


def expected_verdicts(measured: Mapping[str, Any]) -> list[str]:
    """Verdicts that name a failed start rightly; empty for a start that succeeded.

    No engine compares its weights with the budget: where they are larger, it finds no memory for the KV cache.
    """
    verdict = measured.get("verdict")
    named = [] if verdict is None else [verdict, *measured.get("verdict_also", [])]
    return (
        list(dict.fromkeys([*named, Verdict.WEIGHTS_DO_NOT_FIT])) if Verdict.NO_KV_MEMORY in named else named
    )


def bytes_per_token(start: Json, cache: Any, kv_gib: float) -> float | None:
    """The planned figure where all layers grow alike; else the one that the printed tokens imply."""
    if cache is None:
        return None
    if start["layout"] in UNIFORM and cache.bytes_per_token:
        return float(cache.bytes_per_token)
    return kv_gib * GIB / cache.tokens if cache.tokens else None


def peer_checks(start: Json, figures: Mapping[str, float], checks: Json) -> dict[str, float]:
    """A peer's figures by our checks; given the KV memory it divides by its own bytes per token."""
    kv_gib, length = start["measured"].get("available_kv_gib"), start["measured"].get("concurrency_for_len")
    size = figures.get("bytes_per_token")
    found: dict[str, float | None] = {
        Check.KV_MEMORY: figures.get("available_kv_gib"),
        Check.WEIGHTS: figures.get("weights_gib"),
        Check.BYTES_PER_TOKEN: size,
        Check.KV_TOKENS: figures.get("kv_tokens"),
        Check.MAX_CONCURRENCY: figures.get("max_concurrency"),
        Check.KV_TOKENS_GIVEN_KV: kv_gib * GIB / size if size and kv_gib else None,
        Check.MAX_CONCURRENCY_GIVEN_KV: kv_gib * GIB / size / length if size and kv_gib and length else None,
    }
    return {
        check.value: value if isinstance(value, int) else rounded(value)
        for check, value in found.items()
        if value is not None and check.value in checks
    }  # type: ignore[attr-defined]


def rounded(value: float | None) -> float | None:
    """Significant digits enough for a page, the same on every machine."""
    if value is None or not math.isfinite(value) or value == 0:
        return None if value is None or not math.isfinite(value) else 0.0
    return float(f"{value:.{DIGITS}g}")


def plans() -> Iterator[Planned]:
    """Every start with its config and its plan."""
    own = configs()
    for start in lines_of("published.jsonl"):
        config = own.get(start["config"]) or catalogue.find_model(start["config"]).config.raw
        yield start, config, planned(start, config)


def records() -> list[Json]:
    """All lines about starts; the interval of each KV memory also as the other publications alone make it."""
    peers = {entry["id"]: entry["figures"] for entry in lines_of("published_peers.jsonl")}
    found: dict[str, Json] = {}
    scores: list[Score] = []
    all_plans = list(plans())
    said = saying(all_plans)
    residuals = by_constant(item for _, item in said)
    for start, config, blind in all_plans:
        line = record(start, config, blind, peers.get(start["id"], {}), residuals)
        found[start["id"]] = line
        if isinstance(blind, Plan):
            scores += score_of(start, blind, change_of(line))
    between = {
        group: between_gib(by_constant(item for _, item in said if item.group != group)) * GIB
        for group in {score.group for score in scores}
    }
    for score, (low, high) in judged(scores, between):
        line = found[score.id]
        value = line["checks"][KV][0] + change_of(line)
        line["one_source"] = line["left_out"].get(KV) == [None]
        line["left_out"][KV] = [rounded(end) for end in (value, value + gib(low), value + gib(high))]
    for name, ends in by_batch(all_plans, said):
        line = found[name]
        line["by_batch"] = [rounded(line["checks"][KV][0] + change) for change in ends]
    return list(found.values())


def saying(all_plans: Iterable[Planned]) -> list[tuple[str, Residual]]:
    """What starts say of constants, each with the batch that it came in."""
    return [
        (start["batch"], item)
        for start, config, blind in all_plans
        if isinstance(blind, Plan) and start["group"]
        for item in residuals_of({**start, "request": {**start["request"], "config": config}})
    ]


def by_batch(
    all_plans: Sequence[Planned], said: Sequence[tuple[str, Residual]]
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """For each start whose KV memory may be compared: how much its prediction changes, and the ends of its interval, in
    GiB, where the whole batch that it came in is left out of constants and widths.

    A constant that no other batch informs stays as it is.
    """
    batches = sorted({start["batch"] for start, _, _ in all_plans})
    apart: dict[str, list[tuple[float, Score]]] = {batch: [] for batch in batches}
    for batch in batches:
        named = by_constant(
            dataclasses.replace(item, group=batch) if of == batch else item for of, item in said
        )
        for start, config, blind in all_plans:
            if start["batch"] != batch or not isinstance(blind, Plan) or "kv_gib" not in start["checks"]:
                continue
            uses = uses_of(predict({**start, "request": {**start["request"], "config": config}}))
            alone = (leave_out([use], batch, named) for use in uses[PARTS[Check.KV_MEMORY]])
            change = sum(one.change_gib or 0.0 for one in alone if one is not None)
            apart[batch] += [(change, score) for score in score_of(start, blind, change)]
    for batch in batches:
        others = [score for other in batches if other != batch for _, score in apart[other]]
        between = between_gib(by_constant(item for of, item in said if of != batch)) * GIB
        changes = {score.id: change for change, score in apart[batch]}
        for score, (low, high) in judged_by([score for _, score in apart[batch]], others, between):
            change = changes[score.id]
            yield score.id, (change, change + gib(low), change + gib(high))


def change_of(line: Json) -> float:
    """Change of a start's KV memory without its publication; 0 where its constants rest on no other one."""
    without = line["left_out"].get(KV, [None])[0]
    return 0.0 if without is None else without - line["checks"][KV][0]


def text_of(found: list[Json], generated: str) -> str:
    """The file's text."""
    peers = tomllib.loads((DATA / "peers.toml").read_text("utf-8"))["peer"]
    batches = tomllib.loads((DATA / "batches.toml").read_text("utf-8"))["batch"]
    header = {"generated": generated, "starts": len(found), "peers": peers, "batches": batches}
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in (header, *found))


def report(text: str) -> str:
    """Errors of every check, ours and the best peer's, as a table; below, with each start's publication left out."""
    accuracy = read_accuracy(text)
    lines = [f"{'':26}{'n':>5}{'median':>9}{'p90':>9}{'signed':>9}{'inside':>9}   best peer (answered)"]
    for check in Check:
        ours = summarize(our_points(accuracy.starts, check))
        if ours is None:
            continue
        theirs = [
            (found.median, peer.name, found.count)
            for peer in accuracy.peers
            if (found := summarize(peer_points(accuracy.starts, check, peer.id))) is not None
        ]
        best = "" if not theirs else f"   {min(theirs)[0]:.1%} {min(theirs)[1]} ({min(theirs)[2]})"
        signed = "" if ours.signed_median is None else f"{ours.signed_median:+.1%}"
        inside = "" if ours.inside is None else f"{ours.inside:.0%}"
        lines.append(
            f"{check.value:26}{ours.count:>5}{ours.median:>9.1%}{ours.p90:>9.1%}{signed:>9}{inside:>9}{best}"
        )
    without = held_out(accuracy.starts)
    lines.append("\nits own publication left out, of constants and of interval widths")
    for check in FITTED:
        alone = of_one_source(accuracy.starts, check)
        left = summarize(our_points(without, check))
        if left is not None:
            signed = "" if left.signed_median is None else f"{left.signed_median:+.1%}"
            inside = "" if left.inside is None else f"{left.inside:.0%}"
            lines.append(
                f"{check.value:26}{left.count:>5}{left.median:>9.1%}{left.p90:>9.1%}{signed:>9}{inside:>9}"
                f"   {alone} of one source"
            )
    unseen = (*unseen_lines(without), "", *batch_lines(accuracy))
    return "\n".join((*lines, "", *unseen, "", *verdict_lines(accuracy.starts)))


def unseen_lines(without: Sequence[PublishedStart]) -> Iterator[str]:
    """Expected accuracy of the KV memory on an unpublished machine: the headline of docs/accuracy.md."""
    others = off_platform(without)
    several = [start for start in others if start.tensor_parallel_size > 1]
    plugged = [start for start in without if start not in others]
    for label, starts in (
        ("without vllm-ascend", others),
        ("of them TP > 1", several),
        ("vllm-ascend", plugged),
        ("all", without),
    ):
        one = headline(starts)
        if one is None:
            continue
        found, alone = one.found, sum(start.one_source for start in starts)
        yield (
            f"KV GiB, {label}: {found.count} starts, median {found.median:.1%}, p90 {found.p90:.1%}; of the card's "
            f"memory {one.share_median:.2%}, p90 {one.share_p90:.2%}; {found.inside or 0:.0%} inside the interval "
            f"({one.inside_by_publication:.0%} where each publication counts once), "
            f"median width {one.width:.1%} of the figure; {alone} rest on a constant of their own publication alone"
        )
    for label, starts in groups(without, "era").items():
        judged_points = [point.is_inside for point in our_points(starts, Check.KV_MEMORY)]
        if judged_points:
            share = sum(map(bool, judged_points))
            low = " *" if len(judged_points) >= LEAST_GROUP and share < 0.7 * len(judged_points) else ""
            yield f"  {label:18} {share:>3} of {len(judged_points):>3} inside{low}"


def batch_lines(accuracy: Accuracy) -> Iterator[str]:
    """Each batch judged by what is fitted on the others, next to how it was met before it was known."""
    yield "batch by batch: constants, what publications differ by and factors fitted on the other batches alone"
    fresh = {one.date: one for one in accuracy.batches}
    for batch, starts in (*batches(accuracy.starts).items(), ("all", without_batch(accuracy.starts))):
        one = headline(starts)
        if one is None:
            continue
        seen = fresh.get(batch)
        before = "" if seen is None else f"; before it was known {seen.inside} of {seen.starts} inside"
        yield (
            f"  {batch}: {one.found.count} starts, {one.found.inside or 0:.0%} inside "
            f"({one.inside_by_publication:.0%} where each publication counts once), median width {one.width:.1%}, "
            f"error {one.found.median:.1%}, of the card's memory {one.share_median:.2%}, p90 {one.share_p90:.2%}"
            f"{before}"
        )


def verdict_lines(starts: Sequence[PublishedStart]) -> Iterator[str]:
    """Failed and healthy starts, with those that are called wrongly."""
    counted = verdicts(starts)
    yield (
        f"verdicts: {counted.named_rightly} of {counted.failed} failed starts named rightly, "
        f"{counted.called_tight} more called tight; {counted.refused} of {counted.healthy} healthy starts refused"
    )
    for start in starts:
        wanted = start.failed_as or ("fits", "tight")
        if start.verdict and (start.failed_as or start.started) and start.verdict not in wanted:
            yield f"  {start.id} {start.model} {start.card}: {start.verdict}, not {' or '.join(wanted)}"


def is_current(text: str) -> bool:
    """Whether a file's starts are the current predictions."""
    return text.splitlines()[1:] == text_of(records(), "").splitlines()[1:]


def main() -> int:
    """Exit status 1 with `--check` when the file is out of date."""
    if "--check" in sys.argv:
        current = is_current(OUT.read_text("utf-8"))
        print("accuracy.jsonl is current" if current else "accuracy.jsonl is out of date: run make accuracy")
        return 0 if current else 1
    if "--fit" in sys.argv:
        all_plans = list(plans())
        scores = (score_of(start, one) for start, _, one in all_plans if isinstance(one, Plan))
        said = by_constant(item for _, item in saying(all_plans))
        write([score for found in scores for score in found], between_gib(said))
        return 0
    text = text_of(records(), datetime.date.today().isoformat())
    OUT.write_text(text, encoding="utf-8")
    print(report(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
