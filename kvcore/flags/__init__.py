"""Every field of a request, one row each: `registry.toml`, checked whole when loaded. See docs/adding-a-flag.md.

From a row come the request's reader, its JSON Schema, the link, the readers of commands and logs, the launch command,
the controls of the page with their bounds, and the generators of the property tests.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from kvcore.base.parts import GIVEN, MEASURED_FIELDS
from kvcore.tables import Record, Reviewed, TableFile
from kvcore.texts import PARAMETERS


class Kind(StrEnum):
    """The JSON type of a field."""

    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    """One of `choices`."""
    TEXT = "text"
    """At most `characters`, all printable."""
    INTEGERS = "integers"
    """A list of whole numbers."""
    NAMES = "names"
    """A list of some of `choices`."""
    COUNT = "count"
    """A whole number, or an object with one as its `count`."""
    OBJECT = "object"
    TEXT_OR_OBJECT = "text-or-object"
    ANY = "any"


class LinkRule(StrEnum):
    """When and how a link carries a field."""

    SET = "set"
    """Unless it is the default."""
    ALWAYS = "always"
    """Also the default, because a reader of the link looks for it."""
    PACKED = "packed"
    """JSON, deflated if it is long."""
    NEVER = "never"


class LaunchRule(StrEnum):
    """How a flag with a spelling (`cli`) is written in the launch command."""

    BY_KIND = "by-kind"
    OWN = "own"
    """By a function of `deploy.launch`, because it depends on the release or on other flags."""


class LogRule(StrEnum):
    """How a flag is read from a command, an argument line or a config line."""

    NEVER = "never"
    BY_KIND = "by-kind"
    """A number between the bounds, a switch, one of `common`."""
    WORD = "word"
    """Any word; the request checks it."""
    RUNNER = "runner"
    LIMITS = "limits"
    ROPE = "rope"
    SPECULATIVE = "speculative"
    GRAPHS = "graphs"
    """By `log_graphs`: from a flag, an older flag, or a field of the compilation config."""
    START = "start"
    """From lines of the start itself."""


class Widget(StrEnum):
    """The control of a field on the page."""

    NONE = "none"
    BY_KIND = "by-kind"
    """Under "More options", built from its kind and bounds."""
    OWN = "own"
    """Built by a function of `pages.ui`."""


MAX_LISTED: Final = 8192
"""Longest list of numbers: the sizes up to the largest captured batch."""
MEASURED: Final = "measured"
"""The object of the parts of memory that the person gives; its fields follow `kvcore.base.parts`."""
OWN_OBJECTS: Final = frozenset({"additional_config", "kv_transfer_config", "speculative_config"})
"""Objects of a request that are the engine's own, as its flags take them."""
TRUE: Final = ("true", "True", 1)
"""Values of a switch in such an object that mean true, in addition to true itself."""
ENVIRONMENT_NAME: Final = "[A-Za-z_][A-Za-z0-9_]{0,79}"


class Shown(StrEnum):
    """When the control of a field is useful."""

    ALWAYS = "always"
    RECURRENT = "recurrent"
    """For a model with recurrent layers."""
    RESTART = "restart"
    """If a restart leaves more memory than a first start."""
    SEVERAL_CARDS = "several-cards"
    """For a replica of more than one card."""
    IMAGES = "images"
    """For a model that takes more than text."""
    EXPERTS = "experts"
    """For a mixture of experts."""
    SPARSE = "sparse"
    """For sparse attention."""
    REPLICAS = "replicas"
    """For several data parallel ranks."""


WORD: Final = r"[A-Za-z0-9_.-]+"
"""Pattern of a text with `is_word`."""
KEPT_NAME: Final = r"[A-Za-z0-9_.-]{1,80}"
"""Pattern of a field without a row in an object that keeps it."""
DRIVER_VERSION: Final = r"(?:[1-9][0-9]{2}|(?:ROCm )?[1-9][0-9]{0,3}(?:\.(?:[0-9]{1,6}|rc[0-9]{1,3})){1,4})"
"""Pattern of a text with `is_driver_version`: 570, 570.86.15, ROCm 7.2, 25.0.rc1."""
BOUNDED: Final = frozenset((Kind.INTEGER, Kind.NUMBER, Kind.INTEGERS, Kind.COUNT))
FlagName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){0,2}$")]
Spelling = Annotated[str, Meta(pattern=r"^--?[a-z][a-z0-9_.-]*$")]
Word = Annotated[str, Meta(pattern=r"^[A-Za-z][\w-]*$")]
Limit = Annotated[float, Meta(ge=-(2.0**63), le=2.0**63)]


class Flag(Record, frozen=True, kw_only=True):
    """One field of a request. Raises ValueError for keys that do not go together."""

    kind: Kind
    name: str = ""
    """Name in the request and in the link; `speculative_config.method` is a field of an object."""
    minimum: Limit | None = None
    maximum: Limit | None = None
    characters: Annotated[int, Meta(ge=1, le=1 << 20)] = 256
    is_word: bool = False
    """Letters, digits, `_`, `.` and `-` only: a name that the engine knows."""
    is_driver_version: bool = False
    """A version as the driver's own tool prints it."""
    choices: tuple[Word, ...] = ()
    common: tuple[Word, ...] = ()
    """Values that a page offers first, and that are read from logs."""
    one_of: tuple[str, ...] = ()
    """Fields of an object of which at least one is required."""
    is_open: bool = False
    """An object that keeps fields without a row as they are: which of them are known is the release's own."""
    auto: Literal[-1] | None = None
    """The number that the word `auto` stands for."""
    human: bool = False
    """Takes 32k and 32K too, as the engine's parser does."""
    default: object = None
    """Default; None means the engine's own, by release."""
    cli: tuple[Spelling, ...] = ()
    """The flag of the launch command, then its other spellings."""
    needs: str = ""
    """A switch without which the launch command leaves it out."""
    launch: LaunchRule = LaunchRule.BY_KIND
    link: LinkRule = LinkRule.SET
    log: LogRule = LogRule.NEVER
    logged: tuple[Word, ...] = ()
    """Its other names in logs."""
    label: str = ""
    help: str = ""
    """Help of its control, in addition to the meaning in `texts/parameters.toml` if it has one there."""
    widget: Widget = Widget.NONE
    shown: Shown = Shown.ALWAYS
    vary: bool = False
    """Whether Compare varies it."""
    source: str = ""

    def __post_init__(self) -> None:
        if (self.kind in BOUNDED) is not (self.minimum is not None and self.maximum is not None):
            raise ValueError("minimum and maximum are for numbers, and required there")
        if (self.is_word or self.is_driver_version) and self.kind is not Kind.TEXT:
            raise ValueError("is_word and is_driver_version are for texts")
        if (self.kind in (Kind.CHOICE, Kind.NAMES)) is not bool(self.choices):
            raise ValueError("choices are for a choice and for names, and required there")
        if self.is_open and self.kind is not Kind.OBJECT:
            raise ValueError("is_open is for objects")
        if self.choices and not set(self.common) <= set(self.choices):
            raise ValueError("common must be some of choices")
        if self.widget is not Widget.NONE and not self.label:
            raise ValueError("a widget needs a label")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError("minimum is above maximum")
        if self.default is not None and not self._takes(self.default):
            raise ValueError(f"default {self.default!r} is not a valid value")

    def _takes(self, value: object) -> bool:
        """Whether `value` may be the default."""
        if self.kind is Kind.BOOLEAN:
            return isinstance(value, bool)
        if self.kind is Kind.CHOICE:
            return value in self.choices
        if self.kind not in BOUNDED or isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low, high = self.bounds
        return low <= value <= high

    @property
    def parent(self) -> str:
        """The object that contains it; "" for the request itself."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Its name in that object."""
        return self.name.rpartition(".")[2]

    @property
    def is_lenient(self) -> bool:
        """Whether it is a field of an object that the engine reads itself: 1 and "true" are true there, and true is 1.

        Source: vllm/config/utils.py:config (0.10.2, 0.33.0: pydantic's conversion), vllm_ascend/ascend_config.py:
        AscendConfig (0.11.0, 0.23.0: whatever is true in Python; 0.27.1rc1: pydantic's).
        """
        return self.parent.partition(".")[0] in OWN_OBJECTS

    @property
    def short(self) -> tuple[str, ...]:
        """Its short spellings, without the dash: `tp`."""
        return tuple(word[1:] for word in self.cli if not word.startswith("--"))

    @property
    def other_names(self) -> tuple[str, ...]:
        """Its other names in commands and logs.

        Example:
            >>> FLAGS["runner"].other_names
            ('task', 'runner_type', 'pooler_config')
        """
        return (*(word.lstrip("-").replace("-", "_") for word in self.cli[1:]), *self.logged)

    @property
    def bounds(self) -> tuple[float, float]:
        """Minimum and maximum, whole for whole numbers. Raises TypeError for a field without bounds."""
        if self.minimum is None or self.maximum is None:
            raise TypeError(f"{self.name} has no bounds")
        if self.kind is Kind.NUMBER:
            return self.minimum, self.maximum
        return int(self.minimum), int(self.maximum)

    @property
    def spelling(self) -> str:
        """Its spelling in a command.

        Example:
            >>> FLAGS["max_model_len"].spelling, FLAGS["cudagraph_mode"].spelling
            ('--max-model-len', '--compilation-config cudagraph_mode')
        """
        first = self.cli[0] if self.cli else f"--{self.name.replace('_', '-')}"
        return f"{first} {self.name}" if first == "--compilation-config" else first


class Unused(Record, frozen=True, kw_only=True):
    """Fields of an object that the engine knows and that do not change a plan."""

    source: str
    names: tuple[Word, ...]


class Registry(Reviewed, frozen=True, kw_only=True):
    """The whole table."""

    flag: Mapping[FlagName, Flag]
    unused: Mapping[FlagName, Unused] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, flag in self.flag.items():
            parent = name.rpartition(".")[0]
            switch = self.flag.get(flag.needs)
            if flag.needs and (switch is None or switch.kind is not Kind.BOOLEAN):
                raise ValueError(f"flag {name} needs {flag.needs}, which is no switch")
            if parent and parent not in self.flag:
                raise ValueError(f"flag {name} is a field of {parent}, which has no row")
            if odd := [key for key in flag.one_of if f"{name}.{key}" not in self.flag]:
                raise ValueError(f"flag {name} one_of: {', '.join(odd)} has no row")
        if odd := sorted(self.unused.keys() - self.flag.keys()):
            raise ValueError(f"unused {', '.join(odd)} has no row")


def flags_of(registry: Registry) -> Mapping[str, Flag]:
    """The rows of a registry by name, those of measured parts behind their object, those without effect at the end."""
    rows: dict[str, Flag] = {}
    for name, flag in registry.flag.items():
        rows[name] = replace(flag, name=name)
        if name == MEASURED:
            rows |= {flag.name: flag for flag in _measured_flags()}
    for parent, unused in registry.unused.items():
        for key in unused.names:
            name = f"{parent}.{key}"
            rows[name] = Flag(name=name, kind=Kind.ANY, link=LinkRule.NEVER, source=unused.source)
    return MappingProxyType(rows)


def _measured_flags() -> Iterator[Flag]:
    """A number for each part that can be given, and the lists of those that nobody measured."""
    for part in GIVEN:
        low, high = part.bounds
        yield Flag(
            name=f"{MEASURED}.{part.field}",
            kind=Kind.NUMBER,
            minimum=low,
            maximum=high,
            label=part.control or part.given_label or part.label,
            widget=Widget.BY_KIND,
        )
    for key in ("fitted", "carried"):
        yield Flag(name=f"{MEASURED}.{key}", kind=Kind.NAMES, choices=MEASURED_FIELDS)


REGISTRY: Final = TableFile("kvcore.flags", "registry.toml", Registry)
FLAGS: Final[Mapping[str, Flag]] = flags_of(REGISTRY.load())


def fields_of(parent: str = "") -> Mapping[str, Flag]:
    """The fields of an object of the request by key; of the request itself for "".

    Example:
        >>> tuple(fields_of("accelerator"))
        ('memory_gib', 'vendor', 'name', 'compute_capability', 'driver_total_mib', 'interconnect')
    """
    return _FIELDS[parent]


def check_fields(names: Iterable[str], parent: str = "") -> None:
    """Raises ValueError for a name that is no field of that object of the request."""
    if unknown := sorted(set(names) - fields_of(parent).keys()):
        raise ValueError(f"{unknown[0]} is no field of {parent or 'a request'}")


def _by_parent() -> Mapping[str, Mapping[str, Flag]]:
    found: dict[str, dict[str, Flag]] = {}
    for flag in FLAGS.values():
        found.setdefault(flag.parent, {})[flag.key] = flag
    return found


_FIELDS: Final = _by_parent()


def explained(flag: Flag) -> tuple[str, ...]:
    """The sentences that say what a field is for: its meaning in the reference, then what `help` adds.

    Example:
        >>> explained(FLAGS["tensor_parallel_size"])[0]
        'GPUs that share every layer of one replica.'
    """
    meaning = next((str(one.meaning) for one in PARAMETERS.values() if one.field == flag.name), "")
    return tuple(filter(None, (meaning, flag.help)))


_WHOLE: Final = re.compile(r"-?\d{1,18}")
_HUMAN: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kKmMgG])")
_FACTORS: Final = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
"""Source: vllm/engine/arg_utils.py:human_readable_int (0.9.2)."""


def read_whole(text: str, flag: Flag) -> int | None:
    """The number in `text` as the engine's parser reads it; None without one within the bounds of `flag`.

    Example:
        >>> from kvcore.flags import FLAGS
        >>> [read_whole(text, FLAGS["max_model_len"]) for text in ("32k", "32K", "auto", "1e30", "0")]
        [32000, 32768, -1, None, None]
        >>> read_whole("32k", FLAGS["max_num_seqs"])
    """
    if flag.auto is not None and text in ("auto", str(flag.auto)):
        return flag.auto
    human = _HUMAN.fullmatch(text) if flag.human else None
    if human is not None:
        text = str(int(float(human[1]) * _FACTORS[human[2]]))
    if _WHOLE.fullmatch(text) is None:
        return None
    low, high = flag.bounds
    return int(text) if low <= int(text) <= high else None
