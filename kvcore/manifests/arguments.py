"""Words behind a program -> its arguments, as argparse takes them: prefixes, aliases, `--no-x`, dotted fields, lists.

The last of two counts. A word that is nothing but an undefined variable is kept apart: what it holds is not known.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from kvcore.flags import FLAGS
from kvcore.manifests.unknowns import is_mark, names_in
from kvcore.manifests.values import field_name
from kvcore.tables import Reviewed, Source, TableFile

MAX_WORDS: Final = 4096
MAX_VALUE: Final = 1 << 16
VLLM: Final = "vllm"
SGLANG: Final = "sglang"

_DASHES: Final = "-\u2013\u2014"
_NEGATIVE: Final = re.compile(r"-\d{1,40}(?:\.\d{1,40})?")
_CONFIGS: Final = {"O": "compilation_config", "cc": "compilation_config", "ac": "attention_config"}
"""Short forms that take a field behind a dot: `-cc.cudagraph_mode`."""
_LEVEL: Final = re.compile(r"-O=?\d")
_SECRETS: Final = re.compile(
    r"(?:^|_)(?:api_?keys?|(?:hf_|access_|auth_|bearer_)?tokens?|secrets?|passwords?|passwd|credentials?|pat|keys?)$"
)
_LOGIN: Final = re.compile(r"://[^/@\s]{1,400}@")
_NO_SECRETS: Final = re.compile(
    r"(?:^|_)(?:max|num|min|batched|total|prefill|chunk\w*)_\w*tokens?$|speculative_tokens$"
)


Spelling = Annotated[str, Meta(pattern=r"^--?[A-Za-z][\w-]*$")]
Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_.]*$")]


class Parser(Reviewed, frozen=True, kw_only=True):
    """`arguments.toml`."""

    source: Source
    switches: tuple[Spelling, ...]
    values: tuple[Spelling, ...]
    lists: tuple[Spelling, ...]
    alias: Mapping[Name, Name]
    """Arguments of vLLM that are a field of an object."""
    sglang: Mapping[Name, Name]
    """What SGLang's parser keeps an argument under."""


PARSER: Final = TableFile("kvcore.manifests", "arguments.toml", Parser)


class Given(Struct, frozen=True, kw_only=True):
    """One argument: the name that the engine keeps it under, and its value as text."""

    name: str
    """`max_model_len`, or `compilation_config.cudagraph_mode`."""
    value: str
    word: str = ""
    """As typed."""
    line: int = 0
    items: tuple[str, ...] = ()
    """The words of a list."""
    option: str = ""
    """The full name of the option, before aliases: `tp`, `cc_cudagraph_mode`, `spec_method`."""


class Arguments(Struct, frozen=True, kw_only=True):
    """Everything behind a program."""

    given: tuple[Given, ...] = ()
    positional: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    """Undefined variables that stand alone as a word: any arguments, or none."""
    names: tuple[str, ...] = field(default=())
    """Undefined variables anywhere."""

    def value(self, name: str) -> str | None:
        """The last value of an argument; None where it is not given."""
        return next((one.value for one in reversed(self.given) if one.name == name), None)


def is_secret(name: str) -> bool:
    """Whether an argument or a variable holds what nobody may see; no field of a request does.

    Example:
        >>> [is_secret(name) for name in ("HF_TOKEN", "api_key", "max_num_batched_tokens", "AWS_SECRET_ACCESS_KEY")]
        [True, True, False, True]
    """
    name = name.lower().replace("-", "_")
    return _SECRETS.search(name) is not None and _NO_SECRETS.search(name) is None and name not in FLAGS


def without_login(text: str) -> str:
    """A text whose addresses have no name and password.

    Example:
        >>> without_login("redis://me:hidden@cache:6379/0")
        'redis://***@cache:6379/0'
    """
    return _LOGIN.sub("://***@", text)


@cache
def _kinds() -> Mapping[str, str]:
    """The long names of vLLM's arguments with what follows them."""
    parser = PARSER.load()
    found = dict.fromkeys(parser.values, "value")
    found |= dict.fromkeys(parser.lists, "list")
    return found | dict.fromkeys(parser.switches, "switch")


def resolved(word: str, engine: str = VLLM) -> tuple[str, str, str]:
    """The name that the engine keeps an argument under, what follows it, and the full name of the option.

    What follows is a `switch` (nothing), a `value`, a `list`, or `unknown`.

    Example:
        >>> resolved("--gpu-memory-util")
        ('gpu_memory_utilization', 'value', 'gpu_memory_utilization')
        >>> resolved("-tp"), resolved("--mem-frac", "sglang")[0]
        (('tensor_parallel_size', 'value', 'tp'), 'mem_fraction_static')
    """
    if engine != VLLM:
        name = word.lstrip(_DASHES).replace("-", "_")
        kept = _by_prefix(name, PARSER.load().sglang) if engine == SGLANG else name
        return kept, "unknown", kept
    head, dot, rest = word.partition(".")
    bare = head.lstrip(_DASHES).replace("-", "_")
    behind = dot + rest
    if not head.startswith("--") and (bare in _CONFIGS or dot):
        return _CONFIGS.get(bare, field_name(bare)) + behind, "value", (bare + behind).replace(".", "_")
    is_long = head.startswith("--") or head[:1] in _DASHES[1:]
    long = f"--{bare.replace('_', '-')}" if is_long else head
    kinds = _kinds()
    if long not in kinds:
        negated = long.replace("--no-", "--", 1)
        if negated != long and kinds.get(negated) == "switch":
            name = f"no_{negated[2:].replace('-', '_')}"
            return name, "switch", name
        long = _full(long, kinds) if is_long else long
    name = long.lstrip("-").replace("-", "_")
    alias = PARSER.load().alias.get(name)
    kind = "value" if dot else kinds.get(long, "unknown")
    return (
        (alias if alias is not None else field_name(name)) + behind,
        kind,
        (name + behind).replace(".", "_"),
    )


def _full(long: str, kinds: Mapping[str, str]) -> str:
    """The only argument with that prefix; the word itself where none or several have it."""
    found = [one for one in kinds if one.startswith(long)] if len(long) > 4 else []
    return found[0] if len(found) == 1 else long


def _by_prefix(name: str, names: Mapping[str, str]) -> str:
    if name in names:
        return names[name]
    found = {kept for one, kept in names.items() if one.startswith(name)} if len(name) > 4 else set()
    return found.pop() if len(found) == 1 else name


def is_option(word: str) -> bool:
    """Whether a word is an option rather than a value: it begins with a dash and is no number."""
    return (
        len(word) > 1
        and word[0] in _DASHES
        and _NEGATIVE.fullmatch(word) is None
        and " " not in word.split("=")[0]
    )


def arguments_of(words: Iterable[str], engine: str = VLLM, line: int = 0) -> Arguments:
    """The arguments in the words behind a program.

    Example:
        >>> found = arguments_of(["a/b", "--served-model-name", "x", "y", "-tp=2", "--enforce-eager", "c"])
        >>> found.positional, [(one.name, one.value) for one in found.given]
        (('a/b', 'c'), [('served_model_name', 'x'), ('tensor_parallel_size', '2'), ('enforce_eager', 'True')])
    """
    read = list(islice(words, MAX_WORDS))
    given: list[Given] = []
    positional: list[str] = []
    unclear: list[str] = []
    at = 0
    while at < len(read):
        word = read[at][:MAX_VALUE]
        at += 1
        if not is_option(word):
            if is_mark(word) and (positional or given):
                unclear += names_in(word)
            elif word not in ("", "\\", "-"):
                positional.append(word)
            continue
        if _LEVEL.fullmatch(word):
            given.append(
                Given(
                    name="optimization_level",
                    value=word[-1],
                    word=word,
                    line=line,
                    option="optimization_level",
                )
            )
            continue
        typed, is_joined, value = word.partition("=")
        name, kind, option = resolved(typed, engine)
        items: tuple[str, ...] = ()
        if is_joined:
            items = (value,)
        elif kind == "list":
            items = tuple(_values(read[at:]))
            at += len(items)
            value = _listed(items)
        elif kind != "switch" and at < len(read) and _is_value(read[at]):
            value = read[at][:MAX_VALUE]
            items = (value,)
            at += 1
        if not items:
            is_off = name.startswith("no_")
            name, option = name.removeprefix("no_"), option.removeprefix("no_")
            value = "False" if is_off else "True"
        given.append(Given(name=name, value=value.strip(), word=typed, line=line, items=items, option=option))
    texts = [*positional, *(one.value for one in given), *unclear]
    names = (*names_in(*texts), *(name for name in unclear))
    return Arguments(
        given=tuple(given),
        positional=tuple(positional),
        open=tuple(unclear),
        names=tuple(dict.fromkeys(names)),
    )


def _is_value(word: str) -> bool:
    return not is_option(word)


def _values(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if is_option(word):
            return
        yield word


def _listed(items: tuple[str, ...]) -> str:
    """A list as one text: numbers with commas between them, else the first."""
    if len(items) > 1 and all(item.isdigit() for item in items):
        return ",".join(items)
    return items[0] if items else ""
