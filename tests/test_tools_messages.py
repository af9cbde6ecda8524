"""Texts that the collecting tool finds."""

import ast

from tools.messages import _texts


def texts(source: str) -> list[tuple[str, str]]:
    return list(_texts(ast.parse(source)))


def test_calls_of_t_and_msg_are_texts() -> None:
    assert texts('t("Plan", a=b); msg("Weights"); other("no")') == [("", "Plan"), ("", "Weights")]


def test_reasons_are_texts_of_their_own_context() -> None:
    assert texts('E("code", reason=f"between {low:g} and {self.high}")') == [
        ("reason", "between {low} and {high}")
    ]


def test_both_branches_of_a_conditional_reason_count() -> None:
    assert texts('E("code", reason="a" if x else "b")') == [("reason", "a"), ("reason", "b")]
