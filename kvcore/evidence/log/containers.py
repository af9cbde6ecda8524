"""What a container starts: the engine's words behind `docker run`, and the release that its image names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvcore.engine.rooms import memory_variable_names, server_commands
from kvcore.evidence.log.dictionaries import MAX_VALUE_CHARACTERS

PROGRAMS: Final = server_commands()
"""How a shell starts a server."""
RUNNERS: Final = ("docker run", "docker container run", "podman run", "nerdctl run")
VARIABLES: Final = frozenset(
    ("VLLM_USE_V1", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
     "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", *memory_variable_names())
)  # fmt: skip
"""Environment that a plan looks at."""

_SWITCHES: Final = frozenset(
    ("detach", "disable-content-trust", "init", "interactive", "no-healthcheck", "oom-kill-disable", "privileged",
     "publish-all", "quiet", "read-only", "rm", "sig-proxy", "tty")
)  # fmt: skip
"""Options of `docker run` that take no word behind them.

Source: Docker's reference of `docker container run`.
"""
_SHORT_SWITCHES: Final = frozenset("ditqP")
_VARIABLE: Final = re.compile(r"([A-Za-z_]\w{0,60})=[\"']?([\w.]{1,16})[\"']?")
_TAG: Final = re.compile(r"v?(\d{1,3}\.\d{1,4}\.\d{1,4}(?:rc\d{1,3}|\.post\d{1,3})?)")
_SHELLS: Final = ("python", "python3", "bash", "sh", "exec")


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """One container: its image, the engine's words, and its environment."""

    image: str
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str | None:
        """The release that the image's tag names; None for `latest` and for other people's tags.

        Example:
            >>> Container(image="vllm/vllm-openai:v0.19.0", words=()).version
            '0.19.0'
        """
        name, _, tag = self.image.rpartition(":")
        found = _TAG.match(tag) if "vllm" in name else None
        return found[1] if found is not None else None


def docker_container(words: Sequence[str]) -> Container | None:
    """The container of a `docker run`, from the word behind `run` on; None where it starts no engine.

    Example:
        >>> docker_container(["--rm", "-p", "80:80", "vllm/vllm-openai", "--model", "Qwen/Qwen3-8B"]).words
        ('--model', 'Qwen/Qwen3-8B')
    """
    env: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        option, is_joined, value = words[at].partition("=")
        takes_next = not is_joined and not _is_switch(option)
        if takes_next:
            value = words[at + 1] if at + 1 < len(words) else ""
        elif option.startswith("-e") and len(option) > len("-e"):
            option, value = "-e", words[at][len("-e") :]
        if option in ("-e", "--env"):
            env |= variables((value,))
        at += 2 if takes_next else 1
    if at >= len(words):
        return None
    return container(words[at], words[at + 1 :], env)


def _is_switch(option: str) -> bool:
    if option.startswith("--"):
        return option[2:] in _SWITCHES
    return len(option) > len("-x") or option[1:] in _SHORT_SWITCHES


def container(image: str, arguments: Sequence[str], env: Mapping[str, str]) -> Container | None:
    """A container with these arguments behind its image; None where neither speaks of the engine.

    The image's own entrypoint takes the model first, or as `--model`.
    """
    words = _engine_words(arguments)
    names_model = any(word.partition("=")[0] == "--model" for word in words)
    if not names_model and not any("vllm" in word for word in (image, *arguments)):
        return None
    return Container(image=image, words=tuple(words), env=env)


def _engine_words(arguments: Sequence[str]) -> list[str]:
    words = list(arguments)
    for word in words:
        at = next((at for at in (word.find(program) for program in PROGRAMS) if at >= 0), -1)
        if at >= 0 and " " in word:
            words = split_words(word[at:])
            break
    if "serve" in words:
        return ["vllm", *words[words.index("serve") :]]
    is_program = bool(words) and words[0].rsplit("/", 1)[-1] in _SHELLS
    if words and not words[0].startswith("-") and not is_program:
        return ["vllm", "serve", *words]
    return words


def split_words(text: str) -> list[str]:
    """Words as a shell parts them; at white space where quotes do not close."""
    text = text[: 16 * MAX_VALUE_CHARACTERS].replace("\\\n", " ")
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def variables(assignments: Iterable[str]) -> dict[str, str]:
    """Those of `NAME=value` that a plan looks at.

    Example:
        >>> variables(["VLLM_USE_V1=0", "HF_TOKEN=x"])
        {'VLLM_USE_V1': '0'}
    """
    found = (_VARIABLE.fullmatch(text) for text in assignments)
    return {match[1]: match[2] for match in found if match is not None and match[1] in VARIABLES}
