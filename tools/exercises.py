"""The exercise pack for courses (docs/exercises.md, docs/exercises.zh.md): statement, link, link of the solution, seed.

python tools/exercises.py          writes both
python tools/exercises.py --check  says whether they are as they would be written
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from kvcore.base.words import Language, Words, words
from kvcore.course import StepName
from kvcore.course.lesson import lesson_with, route_of
from kvcore.course.questions import questions, variant
from kvcore.planning import plan
from kvcore.texts import SYLLABUS
from kvcore.wire import link

ROOT: Final = Path(__file__).resolve().parents[1]
FILES: Final = {
    Language.ENGLISH: ROOT / "docs" / "exercises.md",
    Language.CHINESE: ROOT / "docs" / "exercises.zh.md",
}
SERVER: Final = "http://localhost:8501/learn?"
"""The server of `make run`; a course puts its own in its place."""
QWEN: Final = MappingProxyType(
    {
        "model": "Qwen/Qwen3-32B",
        "accelerator": "H100-80GB",
        "tensor_parallel_size": "2",
        "max_model_len": "8192",
    }
)
GPT_OSS: Final = MappingProxyType(
    {"model": "openai/gpt-oss-120b", "accelerator": "H100-80GB", "tensor_parallel_size": "4",
     "max_model_len": "131072"}
)  # fmt: skip
DEEPSEEK: Final = MappingProxyType(
    {"model": "deepseek-ai/DeepSeek-V3", "accelerator": "H200-141GB", "tensor_parallel_size": "8",
     "max_model_len": "16384"}
)  # fmt: skip
SMALL: Final = MappingProxyType(
    {"model": "Qwen/Qwen3-8B", "accelerator": "RTX-4090-24GB", "max_model_len": "8192"}
)


class Exercise(NamedTuple):
    """One exercise: a question of a step about a scenario, with the numbers of a seed."""

    scenario: Mapping[str, str]
    step: StepName
    question: int
    """The place of the question among those of its step, from 0 on."""
    seed: int


PACK: Final = (
    Exercise(SMALL, StepName.WEIGHTS, 0, 11),
    Exercise(QWEN, StepName.BUDGET, 0, 12),
    Exercise(QWEN, StepName.TOKEN, 0, 13),
    Exercise(QWEN, StepName.TOKEN, 1, 14),
    Exercise(QWEN, StepName.POOL, 0, 15),
    Exercise(SMALL, StepName.REQUESTS, 1, 16),
    Exercise(GPT_OSS, StepName.REQUESTS, 0, 17),
    Exercise(QWEN, StepName.LIMITS, 0, 18),
    Exercise(DEEPSEEK, StepName.CARDS, 0, 19),
    Exercise(QWEN, StepName.CACHE_BITS, 0, 20),
)
"""Ten exercises, in the order of the course."""


def statement(one: Exercise, t: Words) -> str:
    """What is asked, in plain text."""
    base = variant(plan(link.decode(dict(one.scenario)).scenario), one.seed)
    return questions(base, one.step, one.seed, t)[one.question].prediction.question


def address(one: Exercise, language: Language, *, solved: bool = False) -> str:
    """The link of the step with the question, or with its solution."""
    letter = lesson_with(one.step)
    place = {
        "lesson": letter,
        "step": str(route_of(lesson=letter).number_of(one.step)),
        "seed": str(one.seed),
    }
    shown = {"reveal": "1"} if solved else {"answers": "true"}
    return SERVER + link.query_string({**one.scenario, **place, **shown, "lang": language.value})


def pack(language: Language) -> str:
    """The exercises in one language, as Markdown."""
    t = words(language)
    is_english = language is Language.ENGLISH
    title = "Ten exercises for a course" if is_english else "十道课程练习"
    lead = (
        "Each has a statement, a link where it is asked and judged with hints, a link with the solution, and a seed: "
        "another number after `seed=` gives other figures, the same for everyone with that number. Put the address of "
        "your own server in the place of `http://localhost:8501`."
        if is_english
        else "每道题有题面、可以作答并得到提示的链接、带解答的链接和一个种子：换一个 `seed=` 后的数字就换一组数，"
        "同一个数字对所有人都相同。把 `http://localhost:8501` 换成你们自己的服务器地址。"
    )
    names = ("Exercise", "Solution", "seed") if is_english else ("作答", "解答", "种子")
    parts = [f"# {title}", "", f"<!-- Written by tools/exercises.py. -->\n{lead}", ""]
    for number, one in enumerate(PACK, 1):
        parts += [
            f"## {number} · {t(SYLLABUS[lesson_with(one.step)].title)}",
            "",
            statement(one, t),
            "",
            f"- [{names[0]}]({address(one, language)})",
            f"- [{names[1]}]({address(one, language, solved=True)})",
            f"- {names[2]}: {one.seed}",
            "",
        ]
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    """Writes both files, or with --check exits with 1 where one is not as it would be written."""
    stale = [
        path
        for language, path in FILES.items()
        if not path.exists() or path.read_text("utf-8") != pack(language)
    ]
    if "--check" in sys.argv[1:]:
        if stale:
            raise SystemExit(
                f"not as tools/exercises.py writes them: {', '.join(path.name for path in stale)}"
            )
        return
    for language, path in FILES.items():
        path.write_text(pack(language), "utf-8")


if __name__ == "__main__":
    main()
