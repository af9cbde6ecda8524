"""Shell completion: a script for bash, zsh or fish, made of the commands themselves.

Models and cards are those of the catalogue at the time the script is made.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from kvcore import catalogue
from kvcore.cli.words import OWN_SPELLINGS, flags_of_words
from kvcore.flags import Kind

_CARDS: Final = ("--accelerators", *OWN_SPELLINGS["accelerator"])
_MODELS: Final = ("model", "--models")


class Option(Struct, frozen=True, kw_only=True):
    """One option of a command."""

    spellings: tuple[str, ...]
    text: str
    takes_value: bool
    values: tuple[str, ...] = ()


def script(shell: str, parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for a shell.

    Example:
        >>> parser = argparse.ArgumentParser(prog="kvcore")
        >>> print(script("fish", {"schema": parser}).splitlines()[1])
        complete -c kvcore -f
    """
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](parsers)
    return "\n".join(lines) + "\n"


def options_of(parser: argparse.ArgumentParser) -> list[Option]:
    """The options of a command that its help shows."""
    choices = {words[0]: flag.common or flag.choices for flag, words in flags_of_words()}
    switches = {one for flag, words in flags_of_words() if flag.kind is Kind.BOOLEAN for one in words}
    found = []
    for action in parser._actions:
        if not action.option_strings or action.help is argparse.SUPPRESS:
            continue
        own = tuple(action.option_strings)
        takes = action.nargs != 0 and not switches.intersection(own)
        values = tuple(map(str, action.choices or ())) or next(
            (choices[word] for word in own if word in choices), ()
        )
        if set(own) & set(_CARDS):
            values = _cards()
        elif set(own) & set(_MODELS):
            values = catalogue.model_ids()
        text = (action.help or "").split(". ")[0].split(": ")[0][:60]
        found.append(Option(spellings=own, text=text.replace("%%", "%"), takes_value=takes, values=values))
    return found


def _cards() -> tuple[str, ...]:
    return tuple(card.id for card in catalogue.load_accelerators())


def _positional(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """Words that stand for a command's arguments; files complete besides."""
    found: list[str] = []
    for action in parser._actions:
        if not action.option_strings:
            found += map(str, action.choices or ())
            found += catalogue.model_ids() if action.dest in _MODELS else ()
    return tuple(found)


def _bash(parsers: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield '# kvcore for bash: eval "$(kvcore completion bash)" in ~/.bashrc'
    yield "_kvcore() {"
    yield "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= files="
    yield f"  local cards={_quoted(' '.join(_cards()))}"
    yield f"  local models={_quoted(' '.join(catalogue.model_ids()))}"
    yield "  if [ $COMP_CWORD -eq 1 ]; then"
    yield f'    COMPREPLY=($(compgen -W {_quoted(" ".join((*parsers, "--version", "--help")))} -- "$word")); return'
    yield "  fi"
    yield "  case ${COMP_WORDS[1]} in"
    for name, parser in parsers.items():
        options = options_of(parser)
        yield f"  {name})"
        yield "    case $before in"
        for option in options:
            if option.values:
                yield f"      {'|'.join(option.spellings)}) words={_listed(option.values)} ;;"
        plain = [
            word
            for option in options
            if option.takes_value and not option.values
            for word in option.spellings
        ]
        if plain:
            yield f'      {"|".join(plain)}) COMPREPLY=($(compgen -f -- "$word")); return ;;'
        long = " ".join(one.spellings[0] for one in options)
        words = _positional(parser)
        yield f"      *) case $word in -*) words={_quoted(long)} ;; *) words={_listed(words)} files=1 ;; esac ;;"
        yield "    esac"
        yield "    ;;"
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield '  if [ -n "$files" ]; then COMPREPLY+=($(compgen -f -- "$word")); fi'
    yield "}"
    yield "complete -o filenames -F _kvcore kvcore"


def _listed(values: tuple[str, ...]) -> str:
    """Values for `compgen -W`, those of the catalogue by the variable that has them."""
    if values == _cards():
        return "$cards"
    return "$models" if values == catalogue.model_ids() else _quoted(" ".join(values))


def _zsh(parsers: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield "#compdef kvcore"
    yield "# kvcore for zsh: kvcore completion zsh > ~/.zfunc/_kvcore, with fpath+=~/.zfunc before compinit"
    yield "_kvcore() {"
    yield f"  local -a cards=({' '.join(map(_quoted, _cards()))})"
    yield f"  local -a models=({' '.join(map(_quoted, catalogue.model_ids()))})"
    yield f"  if (( CURRENT == 2 )); then compadd -- {' '.join(parsers)} --version --help; return; fi"
    yield "  shift words; (( CURRENT-- ))"
    yield "  case $words[1] in"
    for name, parser in parsers.items():
        yield f"  {name})"
        specs = []
        for option in options_of(parser):
            says = _quoted(
                f"[{_clean(option.text)}]" + (f":value:{_action(option)}" if option.takes_value else "")
            )
            specs += [f"{word}{says}" for word in option.spellings]
        rest = _positional(parser)
        extra = "'*:argument:_files'"
        if rest:
            values = "$models" if rest == catalogue.model_ids() else "(" + " ".join(rest) + ")"
            extra = f'"*:argument:({values})"' if values == "$models" else f"'*:argument:{values}'"
        yield f"    _arguments -s {' '.join(specs)} {extra} ;;"
    yield "  esac"
    yield "}"
    yield '_kvcore "$@"'


def _action(option: Option) -> str:
    if not option.values:
        return "_files"
    return "(" + " ".join(option.values) + ")"


def _clean(text: str) -> str:
    """A text without what a shell would read."""
    return text.translate(str.maketrans("[]:", "(),", "'`\""))


def _fish(parsers: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield "# kvcore for fish: kvcore completion fish > ~/.config/fish/completions/kvcore.fish"
    yield "complete -c kvcore -f"
    yield f"complete -c kvcore -n __fish_use_subcommand -a {_quoted(' '.join(parsers))}"
    yield "complete -c kvcore -n __fish_use_subcommand -l version -l help"
    for name, parser in parsers.items():
        here = f"complete -c kvcore -n '__fish_seen_subcommand_from {name}'"
        words = _positional(parser)
        yield f"{here} -F" + (f" -a {_quoted(' '.join(words))}" if words else "")
        for option in options_of(parser):
            spelled = []
            for word in option.spellings:
                kind = "-l" if word.startswith("--") else "-s" if len(word) == 2 else "-o"
                spelled.append(f"{kind} {word.lstrip('-')}")
            value = (
                f" -x -a {_quoted(' '.join(option.values))}"
                if option.values
                else " -r"
                if option.takes_value
                else ""
            )
            yield f"{here} {' '.join(spelled)}{value} -d {_quoted(_clean(option.text))}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "") + "'"
