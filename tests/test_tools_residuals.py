"""Leaving a publication out of a fit: the arithmetic by hand, and the constants that starts rest on."""

import json

import pytest

from tools import accuracy
from tools.residuals import (
    STARTS,
    LeftOut,
    Residual,
    Use,
    by_constant,
    leave_out,
    predict,
    read_starts,
    residuals_of,
    uses_of,
)

FIT_STARTS = list(read_starts(STARTS))


def residual(constant: str, group: str, measured_gib: float) -> Residual:
    """A start predicted to take 1 GiB, with 2 GiB for each unit of the constant."""
    return Residual(
        part="framework",
        constant=constant,
        group=group,
        label="l",
        predicted_gib=1.0,
        measured_gib=measured_gib,
        coefficient=2.0,
    )


class TestLeaveOut:
    """Steps of `rate` by publication: a 0.1 and 0.3, so 0.2; b −0.1; c 0.5. `width` is known from a alone."""

    RESIDUALS = by_constant(
        [
            residual("rate", "a", 1.2),
            residual("rate", "a", 1.6),
            residual("rate", "b", 0.8),
            residual("rate", "c", 2.0),
            residual("width", "a", 1.4),
        ]
    )

    def changed(self, group: str, *uses: tuple[str, float]) -> LeftOut | None:
        found = [Use(constant=name, coefficient=coefficient) for name, coefficient in uses]
        return leave_out(found, group, self.RESIDUALS)

    def test_the_median_of_the_others_times_the_coefficient_of_the_start(self) -> None:
        # Of b and c: (−0.1 + 0.5) / 2 = 0.2; of a and c: 0.35; of a and b: 0.05. Three GiB a unit.
        for group, change in (("a", 0.6), ("b", 1.05), ("c", 0.15)):
            found = self.changed(group, ("rate", 3.0))
            assert found is not None
            assert found.change_gib == pytest.approx(change)

    def test_no_constant_is_refitted_below_nothing(self) -> None:
        # b says −0.4 of a constant of 0.1 units; three GiB a unit of it are all there is to lose.
        others = by_constant([residual("small", "a", 1.2), residual("small", "b", 0.2)])
        for value, change in ((0.1, -0.3), (0.4, -1.2), (1.0, -1.2)):
            found = leave_out([Use(constant="small", coefficient=3.0, value=value)], "a", others)
            assert found is not None
            assert found.change_gib == pytest.approx(change)

    def test_a_publication_that_took_no_part_changes_nothing(self) -> None:
        assert self.changed("d", ("rate", 3.0)) is None

    def test_a_constant_of_one_source_cannot_be_left_out(self) -> None:
        assert self.changed("a", ("width", 3.0)) == LeftOut(change_gib=None)
        assert self.changed("a", ("rate", 3.0), ("width", 1.0)) == LeftOut(change_gib=None)

    def test_nor_can_one_that_no_start_of_the_record_informs(self) -> None:
        assert self.changed("d", ("height", 3.0)) == LeftOut(change_gib=None)

    def test_changes_of_several_parts_add_up_with_their_signs(self) -> None:
        # The KV memory loses what the parts inside its budget gain.
        found = self.changed("b", ("rate", -3.0), ("width", -1.0))
        assert found is not None
        assert found.change_gib == pytest.approx(-1.05)

    def test_a_part_without_fitted_constants_is_as_it_is(self) -> None:
        assert self.changed("a") is None


def start_of(group: str, ending: str = "") -> dict[str, object]:
    return next(start for start in FIT_STARTS if start["group"] == group and start["source"].endswith(ending))


class TestUses:
    def test_kv_memory_rests_on_the_parts_of_its_budget(self) -> None:
        uses = uses_of(
            predict(start_of("llm-d-incubation/llm-d-planner", "qwen3-8b--h100-80gb--tp1pp1dp1--8192.log"))
        )
        assert [use.constant for use in uses["available_kv"]] == [
            "activations bytes_per_logit v1 since 0.17.0",
            "framework gib: one H100, 0.18 and 0.19: 0.24 to 0.26 printed by 25 models, 0.46 by one",
        ]  # 0.19 estimates graphs, but does not take them off.
        assert [use.coefficient for use in uses["available_kv"]] == [
            -uses["activations"][0].coefficient,
            -1.0,
        ]
        # 1024 requests × 151,936 logits, 1 byte more for each.
        assert uses["activations"][0].coefficient == pytest.approx(1024 * 151_936 / 2**30)
        # 51 sizes piecewise and 51 in full, 36 layers.
        assert uses["cuda_graphs"][0].coefficient * 2**30 % 36 == 0

    def test_the_peak_of_a_small_vocabulary_is_in_the_layers(self) -> None:
        # CodeLlama: 32,016 logits a row, 8,192 tokens of 4,096 values of 2 bytes for each vector.
        uses = uses_of(
            predict(
                start_of("llm-d-incubation/llm-d-planner", "codellama-7b-h--h100-80gb--tp1pp1dp1--8192.log")
            )
        )
        assert uses["activations"] == (
            Use(constant="activations body hidden_vectors", coefficient=8192 * 4096 * 2 / 2**30),
        )


def test_a_residual_is_booked_on_a_constant_that_its_start_rests_on() -> None:
    for start in FIT_STARTS:
        uses = {
            (use.constant, abs(use.coefficient)) for part in uses_of(predict(start)).values() for use in part
        }
        for item in residuals_of(start):
            assert item.part == "estimate" or (item.constant, item.coefficient) in uses


def test_every_start_of_a_fit_is_published_under_the_same_publication() -> None:
    published = accuracy.lines_of("published.jsonl")
    for start in FIT_STARTS:
        figures = {
            name: value for name, value in start["measured"].items() if name != "cuda_graph_estimate_gib"
        }
        twins = [
            other
            for other in published
            if other["group"] == start["group"]
            and other["request"]["model"] == start["request"]["model"]
            and {name: other["measured"].get(name) for name in figures} == figures
            and (other["source"] == start["source"] or not start["source"].startswith("https://"))
        ]
        assert len(twins) == 1, json.dumps(figures)


def test_a_publication_is_the_repository_that_its_address_names() -> None:
    for start in accuracy.lines_of("published.jsonl"):
        if start["source"]:
            assert start["source"].startswith(f"https://github.com/{start['group']}")
