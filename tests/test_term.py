"""A rule run on names is the rule that ran on numbers: the tree that it builds has the same value."""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import signature
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.base.quantity import Grade, Inline, Quantity, Unit, explained
from kvcore.base.quantity import given as a_given
from kvcore.base.term import (
    Sign,
    Term,
    added,
    as_term,
    least,
    left_of,
    most,
    rounded_up,
    same,
    sum_of_products,
)
from kvcore.base.units import ceil_div, round_up
from kvcore.cache import kv_figures, kv_formats, spec
from kvcore.course import memory_steps, precision_steps, request_steps
from kvcore.course.answers import ANSWERS, Answer, Facts
from kvcore.explain import numbers
from kvcore.memory import budget, graphs
from tests.formulas import value_of

BY_NAME: Final[list[Callable[..., Any]]] = [
    spec.growing_blocks, spec.shared_growing_blocks, spec.window_blocks, spec.chunk_blocks, spec.encoder_blocks,
    spec.encoder_batch_blocks, spec.one_block, spec.state_blocks, spec.aligned_state_blocks, spec.every_state_blocks,
    kv_figures.stage_blocks, kv_figures.blocks_bytes, kv_figures.requests_by_tokens, kv_figures.requests_by_blocks,
    kv_figures.tokens_by_requests, kv_figures.tokens_of_blocks, kv_figures.tokens_of_groups,
    kv_formats.keys_and_values, kv_formats.keys_and_other_values, kv_formats.aligned_bytes,
    budget.rounded_budget_bytes, budget.whole_budget_bytes, graphs.graph_bytes,
    memory_steps.parameter_bytes, precision_steps.average_bits, precision_steps.least_weight_bytes,
    precision_steps.speculative_step_tokens, request_steps.running_requests, request_steps.empty_slots,
    request_steps.kv_heads_per_rank, ceil_div, round_up, same, lambda a, b, c: least(a, b, c) - most(a - b, c),
]  # fmt: skip
"""Rules whose arguments are single numbers."""
POSITIVE: Final = st.integers(1, 2**36)
SIZES: Final = st.lists(POSITIVE, min_size=1, max_size=5).map(tuple)
PRODUCTS: Final = st.lists(
    st.lists(st.integers(1, 10_000), min_size=1, max_size=3).map(tuple), max_size=4
).map(tuple)


def check(rule: Callable[..., Any], *values: Any) -> Term:
    """Runs `rule` on numbers and on names; sizes are whole bytes, which no text shows."""
    named: dict[str, Any] = {}

    def names(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(names, value))
        name = f"n{len(named)}"
        named[name] = value
        return Term.named(name)

    term = as_term(rule(*map(names, values)))
    value = rule(*values)
    slack = 1.0 if term.uses(Sign.WHOLE) else 1e-9
    assert math.isclose(value_of(term, named), value, rel_tol=1e-12, abs_tol=slack), term.text()
    return term


@pytest.mark.parametrize("rule", BY_NAME, ids=lambda rule: rule.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_a_rule_of_names_has_the_value_of_the_rule_of_numbers(
    rule: Callable[..., Any], data: st.DataObject
) -> None:
    check(rule, *(data.draw(POSITIVE) for _ in signature(rule).parameters))


@given(parts=SIZES, products=PRODUCTS, one=POSITIVE)
def test_so_have_rules_of_several_parts(
    parts: tuple[int, ...], products: tuple[tuple[int, ...], ...], one: int
) -> None:
    check(added, parts)
    check(left_of, one, parts)
    check(sum_of_products, products)
    check(kv_figures.fewest_blocks, parts)
    check(kv_figures.fewest_blocks_or_none, tuple(-part for part in parts))
    check(kv_figures.counted_blocks, products, one)
    check(kv_figures.fixed_bytes, products, one)
    check(kv_figures.layered_token_bytes, parts, (one,))
    check(kv_figures.further_token_bytes, one, tuple((count, (one, 16)) for count in parts))
    check(kv_formats.latent, parts, 2)
    check(kv_formats.latent_in_bits, parts, 0.5)
    check(budget.available_bytes, one, parts, 2)
    check(numbers.bytes_of_all_ranks, parts, one)
    check(memory_steps.rank_bytes, one, 2, parts)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@settings(max_examples=10)
@given(data=st.data())
def test_so_have_the_answers_of_the_questions(answer: Answer, data: st.DataObject) -> None:
    for rule in (answer.rule, *(slip.rule for slip in answer.slips)):
        term = as_term(rule(Facts()))
        values = {name: data.draw(st.integers(1, 10_000)) for name in term.names}
        assert math.isclose(value_of(term, values), rule(Facts(values)), rel_tol=1e-12, abs_tol=1e-9)


def text(rule: Callable[..., Any], *names: str) -> str:
    return as_term(rule(*map(Term.named, names))).text()


class TestText:
    """The formulas as people know them."""

    def test_blocks(self) -> None:
        window = ("max_model_len", "sliding_window", "in_flight_tokens", "block_size")
        assert text(spec.window_blocks, *window) == (
            "⌈min(sliding_window − 1 + in_flight_tokens, max_model_len) / block_size⌉ + 1"
        )
        assert text(spec.shared_growing_blocks, "n", "r", "b") == "⌈⌈n / r⌉ / b⌉"
        assert text(round_up, "size", "page") == "⌈size / page⌉ × page"

    def test_brackets_are_where_they_must_be(self) -> None:
        assert text(lambda a, b, c: (a + b) * c, "a", "b", "c") == "(a + b) × c"
        assert text(lambda a, b, c: a - (b - c), "a", "b", "c") == "a − (b − c)"
        assert text(lambda a, b, c: a / (b * c), "a", "b", "c") == "a / (b × c)"
        assert text(lambda a, b, c: a + (b + c), "a", "b", "c") == "a + b + c"
        assert text(lambda a, b, c: a * b / c, "a", "b", "c") == "a × b / c"
        assert text(lambda a, b: -(a + b), "a", "b") == "−(a + b)"

    def test_a_number_before_an_inner_product_stands_first(self) -> None:
        assert text(lambda layers, heads: layers * heads * 4, "layers", "heads") == "layers × heads × 4"
        assert text(lambda layers, heads: layers * (2 * heads), "layers", "heads") == "2 × layers × heads"

    def test_ones_and_noughts_of_sums_and_products_are_not_written(self) -> None:
        assert text(lambda a, b: sum((a, b)), "a", "b") == "a + b"
        assert text(lambda a, b: math.prod((a, b)), "a", "b") == "a × b"
        assert text(lambda a, b: a * (1 / b), "a", "b") == "a / b"

    def test_whole_bytes_are_not_written(self) -> None:
        assert text(lambda total, share: rounded_up(total * share), "total", "share") == "total × share"
        assert (
            text(lambda total, share: math.trunc(total * share) + 1, "total", "share") == "total × share + 1"
        )

    def test_a_search_is_written_as_what_it_looks_for(self) -> None:
        longest = Term(Sign.LONGEST, (Term.named("limit"), Term.named("budget")))
        assert longest.text() == "max(ℓ ≤ limit: needed(ℓ) ≤ budget)"
        assert longest.latex({"limit": "L", "budget": "B"}) == r"\max(\ell \le L: \text{needed}(\ell) \le B)"
        assert longest.names == ("limit", "budget")


class TestLatex:
    LETTERS: Final = {"a": "A", "b": "B", "c": "C"}

    def test_a_quotient_of_quotients_is_one_fraction(self) -> None:
        a, b, c = map(Term.named, "abc")
        assert (a / b / c).latex(self.LETTERS) == r"\frac{A}{B \times C}"
        assert (a / b * c).latex(self.LETTERS) == r"\frac{A}{B} \times C"

    def test_functions_and_brackets(self) -> None:
        a, b, c = map(Term.named, "abc")
        assert least(a, b).latex(self.LETTERS) == r"\min(A, B)"
        assert (a // b).latex(self.LETTERS) == r"\left\lfloor \frac{A}{B} \right\rfloor"
        assert (a - b).latex({"a": "1", "b": "-2"}) == "1 - (-2)"
        assert ((a + b) * c).latex(self.LETTERS) == r"(A + B) \times C"


class TestQuantity:
    def test_names_that_several_inputs_have_are_numbered(self) -> None:
        parts = tuple(a_given("page", size, Unit.BYTES) for size in (8, 16))
        found = explained("all", added, parts)
        assert (found.formula, found.substituted) == ("page_1 + page_2", "8 bytes + 16 bytes")

    def test_one_input_twice_has_one_name(self) -> None:
        page = a_given("page", 8)
        assert explained("all", lambda a, b: a * b, page, page).formula == "page × page"

    def test_an_input_may_be_written_out(self) -> None:
        token = explained("token", kv_formats.keys_and_values, *(a_given(name, 2) for name in "hde"))
        found = explained("slope", math.prod, (a_given("layers", 3), Inline(token)))
        assert (found.value, found.formula) == (48, "2 × layers × h × d × e")

    def test_it_is_known_as_well_as_its_inputs_unless_said_otherwise(self) -> None:
        parts = a_given("a", 1), a_given("b", 2, grade=Grade.FITTED)
        assert explained("sum", added, parts).grade is Grade.FITTED
        assert explained("sum", added, parts, grade=Grade.EXACT).grade is Grade.EXACT

    def test_equal_quantities_have_the_same_rule(self) -> None:
        def made() -> Quantity:
            return explained("sum", added, (a_given("a", 1), a_given("b", 2)))

        assert made() == made()
        assert hash(made()) == hash(made())


def test_a_rule_cannot_branch_on_its_arguments() -> None:
    term = Term.named("a")
    for rule in (lambda: bool(term), lambda: term < 1, lambda: float(term)):  # type: ignore[operator,arg-type]
        with pytest.raises(TypeError):
            rule()
