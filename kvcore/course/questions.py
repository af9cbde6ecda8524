"""Three questions a step, with hints that fit the slip: all from facts of the plan and from numbers drawn by a seed.

The same seed draws the same numbers on every machine, and varies the scenario in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from string import Formatter
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import answer_text, count, exact_gib_text, format_bytes, in_billions, latex, plain
from kvcore.base.quantity import Grade, Quantity, Scope, Unit, explained, given
from kvcore.base.units import GB, GIB, KIB, MIB
from kvcore.base.words import Words
from kvcore.controls import edit
from kvcore.course.answers import ANSWERS, Answer, Facts
from kvcore.course.equation import Equation, equation
from kvcore.course.lesson import CLOSE, STEPS, Lesson, Prediction, Slip, StepName
from kvcore.explain.numbers import any_cache
from kvcore.explain.reference import WEIGHTS, published_scores
from kvcore.memory.shares import weight_shares
from kvcore.memory.stages import loaded_architecture
from kvcore.planning import Plan, plan
from kvcore.texts import LESSONS, QUESTIONS, Question

ASKED: Final = 3
"""Questions of a step."""
QUESTIONED: Final = tuple(step for step in STEPS if step is not StepName.OWN)
"""Steps with questions: all but the one about the class's own deployment, which is a question itself."""
SCALES: Final = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "GB": GB}
STEP_OF_UNITS: Final = 1024
THOUSAND: Final = 1000
SMALL: Final = GIB
"""Sizes below it are shown in MiB or KiB."""
IN_GB: Final = ("example_file", "example_bandwidth")
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
NOTHING: Final = LETTERS[0]
OPEN, AT_ONCE, LATER, SHOWN = range(4)
"""Not answered; right at the first guess; right after hints; given up."""


Drawn = TypeVar("Drawn")
TRIES: Final = 8
"""Variants of a scenario that are planned before it stays as it is."""
EIGHTHS: Final = (4, 5, 6, 7, 8)
"""Eighths of the context length that a variant may have."""
SHARES: Final = (0.86, 0.88, 0.9, 0.92, 0.94)
SEATS: Final = (32, 48, 64, 96, 128, 192)
LEAST_TOKENS: Final = 256
CARD_GIB: Final = 80
"""A card to compute with where the scenario names none."""
COUNTS: Final[Mapping[str, Sequence[float]]] = {
    "example_bits": (4, 8, 16),
    "example_seats": (32, 64, 128, 256),
    "example_batch": (2048, 4096, 8192),
    "example_tokens": (700, 1000, 1300, 1900, 2500),
    "longer_tokens": (5000, 7500, 9900, 12300, 15700),
    "example_layers": (28, 34, 46, 62),
    "example_dim": (64, 128, 192),
    "example_ranks": (2, 4),
    "example_stages": (3, 5),
    "example_replicas": (3, 4, 6),
    "example_small_batch": (96, 128, 192),
    "example_pool": (14000, 15000, 17000, 20000),
    "example_requests": (7, 9, 11, 13),
    "shared_tokens": (1210, 2030, 3050),
    "answer_tokens": (200, 350, 600),
    "cache_bits": (8, 4),
    "weight_bits": (3, 4, 8),
    "group_size": (32, 64, 128),
    "test_questions": (1000, 1319, 2500),
    "score_difference": (1.2, 1.67, 2.4),
    "standard_error": (0.8, 1.15, 1.5),
    "proposed": (2, 3, 4, 5),
    "example_chance": (0.5, 0.6, 0.8, 0.9),
    "accepted": (5300, 7100, 9800),
    "drafts_made": (4000, 5000),
    "slower": (1.2, 1.3, 1.5),
    "example_yield": (1.9, 2.4, 3.1),
    "example_concurrency": (3.4, 8.7, 21.5),
    "example_logged": (150000, 240000, 410000),
    "example_share": (0.75, 0.8, 0.85, 0.95),
}
"""Numbers to draw from. None of them makes a typical slip come out right."""
SIZES: Final[Mapping[str, Sequence[float]]] = {
    "example_size": (1.5 * GIB, 2 * GIB, 3 * GIB),
    "example_pool_size": (18 * GIB, 25 * GIB, 37 * GIB),
    "example_block": (1.25 * MIB, 2 * MIB, 3.5 * MIB),
    "example_fixed": (150 * MIB, 300 * MIB, 450 * MIB),
    "example_slope": (24 * KIB, 40 * KIB, 96 * KIB, 160 * KIB),
    "example_loaded": (15.4 * GIB, 20.2 * GIB, 31.1 * GIB),
}
GIGABYTES: Final = (16, 24, 65, 140)
GIGABYTES_A_SECOND: Final = (900, 1600, 3350)
HEADS: Final = ((32, 8), (64, 8), (40, 4), (28, 4))
"""Query heads and KV heads."""


class Asked(Struct, frozen=True, kw_only=True):
    """One question of a step about one plan."""

    name: str
    prediction: Prediction
    solution: Equation
    """The formula in letters, in numbers, and the answer."""
    worked: str
    """The same in one line of plain text, for paper."""

    def is_right(self, guess: float) -> bool:
        """Whether a guess is near enough: within two per cent, as everywhere on the page."""
        answer = self.prediction.answer
        return answer is not None and math.isclose(guess, answer, rel_tol=CLOSE, abs_tol=1e-9)


def questions(base: Plan, name: StepName, seed: int, t: Words) -> tuple[Asked, ...]:
    """The questions of a step about `base`, with the numbers that `seed` draws; those that have their figures."""
    known = facts(base, seed)
    if name is StepName.WEIGHTS:
        known["parameter_count"] = parameter_count(base)
    values = {fact: one.value for fact, one in known.items()}
    lesson = Lesson(plan=base, t=t)
    found: list[Asked] = []
    for key, one in QUESTIONS.items():
        if one.step == name.value and len(found) < ASKED and _has_answer(one, ANSWERS[key], values):
            found.append(_asked(lesson, key, known, values))
    return tuple(found)


def _has_answer(one: Question, answer: Answer, values: Mapping[str, float]) -> bool:
    """Whether the plan has all that a question names, and the answer is above 0."""
    if not {*answer.term.names, *_named(one.text)} <= values.keys():
        return False
    try:
        return bool(answer.rule(Facts(values)) > 0)
    except ZeroDivisionError:
        return False


def _named(text: str) -> list[str]:
    """The facts that a text has places for."""
    return [name for _, name, _, _ in Formatter().parse(text) if name]


def _asked(lesson: Lesson, key: str, known: Mapping[str, Quantity], values: Mapping[str, float]) -> Asked:
    one, answer = QUESTIONS[key], ANSWERS[key]
    scale = SCALES.get(one.unit, 1)
    solved = explained(
        "asked",
        answer.computed,
        *(known[name] for name in answer.term.names),
        unit=Unit.BYTES if one.unit in SCALES else Unit.NONE,
        scope=Scope.TOTAL,
        grade=Grade.DERIVED,
    )
    prediction = Prediction(
        question=lesson.t(one.text, **{name: _text(known[name]) for name in _named(one.text)}),
        unit=lesson.t(LESSONS[one.unit].text) if one.unit in LESSONS else one.unit,
        answer=solved.value / scale,
    )
    slips = [
        *(lesson.slip(rule(Facts(values)) / scale, reason) for reason, rule in answer.slips),
        *_everywhere(lesson, one, answer, solved.value / scale),
    ]
    numbers = answer.term.text({part.name: _text(part) for part in solved.inputs})
    return Asked(
        name=key,
        prediction=replace(prediction, slips=_apart(slips, solved.value / scale)),
        solution=replace(equation(solved, lesson.t), substituted=_substituted(solved, answer)),
        worked=f"{numbers} = {answer_text(prediction.answer or 0)} {prediction.unit}",
    )


def _substituted(solved: Quantity, by: Answer) -> str:
    """The formula with its numbers in LaTeX, to the digit as the question and the sheets state them."""
    return by.term.latex({part.name: latex(_text(part)) for part in solved.inputs})


def _everywhere(lesson: Lesson, one: Question, by: Answer, answer: float) -> Iterator[Slip]:
    """Slips of units and of cards, which every question may have."""
    if one.unit == "GiB":
        yield lesson.slip(answer * GIB / GB, "gigabytes")
    if one.unit == "KiB":
        yield lesson.slip(answer * KIB / THOUSAND, "slip-kilobytes")
    if one.unit in SCALES:
        yield from (
            lesson.slip(answer * factor, "slip-unit")
            for factor in (STEP_OF_UNITS, 1 / STEP_OF_UNITS, STEP_OF_UNITS**2, STEP_OF_UNITS**3)
        )
    ranks = lesson.plan.scenario.parallel.tensor_parallel_size
    if "tensor_parallel_size" in by.term.names and ranks > 1:
        reason = {"ranks": str(ranks)}
        yield from (lesson.slip(wrong, "slip-cards", **reason) for wrong in (answer * ranks, answer / ranks))


def _apart(slips: list[Slip], answer: float) -> tuple[Slip, ...]:
    """The slips that differ from the answer; of equal values the first."""
    kept: list[Slip] = []
    for slip in slips:
        near = (answer, *(one.value for one in kept))
        if slip.value > 0 and not any(math.isclose(slip.value, other, rel_tol=CLOSE) for other in near):
            kept.append(slip)
    return tuple(kept)


def _text(fact: Quantity) -> str:
    """A fact as a question shows it: exact enough to compute with."""
    if fact.name in IN_GB:
        return f"{plain(fact.value / GB)} GB"
    if fact.unit is Unit.BYTES:
        return exact_gib_text(fact.value) if abs(fact.value) >= SMALL else format_bytes(fact.value)
    if fact.name == "parameter_count":
        return in_billions(fact.value)
    return count(int(fact.value)) if float(fact.value).is_integer() else plain(fact.value)


# What a student has answered is a text that a link carries and nothing else keeps: a letter a step, in the order of the
# steps, for three marks of two bits each, in the order of the questions.


def marks(score: str, step: StepName) -> tuple[int, ...]:
    """The marks of a step's questions. A text that is no score has none.

    Example:
        >>> marks(with_mark("", StepName.BUDGET, 2, LATER), StepName.BUDGET)
        (0, 0, 2)
    """
    at = STEPS.index(step)
    bits = LETTERS.index(score[at]) if at < len(score) and score[at] in LETTERS else 0
    return tuple(bits >> 2 * question & 3 for question in range(ASKED))


def with_mark(score: str, step: StepName, question: int, mark: int) -> str:
    """The score with one mark set; what stands there already stays, so that no second visit makes it better.

    Example:
        >>> with_mark("", StepName.PARTS, 0, AT_ONCE), with_mark("B", StepName.PARTS, 0, SHOWN)
        ('B', 'B')
    """
    now = marks(score, step)
    if now[question] != OPEN:
        return score
    at = STEPS.index(step)
    padded = score.ljust(at + 1, NOTHING)
    bits = LETTERS.index(padded[at]) | mark << 2 * question
    return padded[:at] + LETTERS[bits] + padded[at + 1 :]


def right(score: str) -> tuple[int, int]:
    """Questions that were answered right, and how many of them at once.

    Example:
        >>> right(with_mark(with_mark("", StepName.PARTS, 0, AT_ONCE), StepName.LOG, 1, LATER))
        (2, 1)
    """
    found = [mark for step in STEPS for mark in marks(score, step)]
    return found.count(AT_ONCE) + found.count(LATER), found.count(AT_ONCE)


def drawn(seed: int, name: str, options: Sequence[Drawn]) -> Drawn:
    """One of `options`, the same for the same seed and name.

    Example:
        >>> drawn(7, "ranks", (2, 4, 8)) == drawn(7, "ranks", (2, 4, 8))
        True
    """
    digest = sha256(f"{seed}/{name}".encode()).digest()
    return options[int.from_bytes(digest[:8]) % len(options)]


def variant(base: Plan, seed: int) -> Plan:
    """`base` with its length, utilization and seats drawn anew, as far as that plans and fits what `base` fits.

    Seed 0 is the scenario itself, and so is a seed for which no draw plans.
    """
    if not seed:
        return base
    for number in range(TRIES):
        name = f"variant {number}"
        length = base.resolved.max_model_len * drawn(seed, f"{name} length", EIGHTHS) // 8
        changes = (
            ("max_model_len", max(LEAST_TOKENS, length // 64 * 64)),
            ("gpu_memory_utilization", drawn(seed, f"{name} share", SHARES)),
            ("max_num_seqs", drawn(seed, f"{name} seats", SEATS)),
        )
        try:
            scenario = base.scenario
            for field, value in changes:
                scenario = edit.with_field(scenario, field, value)
            found = plan(scenario)
        except KvPlannerError:
            continue
        if found.verdict is base.verdict and bool(found.cache) == bool(base.cache):
            return found
    return base


def facts(base: Plan, seed: int) -> dict[str, Quantity]:
    """Every fact that questions about `base` may name and the plan has."""
    return {one.name: one for one in (*_drawn_facts(seed), *_facts_of(base))}


def parameter_count(base: Plan) -> Quantity:
    """Parameters of the plan's stage; apart from the other facts, because every tensor is counted for it."""
    loaded = loaded_architecture(base.architecture, base.scenario, base.resolved)
    shares = weight_shares(loaded, base.quantization, base.scenario.parallel, base.resolved, base.stage)
    return given("parameter_count", shares.count)


def _drawn_facts(seed: int) -> Iterator[Quantity]:
    for name, options in COUNTS.items():
        yield given(name, drawn(seed, name, options))
    for name, options in SIZES.items():
        yield given(name, drawn(seed, name, options), Unit.BYTES)
    query_heads, kv_heads = drawn(seed, "heads", HEADS)
    yield given("example_query_heads", query_heads)
    yield given("example_heads", kv_heads)
    yield given("example_file", drawn(seed, "file", GIGABYTES) * GB, Unit.BYTES)
    yield given("example_bandwidth", drawn(seed, "bandwidth", GIGABYTES_A_SECOND) * GB, Unit.BYTES)
    yield given("bits_of_a_byte", 8)
    yield given("latent_rank", 512)
    yield given("rope_dim", 64)
    score = drawn(seed, "score", [row for row in published_scores() if row.kept == WEIGHTS])
    yield given("score_before", score.before, grade=Grade.MEASURED)
    yield given("score_after", score.after, grade=Grade.MEASURED)


def _facts_of(base: Plan) -> Iterator[Quantity]:
    resolved, parallel, architecture = base.resolved, base.scenario.parallel, base.architecture
    yield given("gpu_memory_utilization", resolved.gpu_memory_utilization)
    yield given("tensor_parallel_size", parallel.tensor_parallel_size)
    yield given("hidden_size", architecture.hidden_size)
    yield given("vocab_size", architecture.vocab_size)
    yield base.loaded_weights
    if base.memory is None:
        yield given("total", CARD_GIB * GIB, Unit.BYTES, Grade.ASSUMED)
    else:
        yield from (base.memory.total, base.memory.budget, base.memory.activations, base.memory.framework)
        if (base.available_kv_bytes or 0) > 0:
            yield given("available_kv", base.available_kv_bytes or 0, Unit.BYTES)
    cache = any_cache(base)
    size = resolved.block_size
    if cache is not None and cache.groups:
        size = cache.groups[0].block_size
        yield cache.figures.bytes_per_token
    yield given("block_size", size)
    held = base.cache
    if held is not None and held.num_blocks > 0 and held.groups:
        yield held.figures.blocks
        if any(part.name == "blocks_per_request" for part in held.figures.concurrency.inputs):
            yield held.figures.blocks_per_request
