"""Prose as data: terms, parameters, corrections and lessons, each by its name."""

from enum import StrEnum
from typing import Any, Final

from kvcore.base.prose import MESSAGES, Prose, Text, Texts


class Source(StrEnum):
    """The documents that this planner grew from; `SOURCES` names them."""

    ASCEND_TUNING = "ascend-tuning"
    RULE_OF_THUMB = "rule-of-thumb"
    PARAMETERS = "vllm-parameters"
    POST_MORTEM = "post-mortem"


class Trial(StrEnum):
    """Which values of a parameter the reference page tries."""

    LENGTHS = "lengths"
    SHARES = "shares"
    SIZES = "sizes"
    PIPELINES = "pipelines"
    PRECISIONS = "precisions"
    KV_DTYPES = "kv-dtypes"
    DTYPES = "dtypes"
    SEATS = "seats"
    BATCHES = "batches"
    BLOCKS = "blocks"
    SWITCH = "switch"
    SPECULATION = "speculation"
    OFFLOADS = "offloads"
    NPU_TOTALS = "npu-totals"
    NPU_MODELS = "npu-models"


class StoryPage(StrEnum):
    """The page that a story's step opens its start on."""

    PLAN = "plan"
    CHECK = "check"
    WORKLOAD = "workload"
    GOING_LIVE = "going-live"


class Term(Prose, frozen=True, kw_only=True):
    """A term of the glossary and its meaning."""

    name: Text
    meaning: Text


class Document(Prose, frozen=True, kw_only=True):
    """A source document: its subject, title, author and licence where known, and what is taken from it."""

    name: Text
    title: str | None = None
    author: str | None = None
    license: str | None = None
    taken: Text


class Parameter(Prose, frozen=True, kw_only=True):
    """A parameter that the source documents explain. `field` and `trial` are None where no plan depends on it."""

    flag: str
    sources: tuple[Source, ...]
    meaning: Text
    memory: Text
    mistake: Text
    advice: Text
    field: str | None = None
    trial: Trial | None = None


class Correction(Prose, frozen=True, kw_only=True):
    """A claim of a source document, and what is true, with parameters that `explain.reference.facts` gives."""

    name: str
    source: Source
    claim: Text
    truth: Text
    otherwise: Text = Text("")
    """True instead of `truth` on a release that behaves otherwise; `explain.reference.facts` says which those are."""


class Sentence(Prose, frozen=True, kw_only=True):
    """A sentence of the derivation; its parameters are figures of the plan."""

    text: Text


class LessonPlan(Prose, frozen=True, kw_only=True):
    """A lesson of the Learn page: its subject, and its steps by name."""

    title: Text
    about: Text
    steps: tuple[str, ...]


class Path(Prose, frozen=True, kw_only=True):
    """A way through the steps for a given number of minutes."""

    title: Text
    steps: tuple[str, ...]


class Question(Prose, frozen=True, kw_only=True):
    """A question of a step, whose text names facts of a plan (course/questions.py); course/answers.py answers it."""

    step: str
    text: Text
    unit: str


class Letter(Prose, frozen=True, kw_only=True):
    """A quantity's letter in LaTeX, and its meaning."""

    latex: str
    meaning: Text


class Check(Prose, frozen=True, kw_only=True):
    """An item of the checklist before going live; `{params}` are filled in after translation."""

    title: Text
    detail: Text
    open: Text = Text("")
    """Shown instead of `detail` if the plan leaves it open."""
    fails: Text = Text("")
    """Shown instead of `detail` if it fails."""


class StoryStep(Prose, frozen=True, kw_only=True):
    """One step of a source document told as a story: what it says, what is wrong, and the start to look at."""

    story: Source
    title: Text
    text: Text
    wrong: Text
    scenario: str
    """A name of `kvcore.explain.documents`."""
    page: StoryPage = StoryPage.PLAN
    figures: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()


class StoryFigure(Prose, frozen=True, kw_only=True):
    """A figure of a story by its label, and as the document writes it."""

    label: Text
    written: str = ""


GLOSSARY: Final = Texts(__name__, "glossary.toml", Term)
"""Alphabetical in English."""
PARAMETERS: Final = Texts(__name__, "parameters.toml", Parameter, key="flag")
"""In the order in which they decide a deployment; former ones last."""
CORRECTIONS: Final = Texts(__name__, "corrections.toml", Correction, key="name")
"""Wrong claims of the source documents."""
SOURCES: Final = Texts(__name__, "sources.toml", Document)
"""By `Source`."""
LESSONS: Final = Texts(__name__, "lessons.toml", Sentence)
"""The derivation's sentences, in the order of its steps."""
SYLLABUS: Final = Texts(__name__, "syllabus.toml", LessonPlan)
"""The lessons by their letters, in the order of teaching."""
PATHS: Final = Texts(__name__, "paths.toml", Path)
"""By the number of minutes."""
QUESTIONS: Final = Texts(__name__, "questions.toml", Question)
"""The questions of the Learn page, in the order in which a step asks them."""
LETTERS: Final = Texts(__name__, "letters.toml", Letter)
"""By the name of a quantity, or "<what it is an input of>.<name>"."""
STORIES: Final = Texts(__name__, "stories.toml", StoryStep)
"""The source documents step by step, by "document/step"."""
STORY_FIGURES: Final = Texts(__name__, "story_figures.toml", StoryFigure)
"""By "document/figure"."""
CHECKS: Final = Texts(__name__, "checklist.toml", Check)
"""In the order in which they are done."""
LABELS: Final = Texts(__name__, "labels.toml", dict[str, Text])
"""Labels of names, and short texts of the pages, in groups."""
ALL: Final[tuple[Texts[Any], ...]] = (
    MESSAGES, GLOSSARY, PARAMETERS, CORRECTIONS, SOURCES, LESSONS, SYLLABUS, PATHS, QUESTIONS, LETTERS, STORIES,
    STORY_FIGURES, CHECKS, LABELS,
)  # fmt: skip
