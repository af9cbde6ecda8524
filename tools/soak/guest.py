"""A visitor with something of its own: a sentinel in every name, file and pin that it gives, and eyes for all others.

Whatever the server sends to one guest is searched for the sentinels of the rest. The guest also plans its own link
here, in another process, and compares the cards that it was shown: a plan that belongs to somebody else has other
numbers even where it has no name.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

from kvcore import catalogue
from kvcore.advice.vary import tensor_parallel_curves
from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Language, words
from kvcore.charts import curves as charts
from kvcore.charts import summary
from kvcore.planning import plan
from kvcore.wire import link
from tools.server import ROOT
from tools.soak.visitor import MODEL_SOURCES, Visitor

SENTINEL = re.compile(rb"soak-[0-9a-f]{8}")
PAGES = ("", "explore", "compare", "workload", "check", "learn", "reference", "accuracy")
LOGS = tuple(sorted((ROOT / "tests" / "data" / "logs").glob("*.log")))
MODELS = (
    "Qwen/Qwen3-32B", "Qwen/Qwen3-8B", "meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-V3",
    "mistralai/Mistral-7B-Instruct-v0.3", "openai/gpt-oss-120b",
)  # fmt: skip
"""Their configs are uploaded under a guest's own name; each is short enough for a link."""
WORDS = ("llama 3.3 70b", "qwen3 235b", "deepseek v3", "gpt oss", "mistral 7b", "no such model")
CARDS = ("H100-80GB", "H200-141GB", "A100-80GB", "RTX-4090-24GB")
INTERNAL_ERROR = "internal-error"


@dataclass
class Findings:
    """Findings of all guests together."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Action -> how long the server took each time."""
    errors: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Sessions whose link showed something else after the server was killed."""
    own_seen: set[str] = field(default_factory=set)
    """Sentinels that came back to their own guest: without any, the search for others would prove nothing."""
    numbers_checked: int = 0
    sessions_opened: int = 0
    uploads: int = 0
    pins: int = 0
    attackers: Counter[str] = field(default_factory=Counter)
    """What those who took all that they could were answered."""

    def all_seconds(self) -> list[float]:
        """Seconds of all actions."""
        return [one for taken in self.seconds.values() for one in taken]


SIZES = (1, 2, 4, 8)
"""Tensor parallel sizes that a visitor types."""


class Guest:
    """One visitor for the whole run; it opens several sessions, one after another."""

    def __init__(self, address: str, number: int, findings: Findings, seed: int) -> None:
        self.random = random.Random(seed * 1000 + number)
        self.sentinel = f"soak-{self.random.getrandbits(32):08x}"
        self.findings = findings
        self.visitor = Visitor(
            address, locale=self.random.choice(("en-US", "zh-CN")), client=f"198.51.100.{number % 250}"
        )
        self.visitor.on_message = self.look_for_others
        self.kept: tuple[str, dict[str, str], list[str]] | None = None
        """Link, cards and pins before the server is killed."""

    def look_for_others(self, raw: bytes) -> None:
        """Searches one message of the server for other guests' sentinels."""
        for found in set(SENTINEL.findall(raw)):
            if found.decode() == self.sentinel:
                self.findings.own_seen.add(self.sentinel)
            else:
                self.findings.leaks.append(
                    f"{self.sentinel} received {found.decode()} on {self.visitor.page or 'plan'}"
                )

    async def timed(self, name: str, action: Awaitable[None]) -> None:
        """One action: its time, and whatever went wrong in it."""
        started = time.perf_counter()
        try:
            await action
        except Exception as error:  # whatever it is, the run goes on and the table says so
            self.findings.errors.append(f"{name}: {type(error).__name__}: {error}")
            return
        self.findings.seconds.setdefault(name, []).append(time.perf_counter() - started)
        self.findings.errors += [f"{name}: {text}" for text in self.visitor.errors]
        self.visitor.errors.clear()
        if any(INTERNAL_ERROR in text for text in self.visitor.texts()):
            self.findings.errors.append(f"{name}: {INTERNAL_ERROR}")

    async def arrive(self) -> None:
        """Opens the app with a link of its own."""
        query = f"model={self.random.choice(MODELS)}&accelerator={self.random.choice(CARDS)}&tensor_parallel_size=8"
        await self.open(query, "")

    async def open(self, query: str, page: str) -> None:
        """Opens a link as a new session."""
        self.findings.sessions_opened += 1
        await self.timed("open a link", self.visitor.visit(query, page))

    async def act(self) -> None:
        """Something that a person does, at random."""
        actions: dict[Callable[[], Awaitable[None]], int] = {
            self.move_slider: 6, self.choose_size: 4, self.type_length: 4, self.turn_page: 8, self.upload_config: 3,
            self.paste_log: 2, self.upload_log: 3, self.upload_requests: 3, self.pin: 4, self.share: 4,
            self.search_model: 3, self.switch_language: 1, self.explore_hardware: 1, self.open_folds: 2,
        }  # fmt: skip
        (chosen,) = self.random.choices(list(actions), list(actions.values()))
        await chosen()
        if not self.visitor.page and self.random.random() < 0.6:
            await self.check_numbers()

    async def move_slider(self) -> None:
        """Another share of the card."""
        await self.timed(
            "slider", self.visitor.set("gpu_memory_utilization.slider", self.random.randint(60, 96) / 100)
        )

    async def choose_size(self) -> None:
        """Another tensor parallel size."""
        if self.visitor.find("tensor_parallel_size") is not None:
            await self.timed(
                "tensor parallel", self.visitor.set("tensor_parallel_size", self.random.choice(SIZES))
            )

    async def type_length(self) -> None:
        """Another context length."""
        await self.timed(
            "context length", self.visitor.set("max_model_len", self.random.randint(1, 64) * 1024)
        )

    async def turn_page(self) -> None:
        """Another page."""
        await self.timed("page", self.visitor.go(self.random.choice(PAGES)))

    async def upload_config(self) -> None:
        """A config.json under the guest's own name."""
        config = catalogue.find_model(self.random.choice(MODELS)).config
        await self.timed("unfold", self.visitor.set(MODEL_SOURCES, True))
        await self.timed("name a config", self.visitor.set("config_name", f"acme/{self.sentinel}"))
        await self._upload("config_file", f"{self.sentinel}.json", config.text.encode())

    async def search_model(self) -> None:
        """Another model by a few words."""
        await self.timed("search", self.visitor.set("model_search", self.random.choice(WORDS)))
        hits = [name for name in self.visitor.names() if name.startswith("model_hit.")]
        if hits:
            await self.timed("take a hit", self.visitor.press(self.random.choice(hits)))

    async def paste_log(self) -> None:
        """A start-up log in the field of the Check page."""
        await self._be_on("check")
        await self.timed("paste a log", self.visitor.set("check.text", self._log().decode()))

    async def upload_log(self) -> None:
        """A start-up log as a file."""
        await self._be_on("check")
        await self._upload("check.upload", f"{self.sentinel}.log", self._log())

    async def upload_requests(self) -> None:
        """A request log on the Workload page."""
        await self._be_on("workload")
        if self.visitor.find("workload.clear") is not None:
            await self.timed("clear", self.visitor.press("workload.clear"))
        sample = self.random.choice(("requests.jsonl", "requests.csv"))
        content = (ROOT / "pages" / "ui" / "samples" / sample).read_bytes()
        fields = [name for name in self.visitor.names() if name.startswith("workload.upload.")]
        if not fields:
            self.findings.errors.append(f"upload: Workload has no field: {self.visitor.texts()[:8]}")
            return
        await self._upload(fields[0], f"{self.sentinel}{Path(sample).suffix}", content)

    async def pin(self) -> None:
        """Pins the scenario; with four pins, takes one off."""
        await self._be_on("compare")
        button = self.visitor.find("pin")
        if button is not None and not button.disabled:
            self.findings.pins += 1
            await self.timed("pin", self.visitor.press("pin"))
        elif self.visitor.find("remove_pin.3") is not None:
            await self.timed("remove a pin", self.visitor.press("remove_pin.3"))

    async def share(self) -> None:
        """Its own link again, in a new session."""
        await self.open(self.visitor.query, self.visitor.page)

    async def switch_language(self) -> None:
        """The other language."""
        group = self.visitor.find("language_switch")
        if group is not None:
            name = self.random.choice([option.content for option in group.options])
            await self.timed("language", self.visitor.set("language_switch", name))

    async def explore_hardware(self) -> None:
        """The other question of the Explore page."""
        await self._be_on("explore")
        group = self.visitor.find("explore_view")
        if group is not None:
            name = self.random.choice([option.content for option in group.options])
            await self.timed("explore", self.visitor.set("explore_view", name))

    async def open_folds(self) -> None:
        """Opens all folded parts of the page, further options included."""
        for name in ("more.en", "more.zh", "more.zh-CN", "numbers.en", "numbers.zh", "numbers.zh-CN"):
            if self.visitor.find(name) is not None:
                await self.timed("unfold", self.visitor.set(name, True))

    async def check_numbers(self) -> None:
        """Plans the guest's own link here and compares the cards."""
        expected = await asyncio.to_thread(cards, self.visitor.query, self.visitor.locale)
        if expected is None:
            return
        self.findings.numbers_checked += 1
        shown = list(self.visitor.metrics().values())
        if shown != expected:
            self.findings.leaks.append(f"{self.sentinel}: shown {shown}, its link says {expected}")

    async def before_the_kill(self) -> None:
        """Looks at its numbers and its pins."""
        await self._be_on("compare")
        pins = tables(self.visitor)
        await self.timed("page", self.visitor.go(""))
        self.kept = (self.visitor.query, self.visitor.metrics(), pins)

    async def after_the_kill(self) -> None:
        """Opens its link on the new server and looks at the same."""
        if self.kept is None:
            return
        query, metrics, pins = self.kept
        await self.open(query, "compare")
        if tables(self.visitor) != pins:
            self.findings.lost.append(f"{self.sentinel}: other pins on {query[:200]}")
        await self.open(query, "")
        if self.visitor.metrics() != metrics:
            self.findings.lost.append(f"{self.sentinel}: {metrics} became {self.visitor.metrics()}")

    async def _be_on(self, page: str) -> None:
        if self.visitor.page != page:
            await self.timed("page", self.visitor.go(page))

    async def _upload(self, widget: str, name: str, content: bytes) -> None:
        self.findings.uploads += 1
        await self.timed("upload", self.visitor.upload(widget, (name, content)))

    def _log(self) -> bytes:
        named = f"INFO 10-05 18:31:40 [loader.py:1] loading acme/{self.sentinel}\n".encode()
        return named * self.random.choice((1, 1, 1, 3000)) + self.random.choice(LOGS).read_bytes()


def tables(visitor: Visitor) -> list[str]:
    """The tables of the page: on Compare, the pins with their figures."""
    return [element.body for element in visitor.elements("html") if "<table" in element.body]


def cards(query: str, locale: str) -> list[str] | None:
    """The cards of the Plan page for a link, in order; None where it plans nothing."""
    params = dict(parse_qsl(query))
    given = params.get("lang", "")
    language = Language(given) if given in tuple(Language) else Language.of_browser(locale)
    t = words(language)
    try:
        planned = plan(link.decode(params).scenario)
    except KvPlannerError:
        return None
    curves = tensor_parallel_curves(planned, charts.curve_lengths(planned))
    size = planned.scenario.parallel.tensor_parallel_size
    curve = next((one for one in curves if one.tensor_parallel_size == size), None)
    shown = summary.cards(planned, curve, t)
    return [f"{card.value} {card.note}".strip() for card in shown]
