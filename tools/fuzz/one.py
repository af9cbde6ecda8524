"""One target under atheris: `python -m tools.fuzz.one TARGET CORPUS... [libFuzzer flags]`.

Leaves at the first input that the target neither answers nor refuses by code, or that costs more than it may.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import parse_qsl

import atheris

with atheris.instrument_imports(include=["kvcore"]):
    from tools.fuzz import mutation, packing, seeds, targets

MAX_CPU_SECONDS = 5.0
"""CPU limit of one input, instrumented: several times its cost without."""


class TooSlowError(AssertionError):
    """An input that costs more than it may."""


def checked(target: targets.Target) -> Callable[[bytes], None]:
    """`target` with its cost kept within the limit; a second try separates cold caches from slow input."""

    def run(data: bytes) -> None:
        for is_last in (False, True):
            start = time.process_time()
            target(data)
            if time.process_time() - start <= MAX_CPU_SECONDS:
                return
            if is_last:
                raise TooSlowError

    return run


def mutator(name: str) -> Callable[[bytes, int, int], bytes]:
    """Mostly changes that mean something to the target; libFuzzer's own for the rest."""
    own = meaningful(name)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.1:
            return bytes(atheris.Mutate(data, max_size))
        made = own(data, chance)
        return made if len(made) <= max_size else data

    return mutate


def meaningful(name: str) -> Callable[[bytes, random.Random], bytes]:
    """The mutation of inputs of a target."""
    given = seeds.seeds_of(name)
    if name in ("config", "contract", "request"):
        documents = [json.loads(data) for data in given if data.startswith(b"{") and data.endswith(b"}")]
        if name != "config":
            documents += [{"config": config} for config in seeds.configs()]
        words = mutation.vocabulary_of(documents)
        return lambda data, chance: mutation.mutated_json(data, chance, words)
    if name == "link":
        pairs = [pair for data in given for pair in parse_qsl(data.decode("utf-8", "replace"))]
        pairs += [("config", json.dumps(config)) for config in seeds.configs()[::10]]
        return lambda data, chance: mutation.mutated_link(data, chance, pairs)
    if name in packing.PACKINGS:
        return lambda data, chance: packing.mutated_packed(name, data, chance, given)
    if name in ("benchmark", "replay_case"):
        words = mutation.vocabulary_of([json.loads(data) for data in given])
        return lambda data, chance: mutation.mutated_json(data, chance, words)
    if name in ("trace", "request_log"):
        words = mutation.vocabulary_of([json.loads(line) for data in given for line in _objects(data)])
        return lambda data, chance: mutation.mutated_lines(data, chance, words, given)
    return lambda data, chance: mutation.mutated_text(data, chance, given)


def _objects(data: bytes) -> Iterator[bytes]:
    """Its lines that are objects of JSON."""
    for line in data.split(b"\n"):
        if line.startswith(b"{"):
            with suppress(ValueError, RecursionError):
                json.loads(line)
                yield line


def main() -> None:
    """Runs until a limit of libFuzzer's flags, or a finding."""
    name, program = sys.argv[1], os.environ.get("FUZZ_PROGRAM", sys.argv[0])
    atheris.Setup([program, *sys.argv[2:]], checked(targets.TARGETS[name]), custom_mutator=mutator(name))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
