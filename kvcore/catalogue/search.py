"""Search of models and accelerators by a few words, as people type them.

Words come in any order; case, `-`, `_`, `/`, `.` and blanks do not count. Typing errors are forgiven in letters, never
in digits, since 70b and 72b are two models. Every word has to be found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, TypeVar

from msgspec import Struct

from kvcore.base.errors import checked_text
from kvcore.catalogue.accelerators import Accelerator, load_accelerators
from kvcore.catalogue.models import model_ids
from kvcore.catalogue.names import candidates
from kvcore.catalogue.siblings import known_ids

T = TypeVar("T")

LONGEST_QUERY: Final = 100
MAX_WORDS: Final = 8
LONGEST_RUN: Final = 4
"""Most parts of a name that people write as one word: `deepseekv3`, `llama33`."""
_PART: Final = re.compile(r"\d+[a-z]?(?![a-z])|[a-z]+\d*(?:[a-z](?![a-z]))?|[a-z]+|\d+|[^\W\d_a-z]+")
_SEPARATORS: Final = re.compile(r"[-_/.+]+")

WHOLE, FIRST, INSIDE, MISSPELT = 1.0, 0.9, 0.55, 0.45
"""Score of a word that is a whole part of the name, the beginning of one, within one, or nearly one."""
OWNER_SHARE: Final = 0.7
"""Factor for a word that is found in the owner's name only."""
LATER_SHARE: Final = 0.97
"""Factor for a word that the model's own name does not begin with: `mistral` means Mistral before E5-Mistral."""
COST_OF_A_REST: Final = 0.004
"""Deducted for each letter of the id that no word asks for, so that the plainest of like names comes first."""
COST_OF_A_SIBLING: Final = 0.1
"""Deducted for a model of which only the name is known: those with a config of their own come first."""
COST_OF_A_BASE: Final = 0.08
"""Deducted for a model of which the catalogue has the one that follows instructions, too: that one is served."""
_SERVED: Final = ("-instruct", "-chat", "-it", "-chat-hf")
"""Ends of the names of models that follow instructions, after the name of their base."""
LEAST: Final = 0.01
"""Lowest score of a name with every word."""

SPELLINGS: Final[Mapping[str, str]] = {
    "昇腾": "ascend", "华为": "huawei", "英伟达": "nvidia", "英特尔": "intel", "海光": "hygon", "寒武纪": "cambricon",
    "通义千问": "qwen", "千问": "qwen", "智谱": "glm", "深度求索": "deepseek", "文心": "ernie", "混元": "hunyuan",
    "盘古": "pangu", "书生": "intern", "百川": "baichuan", "零一万物": "yi", "月之暗面": "kimi",
}  # fmt: skip
"""Chinese names of what the catalogue spells in Latin letters."""


def search_models(text: str, limit: int = 8) -> tuple[str, ...]:
    """The bundled models that `text` names, best first: by words, or by a path or a name that people have for one.

    Example:
        >>> search_models("/models/models--Qwen--Qwen3-32B/snapshots/9216db57")
        ('Qwen/Qwen3-32B',)
        >>> search_models("70b llama 3.3")[0], search_models("depseek v3")[0]
        ('meta-llama/Llama-3.3-70B-Instruct', 'deepseek-ai/DeepSeek-V3')
        >>> search_models("llama 3.1")[0], search_models("mistral")[0]
        ('meta-llama/Llama-3.1-8B-Instruct', 'mistralai/Mistral-7B-v0.1')
        >>> search_models("no such thing")
        ()
    """
    named = candidates(checked_text("search", text))
    return tuple(dict.fromkeys((*named, *_best(text, _models(), limit))))[:limit]


def search_accelerators(text: str, limit: int = 8) -> tuple[Accelerator, ...]:
    """The bundled accelerators that `text` names, best first.

    Example:
        >>> [card.id for card in search_accelerators("80gb a100")][:2]
        ['A100-80GB', 'A100-PCIe-80GB']
    """
    return _best(checked_text("search", text), _accelerators(), limit)


def words_of(text: str) -> tuple[str, ...]:
    """The typed text as words without separators.

    Example:
        >>> words_of("Llama-3.3  70B")
        ('llama33', '70b')
    """
    lowered = text[:LONGEST_QUERY].lower()
    for spelling, latin in SPELLINGS.items():
        lowered = lowered.replace(spelling, f" {latin} ")
    squeezed = (_SEPARATORS.sub("", word) for word in lowered.split())
    return tuple(word for word in squeezed if word)[:MAX_WORDS]


class _Name(Struct, frozen=True):
    """One spelling of an entry, in lower case and without separators, with the places where its parts begin."""

    text: str
    starts: tuple[int, ...]
    owner_ends: int
    cost: float = 0.0

    @classmethod
    def of(cls, spelt: str, cost: float = 0.0) -> _Name:
        owner, slash, _ = spelt.lower().rpartition("/")
        text, starts, owner_ends = "", [], 0
        for piece in re.split(r"[^\w]+|_", spelt.lower()):
            for part in _PART.findall(piece):
                starts.append(len(text))
                text += part
        if slash:
            owner_ends = len("".join(_PART.findall(re.sub(r"[^\w]+|_", " ", owner))))
        return cls(text, tuple(starts), owner_ends, cost)

    def worth(self, word: str, *, forgives: bool) -> float:
        """The score of `word` in this name; 0 if it is not there."""
        best, start = 0.0, self.text.find(word)
        while start >= 0:
            best = max(best, self._worth_at(word, start))
            start = self.text.find(word, start + 1)
        return best or (self._misspelt(word) if forgives else 0.0)

    def _worth_at(self, word: str, start: int) -> float:
        end = start + len(word)
        if word[0].isdigit() and start and self.text[start - 1].isdigit() and start not in self.starts:
            return 0.0
        worth = INSIDE
        if start in self.starts:
            worth = WHOLE if end == len(self.text) or end in self.starts else FIRST
        share = OWNER_SHARE if end <= self.owner_ends else 1.0 if start <= self.owner_ends else LATER_SHARE
        return worth * share

    def _misspelt(self, word: str) -> float:
        digits = re.sub(r"\D", "", word)
        letters = len(word) - len(digits)
        allowed = 0 if letters < 4 else 1 if letters < 8 else 2
        if not allowed:
            return 0.0
        from rapidfuzz.distance import OSA  # here and not above: a plan has no use for its 48 modules

        bounds, best = (*self.starts, len(self.text)), 0.0
        for index, start in enumerate(self.starts):
            for end in bounds[index + 1 : index + 1 + LONGEST_RUN]:
                run = self.text[start:end]
                if abs(end - start - len(word)) > allowed or re.sub(r"\D", "", run) != digits:
                    continue
                if OSA.distance(word, run) <= allowed:
                    best = max(best, MISSPELT * (OWNER_SHARE if end <= self.owner_ends else 1.0))
        return best


def _best(text: str, names: Sequence[tuple[T, Sequence[_Name]]], limit: int) -> tuple[T, ...]:
    """The entries with every word; typing errors are forgiven only if nothing matches exactly."""
    words = words_of(text)
    if not words:
        return ()
    for forgives in (False, True):
        scores = [
            max(_score(words, name, _letters(spellings[0]), forgives=forgives) for name in spellings)
            for _, spellings in names
        ]
        if any(scores):
            break
    order = sorted(range(len(names)), key=lambda index: -scores[index])
    return tuple(names[index][0] for index in order[:limit] if scores[index])


def _letters(name: _Name) -> int:
    """Letters of a name; the ending of a model that is served makes it no worse a hit."""
    endings = (_SEPARATORS.sub("", ending) for ending in _SERVED)
    return len(name.text) - max((len(one) for one in endings if name.text.endswith(one)), default=0)


def _score(words: Sequence[str], name: _Name, letters: int, *, forgives: bool) -> float:
    worths = []
    for word in words:
        worth = name.worth(word, forgives=forgives)
        if not worth:
            return 0.0
        worths.append(worth)
    rest = max(letters - sum(map(len, words)), 0)
    return max(sum(worths) / len(worths) - COST_OF_A_REST * rest - name.cost, LEAST)


@cache
def _models() -> tuple[tuple[str, tuple[_Name, ...]], ...]:
    own, known = frozenset(model_ids()), frozenset(map(str.lower, known_ids()))

    def cost(model: str) -> float:
        base = model.lower().removesuffix("-base").removesuffix("-hf").removesuffix("-pt")
        is_base = any(name + end in known for name in (base, base.replace("/meta-", "/")) for end in _SERVED)
        return (0.0 if model in own else COST_OF_A_SIBLING) + (COST_OF_A_BASE if is_base else 0.0)

    costs = ((model, cost(model)) for model in known_ids())
    return tuple((model, (_Name.of(model, cost),)) for model, cost in costs)


@cache
def _accelerators() -> tuple[tuple[Accelerator, tuple[_Name, ...]], ...]:
    return tuple((card, tuple(map(_Name.of, card.names))) for card in load_accelerators())
