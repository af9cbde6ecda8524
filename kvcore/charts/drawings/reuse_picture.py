"""The second moving picture: an answer written without a cache and with one, and the work of both, counted."""

from __future__ import annotations

from html import escape
from typing import Final

from kvcore.base.numbers import count, factor_text
from kvcore.base.words import Words
from kvcore.charts.drawings.drawing import Drawing, box, words_box
from kvcore.charts.drawings.layers_picture import NEXT, PROMPT
from kvcore.charts.drawings.scenes import Picture, Scene
from kvcore.planning import Plan

STEPS: Final = 5
"""Tokens of the answer that are drawn."""
ANSWER_SHARE: Final = 4
"""The example of the last scene: an answer of a quarter of the context, after a prompt of the rest."""


def computed_without_cache(prompt: int, answer: int) -> int:
    """Tokens that the layers compute for an answer of `answer` tokens where nothing is kept: all again each time.

    The first step computes the prompt, each further one a token more.

    Example:
        >>> computed_without_cache(5, 3)
        18
    """
    return answer * prompt + answer * (answer - 1) // 2


def computed_with_cache(prompt: int, answer: int) -> int:
    """Tokens that the layers compute where keys and values are kept: the prompt once, then each new token once.

    The last token of an answer is never computed: nothing follows it.

    Example:
        >>> computed_with_cache(5, 3)
        7
    """
    return prompt + answer - 1


def reuse_picture(plan: Plan, t: Words) -> Picture:
    """Two lanes side by side, a row for each token of the answer, one more in each scene."""
    prompt = len(t(PROMPT).split())
    captions = [
        t("To write the next token, every layer needs the keys and values of the tokens before it."),
        t("First step: both compute the {count} tokens of the prompt and write “{token}”.",
          count=count(prompt), token=t(NEXT)),
        t("Second step: without a cache the prompt is computed again, to no new result. With a cache only “{token}” is "
          "computed; the rest is read.", token=t(NEXT)),
        t("Third step: the same again, and the answer grows."),
        t("The longer the answer, the more is repeated on the left. On the right each step computes one token."),
        t("After {steps} tokens: {without} computed on the left, {within} on the right.", steps=str(STEPS),
          without=count(computed_without_cache(prompt, STEPS)), within=count(computed_with_cache(prompt, STEPS))),
    ]  # fmt: skip
    scenes = [
        Scene(caption=caption, drawing=_drawing(prompt, steps, t)) for steps, caption in enumerate(captions)
    ]
    scenes.append(Scene(caption=_at_scale(plan, t), drawing=_drawing(prompt, STEPS, t, is_new=False)))
    return Picture(
        scenes=tuple(scenes),
        remember=t(
            "The cache trades memory for work: what is kept is never computed again, but it takes room."
        ),
    )


def _at_scale(plan: Plan, t: Words) -> str:
    length = plan.resolved.max_model_len
    answer = max(1, length // ANSWER_SHARE)
    prompt = max(1, length - answer)
    without, within = computed_without_cache(prompt, answer), computed_with_cache(prompt, answer)
    return t(
        "With this scenario’s {length} tokens, {prompt} of prompt and {answer} of answer: {without} tokens go through "
        "the layers without a cache, {within} with one, {factor} times fewer.",
        length=count(length),
        prompt=count(prompt),
        answer=count(answer),
        without=count(without),
        within=count(within),
        factor=factor_text(without / within),
    )


def _drawing(prompt: int, steps: int, t: Words, *, is_new: bool = True) -> Drawing:
    lanes = "".join(_lane(prompt, steps, t, keeps=keeps, is_new=is_new) for keeps in (False, True))
    legend = "".join(
        f'<li><span class="kv-swatch {look}"></span>{escape(text)}</li>'
        for look, text in (
            ("kv-worked", t("computed in this step")),
            ("kv-from-cache", t("read from the cache")),
        )
    )
    without, within = [
        computed(prompt, steps) if steps else 0 for computed in (computed_without_cache, computed_with_cache)
    ]
    return Drawing(
        title=t("A row for each token of the answer"),
        html=box("kv-lanes", lanes) + f'<ul class="kv-legend">{legend}</ul>',
        alternative=t(
            "{steps} {steps:step|steps}: {without} tokens computed without a cache, {within} with one",
            steps=str(steps),
            without=count(without),
            within=count(within),
        ),
    )


def _lane(prompt: int, steps: int, t: Words, *, keeps: bool, is_new: bool) -> str:
    rows = "".join(_step(prompt, step, is_last=is_new and step == steps, keeps=keeps, is_shown=step <= steps)
                   for step in range(1, STEPS + 1))  # fmt: skip
    computed = computed_with_cache if keeps else computed_without_cache
    total = computed(prompt, steps) if steps else 0
    name = t("With a cache") if keeps else t("Without a cache")
    said = t("computed so far: {count}", count=count(total))
    return box(
        "kv-lane",
        words_box("kv-meaning", name) + rows + words_box("kv-size", said),
        variables=f"--tokens:{prompt + STEPS - 1}",
    )


def _step(prompt: int, step: int, *, is_last: bool, keeps: bool, is_shown: bool) -> str:
    seen = prompt + step - 1
    cells = []
    for token in range(prompt + STEPS - 1):
        if not is_shown or token >= seen:
            cells.append('<i class="kv-away"></i>')
            continue
        is_computed = not keeps or step == 1 or token == seen - 1
        look = "kv-worked" if is_computed else "kv-from-cache"
        moves = f" kv-new kv-late-{min(token, 8)}" if is_last and is_computed else ""
        cells.append(f'<i class="{look}{moves}"></i>')
    return box("kv-lane-row", "".join(cells))
