"""Commands -> the servers that they start: through wrappers, `bash -c`, scripts of the same input, and `docker run`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from kvcore.manifests.arguments import is_option
from kvcore.manifests.images import image_of, release_in_file
from kvcore.manifests.shell import Run, Script
from kvcore.manifests.shell_words import words_of
from kvcore.manifests.unknowns import has_mark, mark
from kvcore.manifests.workload import ALL_GPUS, binary_gib, size_gib, whole

MAX_DEPTH: Final = 6
MAX_SCANNED: Final = 64
"""Words of one command in which its program is looked for: wrappers have a few options."""

_SHELLS: Final = ("bash", "sh", "zsh", "dash", "ash", "ksh")
_TALK: Final = frozenset(
    ("echo", "printf", "cat", "grep", "egrep", "pgrep", "pkill", "kill", "ps", "pip", "pip3", "hf", "curl", "wget",
     "git", "huggingface-cli",
     "which", "rm", "mkdir", "cp", "mv", "ls", "sed", "awk", "apt", "apt-get", "module", "conda",
     "trap", "sleep", "test", "tail", "head", "systemctl", "chmod", "chown", "modelscope", "ln", "touch")
)  # fmt: skip
"""Programs that may have a server's name among their words and start none."""
RUNS: Final = ("docker run", "docker container run", "podman run", "nerdctl run")
"""How a shell starts a container."""
_RUNNERS: Final = ("docker", "podman", "nerdctl")
_DOCKER_SWITCHES: Final = frozenset(
    ("detach", "disable-content-trust", "init", "interactive", "no-healthcheck", "oom-kill-disable", "privileged",
     "publish-all", "quiet", "read-only", "rm", "sig-proxy", "tty", "help", "replace")
)  # fmt: skip
"""Options of `docker run` without a value.

Source: Docker's reference of `docker container run`; Podman's of `podman run`.
"""
_SHORT_SWITCHES: Final = frozenset("ditqP")
_MODULES: Final[Mapping[str, str]] = {
    "vllm.entrypoints.openai.api_server": "vllm", "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm", "vllm.entrypoints.openai.run_batch": "vllm",
    "vllm_mindspore.entrypoints": "vllm-mindspore", "lmcache_vllm.vllm.entrypoints.openai.api_server": "vllm",
    "dynamo.vllm": "vllm", "dynamo.sglang": "sglang", "dynamo.trtllm": "tensorrt-llm", "sglang.launch_server": "sglang",
    "huggingfaceserver": "vllm", "tensorrt_llm.commands.serve": "tensorrt-llm", "llama_cpp.server": "llama.cpp",
    "lmdeploy": "lmdeploy", "mlx_lm.server": "mlx-lm",
}  # fmt: skip
_NO_ENGINES: Final[Mapping[str, str]] = {
    "dynamo.frontend": "router", "dynamo.router": "router", "dynamo.planner": "planner", "dynamo.mocker": "simulator",
    "sglang_router.launch_router": "router", "vllm_router": "router", "sglang.bench_serving": "client",
    "vllm.entrypoints.disagg_proxy": "router",
}  # fmt: skip
_PROGRAMS: Final[Mapping[str, str]] = {
    "trtllm-serve": "tensorrt-llm", "mindieservice_daemon": "mindie", "text-generation-launcher": "tgi",
    "llama-server": "llama.cpp", "llama-swap": "llama.cpp", "ollama": "ollama",
}  # fmt: skip
_SERVING: Final[Mapping[str, str]] = {
    "vllm": "vllm", "sglang": "sglang", "vllm-mindspore": "vllm-mindspore", "lmcache_vllm": "vllm",
    "lmdeploy": "lmdeploy",
}  # fmt: skip
"""Programs that serve with the command `serve`, and do other things with others."""
_CLIENTS: Final = ("vllm-router", "sglang-router", "vllm-bench")
_POSITIONAL: Final = ("vllm", "vllm-ascend", "vllm-mindspore", "sglang", "tensorrt-llm")
_MAY_START: Final = re.compile(r"vllm|sglang|trtllm|mindie|--model|launch_server|dynamo\.")


class Container(Struct, frozen=True, kw_only=True):
    """What a container's options say: its image, its limits."""

    image: str = ""
    name: str | None = None
    gpus: int | str | None = None
    shm_gib: float | None = None
    memory_gib: float | None = None
    devices: tuple[str, ...] = ()
    shares_ipc: bool = False
    """Whether it has the host's /dev/shm."""
    card: str | None = None


class Launch(Struct, frozen=True, kw_only=True):
    """A server that a command starts."""

    engine: str
    words: tuple[str, ...]
    """The words behind the program."""
    program: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that it sees, exported or given to it."""
    line: int = 0
    container: Container | None = None
    release: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the script writes before, by name."""
    takes_model: bool = False
    """Whether the first word without a dash is the model."""
    role: str = ""
    """What it is where it is no engine."""


class Scripts(Struct, frozen=True):
    """The files of one input by name, so that a command finds the script that it runs."""

    texts: Mapping[str, str] = field(default_factory=dict)

    def find(self, path: str) -> str | None:
        """The text of the file with that name, whatever its folder."""
        return (
            self.texts.get(path.rsplit("/", 1)[-1])
            if path and not has_mark(path.rsplit("/", 1)[-1])
            else None
        )


def script_launches(
    text: str,
    variables: Mapping[str, str],
    scripts: Scripts,
    *,
    arguments: Sequence[str] | None = None,
    line: int = 1,
    depth: int = 0,
    exported: frozenset[str] | None = None,
) -> list[Launch]:
    """The servers that a shell script starts.

    Example:
        >>> [found] = script_launches("exec uv run vllm serve a/b -tp 2", {}, Scripts())
        >>> found.engine, found.words
        ('vllm', ('a/b', '-tp', '2'))
    """
    if depth > MAX_DEPTH:
        return []
    script = Script(text, variables, arguments, line, exported)
    script.sourced = scripts.find
    found: list[Launch] = []
    written: dict[str, str] = {}
    for run in script.read():
        if run.document is not None and run.target:
            written[run.target.rsplit("/", 1)[-1]] = run.document
        held = Scripts({**scripts.texts, **written}) if written else scripts
        found += (replace(one, files={**written, **one.files}) for one in launches(run, held, depth))
    return found


def launches(run: Run, scripts: Scripts, depth: int = 0) -> Iterator[Launch]:
    """The servers that one command starts."""
    words = list(run.words)
    if depth > MAX_DEPTH or not words:
        return
    head = _base(words[0])
    if head in _TALK:
        return
    seen = {name: value for name, value in run.variables.items() if name in run.exported}
    for at, word in enumerate(words[:MAX_SCANNED]):
        base = _base(word)
        if base == "env" or (
            at and "=" in word and word.partition("=")[0].isidentifier() and not is_option(word)
        ):
            name, is_set, set_to = word.partition("=")
            seen |= {name: set_to} if is_set else {}
            continue
        if base in _RUNNERS and "run" in words[at + 1 : at + 5]:
            begin = words.index("run", at) + 1
            yield from _docker(words[begin:], run, scripts, depth)
            return
        if base in _APPTAINERS and "run" in words[at + 1 : at + 4]:
            image = _apptainer(words[words.index("run", at) + 1 :], run)
            if image is not None:
                yield from container_launches(image[0], image[1], scripts, depth + 1)
                return
        if (base, *words[at + 1 : at + 3]) in _DEPLOYING:
            yield from _deployed(words[at + 1 :], run, scripts, depth)
            return
        if base in _SHELLS:
            yield from _shell(words[at + 1 :], run, scripts, depth)
            return
        if (text := scripts.find(word)) is not None and base.endswith((".sh", ".bash", ".sbatch")):
            yield from _script(text, words[at + 1 :], run, scripts, depth)
            return
        found = _program(words, at)
        if found is not None:
            release = next(filter(None, map(release_in_file, words[:at])), None)
            yield replace(found, variables=seen, line=run.line, release=release)
            return
        if " " in word.strip() and at and _MAY_START.search(word):
            inner = script_launches(
                word, run.variables, scripts, line=run.line, depth=depth + 1, exported=run.exported
            )
            if inner:
                yield from inner
                return


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1].lstrip("@-+!")


def _program(words: Sequence[str], at: int) -> Launch | None:
    """The server whose program stands at a place among the words."""
    word = words[at]
    base = _base(word)
    following = words[at + 1] if at + 1 < len(words) else ""
    if word == "-m" or (word == "--module" and following):
        return _module(following, words[at + 2 :])
    if base in _SERVING:
        if following == "serve":
            engine = _SERVING[base]
            return Launch(
                engine=engine, words=tuple(words[at + 2 :]), program=f"{base} serve", takes_model=True
            )
        if base == "vllm" and following == "run-batch":
            return Launch(engine="vllm", words=tuple(words[at + 2 :]), program="vllm run-batch")
        if following in ("bench", "chat", "complete"):
            return Launch(engine="", words=(), program=f"{base} {following}", role="client")
        return None
    if base in _PROGRAMS:
        begin = at + 2 if following == "serve" else at + 1
        return Launch(engine=_PROGRAMS[base], words=tuple(words[begin:]), program=base, takes_model=True)
    if base in _CLIENTS:
        return Launch(engine="", words=(), program=base, role="router" if "router" in base else "client")
    if base in ("api_server.py", "api_server_v1.py") and "vllm" in word:
        return Launch(engine="vllm", words=tuple(words[at + 1 :]), program=base)
    if base == "launch_server.py" and "sglang" in word:
        return Launch(engine="sglang", words=tuple(words[at + 1 :]), program=base)
    return None


def _module(name: str, words: Sequence[str]) -> Launch | None:
    found = next((role for module, role in _NO_ENGINES.items() if name.startswith(module)), None)
    if found is not None:
        return Launch(engine="", words=(), program=name, role=found)
    engine = next((engine for module, engine in _MODULES.items() if name.startswith(module)), None)
    if engine is None:
        return None
    serves = bool(words) and words[0] == "serve"
    return Launch(
        engine=engine, words=tuple(words[1:] if serves else words), program=name, takes_model=serves
    )


def _shell(words: Sequence[str], run: Run, scripts: Scripts, depth: int) -> Iterator[Launch]:
    """`bash -c TEXT arguments`, `bash FILE arguments`, or a shell that reads a here-document."""
    at = 0
    while at < len(words) and (words[at].startswith(("-", "+")) or words[at] == "pipefail"):
        if words[at].startswith("-") and not words[at].startswith("--") and words[at].endswith("c"):
            at += 2 if words[at + 1 : at + 2] == ["--"] else 1
            inner = words[at] if at < len(words) else ""
            yield from _script(inner, words[at + 2 :], run, scripts, depth)
            return
        at += 1
    text = scripts.find(words[at]) if at < len(words) else None
    if text is not None:
        yield from _script(text, words[at + 1 :], run, scripts, depth)
    elif run.document is not None:
        yield from _script(run.document, (), run, scripts, depth)


def _script(text: str, arguments: Sequence[str], run: Run, scripts: Scripts, depth: int) -> Iterator[Launch]:
    yield from script_launches(
        text,
        run.variables,
        scripts,
        arguments=arguments,
        line=run.line,
        depth=depth + 1,
        exported=run.exported,
    )


_DEPLOYING: Final = (("gcloud", "run", "deploy"), ("gcloud", "beta", "run"))


def _deployed(words: Sequence[str], run: Run, scripts: Scripts, depth: int) -> Iterator[Launch]:
    """The server of a `gcloud run deploy`: its image with the arguments that commas part.

    Source: Google Cloud SDK, reference of `gcloud run deploy` (--image, --command, --args, --gpu, --memory).
    """
    said: dict[str, str] = {}
    for at, word in enumerate(words):
        name, is_joined, value = word.partition("=")
        if name.startswith("--"):
            said[name[2:]] = value if is_joined else (words[at + 1] if at + 1 < len(words) else "")
    if "image" not in said:
        return
    held = Container(
        image=said["image"], gpus=whole(said.get("gpu")), memory_gib=size_gib(said.get("memory")),
        card=said.get("gpu-type"),
    )  # fmt: skip
    inner = [word for key in ("command", "args") for word in said.get(key, "").split(",") if word]
    pairs = (pair.partition("=") for pair in said.get("set-env-vars", "").split(",") if "=" in pair)
    env = {name: value for name, _, value in pairs}
    yield from container_launches(
        Run(words=tuple(inner), variables=env, exported=frozenset(env), line=run.line),
        held,
        scripts,
        depth + 1,
    )


_APPTAINERS: Final = ("apptainer", "singularity")


def _apptainer(words: Sequence[str], run: Run) -> tuple[Run, Container] | None:
    """The image of an `apptainer run` and the words behind it, which its own entrypoint takes; None without one."""
    at = next(
        (place for place, word in enumerate(words) if word.startswith("docker://") or word.endswith(".sif")),
        None,
    )
    if at is None:
        return None
    name = words[at].removeprefix("docker://")
    release = release_in_file(name)
    image = f"vllm/vllm-openai:v{release}" if name.endswith(".sif") and release is not None else name
    inner = Run(words=tuple(words[at + 1 :]), variables=run.variables, exported=run.exported, line=run.line)
    return inner, Container(image=image, shares_ipc=True)


def _docker(words: Sequence[str], run: Run, scripts: Scripts, depth: int) -> Iterator[Launch]:
    """The server in the container of a `docker run`, from the word after `run` on."""
    env: dict[str, str] = {}
    options: dict[str, list[str]] = {}
    at = 0
    while at < len(words) and (words[at].startswith("-") or words[at] in ("", "\\")):
        option, is_joined, value = words[at].partition("=")
        if not is_joined and not _is_switch(option):
            if not option.startswith("--") and len(option) > 2:
                option, value = option[:2], option[2:]
            else:
                value = words[at + 1] if at + 1 < len(words) else ""
                at += 1
        at += 1
        options.setdefault(option.lstrip("-"), []).append(value)
    for name in ("e", "env"):
        for word in options.get(name, ()):
            key, is_set, value = word.partition("=")
            env[key] = value if is_set else run.variables.get(key, mark(key))
    if at >= len(words):
        return
    image, rest = words[at], list(words[at + 1 :])
    entrypoint = options.get("entrypoint", [""])[-1]
    held = Container(
        image=image,
        name=options["name"][-1] if "name" in options else None,
        gpus=_docker_gpus(options),
        shm_gib=binary_gib(options.get("shm-size", [""])[-1]),
        memory_gib=binary_gib((options.get("memory") or options.get("m") or [""])[-1]),
        devices=tuple(options.get("device", ())),
        shares_ipc=options.get("ipc", [""])[-1] == "host",
    )
    inner = Run(words=(*words_of(entrypoint), *rest), variables=env, exported=frozenset(env), line=run.line)
    yield from container_launches(inner, held, scripts, depth + 1)


def _docker_gpus(options: Mapping[str, Sequence[str]]) -> int | str | None:
    value = (options.get("gpus") or [""])[-1].strip("'\"")
    devices = options.get("device", ())
    if not value:
        chips = [one for one in devices if re.search(r"/dev/davinci\d+", one)]
        if any("gpu=all" in one for one in devices):
            return ALL_GPUS
        return len(chips) or None
    return gpu_count(value)


def gpu_count(value: str) -> int | str | None:
    """How many cards `--gpus` gives: all of them, a number, or those that are named.

    Example:
        >>> gpu_count("all"), gpu_count('"device=2,3"'), gpu_count("4")
        ('all', 2, 4)
    """
    value = value.strip("'\" ")
    if value in (ALL_GPUS, "-1"):
        return ALL_GPUS
    named = re.search(r"device=\"?([\w,-]+)", value)
    if named is not None:
        return ALL_GPUS if named[1] == ALL_GPUS else len(named[1].split(","))
    return whole(value.removeprefix("count=").partition(",")[0])


def _is_switch(option: str) -> bool:
    if option.startswith("--"):
        return option[2:] in _DOCKER_SWITCHES
    return bool(option[1:]) and all(letter in _SHORT_SWITCHES for letter in option[1:])


def container_launches(run: Run, held: Container, scripts: Scripts, depth: int = 0) -> Iterator[Launch]:
    """The server of a container: what its words start, or its image with these words as arguments."""
    image = image_of(held.image)
    found = [one for one in launches(run, scripts, depth) if one.engine or one.role]
    if found:
        for one in found:
            yield replace(one, container=one.container or held, line=one.line or run.line)
        return
    seen = {name: value for name, value in run.variables.items() if name in run.exported}
    if image.role:
        yield Launch(engine="", words=(), variables=seen, line=run.line, container=held, role=image.role)
        return
    words = list(run.words)
    if words and _base(words[0]) in (*_SHELLS, *_TALK, "python", "python3", "env"):
        return  # a program of somebody's own
    if not words and not image.is_own:
        return
    if words and _base(words[0]) == "vllm":
        words = words[1:]
    if words and words[0] == "serve":
        words = words[1:]
    engine = image.engine or engine_of_words(words)
    if not engine or (image.engine and words and not _is_arguments(words)):
        return
    takes = engine in _POSITIONAL
    yield Launch(
        engine=engine, words=tuple(words), variables=seen, line=run.line, container=held, takes_model=takes
    )


def _is_arguments(words: Sequence[str]) -> bool:
    """Whether the first word can be an argument of an engine's own entrypoint: an option or a model."""
    first = words[0]
    return is_option(first) or "/" in first or has_mark(first) or any(is_option(word) for word in words[1:3])


def engine_of_words(words: Sequence[str]) -> str:
    """The engine whose arguments these are, where no image and no program says it."""
    names = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in words if is_option(word)}
    if names & {"model-path"} and names & {"tp", "tp-size", "mem-fraction-static", "context-length"}:
        return "sglang"
    own = (
        "tensor-parallel-size", "max-model-len", "gpu-memory-utilization", "max-num-seqs", "kv-cache-dtype",
        "enforce-eager", "max-num-batched-tokens", "enable-prefix-caching", "kv-transfer-config", "served-model-name",
    )  # fmt: skip
    known = {name for name in names if any(one.startswith(name) for one in own if len(name) > 8)}
    if "model" in names and known:
        return "vllm"
    return "vllm" if len(known) >= 2 else ""
