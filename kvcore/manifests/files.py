"""Files given together -> the workloads in them: what each file is, and what one names in another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from kvcore.base.errors import ManifestError
from kvcore.manifests.build import Facts, built
from kvcore.manifests.cards import card_in
from kvcore.manifests.hcl_blocks import hcl
from kvcore.manifests.images import image_of
from kvcore.manifests.kserve import merged
from kvcore.manifests.kubernetes import workloads as kubernetes
from kvcore.manifests.nodes import Map, Row, Text, documents, walk
from kvcore.manifests.plain_yaml import anywhere, structures
from kvcore.manifests.pods import Found, Input, container_found, distinct
from kvcore.manifests.programs import Scripts, script_launches
from kvcore.manifests.python_source import python_workloads
from kvcore.manifests.shell import Script
from kvcore.manifests.shell_words import words_of
from kvcore.manifests.templates import is_template, rendered
from kvcore.manifests.units import makefile, profile, units
from kvcore.manifests.unknowns import unmarked
from kvcore.manifests.variables import env_file, of_compose
from kvcore.manifests.workload import Other, Workload, whole

MAX_BYTES: Final = 4 << 20
"""Largest file: a manifest of thousands of documents; what is larger is no file that somebody wrote."""
MAX_FILES: Final = 2000
MAX_WORKLOADS: Final = 4096
MAX_FOUND_IN_DOCUMENT: Final = 512

_VALUES: Final = re.compile(r"values|(?:^|[._-])vars|defaults", re.IGNORECASE)
"""Names of files that hold what templates are filled in with."""
_ENV_LINE: Final = re.compile(r"\s*(?:#.{0,2000}|(?:export\s+)?[A-Za-z_]\w{0,80}\s*=.{0,8000}|)")
_SECTIONS: Final = re.compile(
    r"^\[(?:Unit|Service|Container|Install|program:[^\]\n]{1,80}|supervisord)\]", re.MULTILINE
)
_PYTHON: Final = re.compile(r"^(?:from\s+[\w.]{1,80}\s+import\s|import\s+[\w.]{1,80})", re.MULTILINE)
_YAML_KEY: Final = re.compile(
    r"^(?:- )?['\"]?[A-Za-z_$.][\w.$/ -]{0,80}['\"]?\s*:(?:\s|$)|^---", re.MULTILINE
)
_HCL: Final = re.compile(
    r"^(?:resource|module|job|locals|variable|provider)\b[^\n=:]{0,200}\{\s*$", re.MULTILINE
)
_KINDS: Final = {
    ".py": "python", ".tf": "hcl", ".hcl": "hcl", ".nomad": "hcl", ".mk": "make", ".sh": "shell", ".bash": "shell",
    ".sbatch": "shell", ".slurm": "shell", ".yaml": "yaml", ".yml": "yaml", ".json": "yaml", ".service": "units",
    ".container": "units", ".ini": "units", ".env": "env",
}  # fmt: skip


class Source(Struct, frozen=True):
    """A file: its name, and its bytes or text."""

    name: str
    content: bytes | str


class Problem(Struct, frozen=True, kw_only=True):
    """A file, or a document in it, that cannot be read."""

    file: str
    line: int
    error: ManifestError


class Read(Struct, frozen=True, kw_only=True):
    """What files hold."""

    workloads: tuple[Workload, ...]
    others: tuple[Other, ...]
    problems: tuple[Problem, ...]


def read_files(sources: Iterable[Source]) -> Read:
    """The workloads of files that belong together; what cannot be read is named and loses nothing else.

    Example:
        >>> found = read_files([Source("run.sh", "vllm serve Qwen/Qwen3-8B -tp ${TP:-2}")])
        >>> found.workloads[0].model, found.workloads[0].request
        ('Qwen/Qwen3-8B', {'tensor_parallel_size': 2})
    """
    problems: list[Problem] = []
    texts: list[tuple[str, str]] = []
    for source in list(sources)[:MAX_FILES]:
        try:
            texts.append((source.name, _text(source)))
        except ManifestError as error:
            problems.append(Problem(file=source.name, line=0, error=error))
    scripts = Scripts({_base(name): text for name, text in texts})
    given = Input(scripts=scripts, python=python_workloads, structures=structures, anywhere=anywhere)
    kinds = {name: kind_of(name, text) for name, text in texts}
    _companions(texts, kinds, given)
    workloads: list[Workload] = []
    others: list[Other] = []
    for name, text in texts:
        for found in _found(name, text, kinds[name], given, problems, is_alone=len(texts) == 1):
            if isinstance(found, Workload):
                workloads.append(found)
            else:
                others.append(found)
            if len(workloads) >= MAX_WORKLOADS:
                break
    used = _scripts_used(workloads, texts)
    return Read(
        workloads=tuple(one for one in workloads if one.place.file not in used or len(used) == len(texts)),
        others=tuple(others),
        problems=tuple(problems),
    )


READ: Final = (".yaml", ".yml", ".json", ".sh", ".bash", ".sbatch", ".slurm", ".py", ".tf", ".hcl", ".nomad",
               ".service", ".container", ".ini", ".conf", ".env", ".mk", ".tpl", ".j2")  # fmt: skip
"""Endings of files that are read in a folder."""


def files_under(path: str) -> Iterator[str]:
    """The file itself, or the files of a folder that can hold a workload, by name; hidden folders are left out."""
    folder = Path(path)
    if path == "-" or not folder.is_dir():
        yield path
        return
    for found in islice(sorted(folder.rglob("*")), MAX_FILES):
        parts = found.relative_to(folder).parts
        is_hidden = any(part.startswith(".") and part != ".env" for part in parts)
        if found.is_file() and not is_hidden and (found.suffix in READ or found.name in ("Makefile", ".env")):
            yield str(found)


def _text(source: Source) -> str:
    size = len(source.content)
    if size > MAX_BYTES:
        raise ManifestError("manifest-too-large", limit=f"{MAX_BYTES >> 20} MiB")
    if isinstance(source.content, str):
        return unmarked(source.content)
    if b"\0" in source.content[:4096]:
        raise ManifestError("manifest-not-text")
    return unmarked(source.content.decode("utf-8-sig", "replace").replace("\r\n", "\n"))


def _base(name: str) -> str:
    return name.replace("\\", "/").rsplit("/", 1)[-1]


def kind_of(name: str, text: str) -> str:
    """What a file is: by its name, else by how it begins.

    Example:
        >>> kind_of("a.yaml", ""), kind_of("-", "services:\\n  a: {}"), kind_of("x", "vllm serve a/b --x")
        ('yaml', 'yaml', 'shell')
    """
    base = _base(name).lower()
    stem = base.removesuffix(".j2").removesuffix(".tpl").removesuffix(".tmpl").removesuffix(".txt")
    ending = f".{stem.rpartition('.')[2]}"
    if stem.startswith(("makefile", "gnumakefile")) or stem.endswith(".makefile"):
        return "make"
    if stem.startswith(("dockerfile", "containerfile")) or ending == ".dockerfile":
        return "dockerfile"
    if stem.startswith(".env") or stem.endswith(".env"):
        return "env"
    if ending in _KINDS:
        return _KINDS[ending]
    return _kind_of_text(text)


def _kind_of_text(text: str) -> str:
    head = text[:20_000]
    if head.startswith("#!"):
        return "python" if "python" in head.split("\n", 1)[0] else "shell"
    if _SECTIONS.search(head):
        return "units"
    if _HCL.search(head):
        return "hcl"
    lines = [line for line in head.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    if lines and all(_ENV_LINE.fullmatch(line) for line in lines):
        return "env"
    if head.lstrip().startswith("{") or (lines and _YAML_KEY.match(lines[0])):
        return "yaml"
    if _PYTHON.search(head):
        return "python"
    return "shell"


def _companions(texts: Sequence[tuple[str, str]], kinds: dict[str, str], given: Input) -> None:
    """Takes from every file what others may name: documents, variables, values of templates."""
    env: dict[str, str] = {}
    values = Map()
    given.templates = frozenset(_folder(name) for name, text in texts if is_template(text))
    for name, text in texts:
        if kinds[name] == "env":
            env |= env_file(text)
        elif kinds[name] == "yaml" and given.templates and _fills_in(name, given):
            for _, node in documents(text):
                held = merged(values, node) if isinstance(node, Map) and "kind" not in node else None
                values = held if isinstance(held, Map) else values
    given.env, given.values = env, values
    for name, text in texts if len(texts) > 1 else ():
        for _, node in documents(rendered(text, values)) if kinds[name] == "yaml" else ():
            for one in _flat(node) if isinstance(node, Map) else ():
                given.add(one)


def _flat(node: Map) -> Iterator[Map]:
    yield node
    for one in node.get("items", ()) if isinstance(node.get("items"), Row) else ():
        if isinstance(one, Map):
            yield one


def _found(
    name: str, text: str, kind: str, given: Input, problems: list[Problem], *, is_alone: bool
) -> Iterator[Found]:
    given.file, given.text = name, text
    facts = Facts(kind=kind, file=name, line=1)
    try:
        if kind == "yaml":
            yield from _yaml(name, text, given, problems)
        elif kind == "python":
            yield from python_workloads(text, facts, given)
        elif kind == "hcl":
            yield from hcl(text, given)
        elif kind == "units":
            yield from units(rendered(text, given.values), given)
        elif kind == "make":
            yield from makefile(text, given)
        elif kind == "dockerfile":
            yield from dockerfile(text, given)
        elif kind == "env":
            if is_alone:
                yield from profile(text, given)
        else:
            yield from shell(rendered(text, given.values) if "{{" in text else text, given)
    except ManifestError as error:
        line = error.params.get("line", "1")
        problems.append(Problem(file=name, line=int(line) if line.isdigit() else 1, error=error))


_PLAY: Final = re.compile(r"^[ -]{0,8}(?:hosts|tasks):", re.MULTILINE)


def _variables_of_plays(text: str, values: Map) -> Map:
    """Values of templates with the `vars` of Ansible's plays and tasks in the same file behind them."""
    found = Map()
    for _, node in documents(text) if is_template(text) and _PLAY.search(text) else ():
        for key, one in walk(node):
            if key == "vars" and isinstance(one, Map):
                found.update({name: value for name, value in one.items() if isinstance(value, str)})
    known = {name: value for name, value in found.items() if not is_template(value)}
    return Map({**known, **values})


def _yaml(name: str, text: str, given: Input, problems: list[Problem]) -> Iterator[Found]:
    filled = rendered(text, _variables_of_plays(text, given.values))
    nodes: list[Map | Row] = []
    for line, node in documents(filled):
        if isinstance(node, ManifestError):
            at_line = node.params.get("line", str(line))
            problems.append(Problem(file=name, line=int(at_line) if at_line.isdigit() else line, error=node))
        elif isinstance(node, Map | Row):
            nodes.append(node)
            for one in _flat(node) if isinstance(node, Map) else ():
                given.add(one)
    nodes.sort(key=lambda node: isinstance(node, Map) and "ServingRuntime" in str(node.get("kind")))
    for node in nodes:  # a runtime behind the service that names it
        yield from islice(_document(node, given), MAX_FOUND_IN_DOCUMENT)


def _document(node: Map | Row, given: Input) -> Iterator[Found]:
    if isinstance(node, Row):
        found = [each for one in node if isinstance(one, Map) for each in structures(one, given)]
        yield from found
        if not any(isinstance(one, Workload) for one in found):
            yield from anywhere(node, given)
        return
    if "apiVersion" in node and "kind" in node:
        found = list(kubernetes(node, given))
        yield from found
        return
    if _fills_in(given.file, given) and "servingEngineSpec" not in node:
        return
    yield from structures(node, given)


def _folder(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[0]


def _fills_in(name: str, given: Input) -> bool:
    """Whether a file only holds the values of templates that lie beside it or below it."""
    folder = _folder(name)
    return _VALUES.search(_base(name)) is not None and any(one.startswith(folder) for one in given.templates)


def shell(text: str, given: Input) -> Iterator[Found]:
    """The engines of a shell script, with what a scheduler's directives say."""
    directives = _directives(text)
    facts = Facts(kind="slurm" if directives else "shell", file=given.file, line=1, installs=text)
    facts.card, facts.gpus = _scheduled(directives)
    known = _slurm_variables(directives, facts.gpus) if directives else {}
    if _RAY_HEAD.search(_COMMENT.sub("", text[:200_000])):
        facts.nodes = whole(known.get("SLURM_NNODES")) or 1
    launched = script_launches(text, known, given.scripts, line=1)
    for launch in distinct(launched) if launched else ():
        if launch.engine:
            yield built(launch, facts, given.scripts)
    yield from _held_documents(text, known, given)


_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
_RAY_HEAD: Final = re.compile(r"\bray\s{1,8}start\s{1,8}[^\n]{0,200}--(?:head|address)")
"""What makes one cluster of a job's nodes, over which an engine spreads its ranks."""
_HELD: Final = re.compile(r"^(?:apiVersion|services):", re.MULTILINE)
_QUOTED: Final = re.compile(r"<<-?\s{0,4}['\"\\\\]")
"""A here-document whose text is taken as it is."""


def _held_documents(text: str, known: dict[str, str], given: Input) -> Iterator[Found]:
    """The engines of manifests that a script writes or applies from a here-document."""
    if "<<" not in text or _HELD.search(text) is None:
        return
    for run in Script(text, known, None, 1).read():
        if run.document is None or _HELD.search(run.document) is None:
            continue
        is_quoted = _QUOTED.search(text) is not None
        filled = run.document if is_quoted else of_compose(run.document, run.variables)
        for _, node in documents(filled, run.line + 1):
            if isinstance(node, Map):
                given.add(node)
                yield from _document(node, given)


_DIRECTIVE: Final = re.compile(r"^#(?:SBATCH|PBS|BSUB|\$)\s+(.{1,400})$", re.MULTILINE)
_OPTION: Final = re.compile(r"(--?[\w-]{1,40})(?:[= ]\s*(\S{1,200}))?")
_GRES: Final = re.compile(r"gpu(?::([A-Za-z][\w.-]{0,60}))?(?::(\d{1,4}))?$")
_NGPUS: Final = re.compile(r"ngpus(?:_per_node)?=(\d{1,4})")


def _directives(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in _DIRECTIVE.findall(text[:200_000]):
        option = _OPTION.match(line.strip())
        if option is not None:
            found[option[1].lstrip("-")] = (option[2] or "").strip("'\"")
    return found


def _slurm_variables(directives: dict[str, str], gpus: int | str | None) -> dict[str, str]:
    """Variables that Slurm sets by the directives of a script.

    Source: Slurm's sbatch, "Output environment variables".
    """
    nodes = directives.get("nodes") or directives.get("N")
    found = {name: nodes for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES") if nodes and nodes.isdigit()}
    if isinstance(gpus, int):
        found["SLURM_GPUS_ON_NODE"] = str(gpus)
    stated = directives.get("gpus-per-node", "")
    if stated.isdigit():
        found["SLURM_GPUS_PER_NODE"] = stated
    for option, name in (("cpus-per-task", "SLURM_CPUS_PER_TASK"), ("ntasks", "SLURM_NTASKS")):
        if directives.get(option, "").isdigit():
            found[name] = directives[option]
    return found


def _scheduled(directives: dict[str, str]) -> tuple[str | None, int | None]:
    """The card and the cards of a node that a Slurm script asks for.

    Source: Slurm's sbatch (--gres, -G/--gpus, --gpus-per-node, --constraint); OpenPBS, pbs_resources (ngpus).
    """
    chunk = _NGPUS.search(directives.get("l", ""))
    if chunk is not None:
        return None, int(chunk[1])
    for key in ("gres", "gpus-per-node", "gpus", "G"):
        text = directives.get(key)
        if text is None:
            continue
        found = _GRES.search(text if text.startswith("gpu") else f"gpu:{text}")
        if found is None:
            continue
        constraint = directives.get("constraint") or directives.get("C")
        card = found[1] and text
        if card and constraint and re.search(r"\d", constraint):
            card = f"{card}, constraint {constraint}"
        named = card or (constraint if constraint and card_in(constraint) else None)
        return named, int(found[2]) if found[2] else 1
    return None, None


def dockerfile(text: str, given: Input) -> Iterator[Found]:
    """The engine that an image of one's own starts."""
    env: dict[str, str] = {}
    image, words, line_found = "", {"ENTRYPOINT": [""][:0], "CMD": [""][:0]}, 1
    joined = re.sub(r"\\\n", " ", text)
    for number, line in enumerate(joined.split("\n"), 1):
        word, _, rest = line.strip().partition(" ")
        if word.upper() == "FROM":
            image = rest.split(" ")[0]
        elif word.upper() in ("ENV", "ARG"):
            for pair in words_of(rest) if "=" in rest else [rest.replace(" ", "=", 1)]:
                name, is_set, value = pair.partition("=")
                env |= {name: value} if is_set else {}
        elif word.upper() in words:
            node = next((one for _, one in documents(rest)), None) if rest.startswith("[") else None
            words[word.upper()] = [str(one) for one in node] if isinstance(node, Row) else ["sh", "-c", rest]
            line_found = number
    command = [*words["ENTRYPOINT"], *words["CMD"]]
    facts = Facts(
        kind="dockerfile", file=given.file, line=line_found, image=image if image_of(image).engine else None
    )
    if not command:
        return
    container = Map({"command": Row(Text(word) for word in command), "name": Text("image")})
    found = container_found(container, facts, env, given)
    yield from (one for one in found if isinstance(one, Workload))


def _scripts_used(workloads: Sequence[Workload], texts: Sequence[tuple[str, str]]) -> set[str]:
    """Files of the input that other files start: what they hold is read there."""
    if len(texts) < 2:
        return set()
    names = {_base(name): name for name, _ in texts}
    used: set[str] = set()
    for name, text in texts:
        for base, full in names.items():
            is_script = base.endswith((".sh", ".bash", ".py", ".config.yaml", ".runtime.yaml"))
            if full != name and is_script and base in text:
                used.add(full)
    readers = {one.place.file for one in workloads} - used
    return used if readers else set()
