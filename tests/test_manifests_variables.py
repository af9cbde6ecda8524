"""Variables by the rules of their own worlds, against the shell itself where there is one."""

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.manifests.files import Source, read_files
from kvcore.manifests.shell import runs_of
from kvcore.manifests.unknowns import has_mark, mark, names_in, shown
from kvcore.manifests.variables import env_file, of_compose, of_kubernetes, of_make

NAMES = st.sampled_from(["A", "B", "LONG_NAME"])
PLAIN = st.text("abz09/.-_ ", max_size=8)
VALUES = st.dictionaries(NAMES, PLAIN, max_size=3)


def templates(names: st.SearchStrategy[str], plain: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts with Compose's forms, one inside another."""
    return st.recursive(
        plain,
        lambda inner: st.one_of(
            st.builds(lambda name: f"${{{name}}}", names),
            st.builds(
                lambda name, how, word: f"${{{name}{how}{word}}}",
                names,
                st.sampled_from([":-", "-", ":+", "+"]),
                inner,
            ),
            st.builds(lambda one, other: one + other, inner, inner),
        ),
        max_leaves=6,
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="no shell here")
@given(text=templates(NAMES, st.text("abz09/._", max_size=5)), values=VALUES)
@settings(max_examples=60, deadline=None)
def test_a_shell_expands_alike(text: str, values: dict[str, str]) -> None:
    """What is read of `${A:-b}` and its like is what bash makes of it; an unset variable is empty "
    "there, a mark here."""
    ran = subprocess.run(
        ["bash", "-c", f'printf %s "{text}"'], env=values, capture_output=True, text=True, check=True
    ).stdout
    (run,) = runs_of(f'serve "{text}"', values)
    read = "".join(run.words[1:])
    for name in names_in(read):
        assert name not in values
        read = read.replace(mark(name), "")
    assert " ".join(read.split()) == " ".join(ran.split())


@given(text=templates(NAMES, st.text("abz09/._", max_size=5)), values=VALUES)
def test_compose_expands_as_a_shell_does(text: str, values: dict[str, str]) -> None:
    read = of_compose(text, values)
    assert not (set(names_in(read)) & values.keys())
    (run,) = runs_of(f'serve "{text}"', values)
    assert " ".join(shown(read).split()) == " ".join(shown("".join(run.words[1:])).split())


def test_an_alternative_in_quotes_is_one_word() -> None:
    runs = [
        next(runs_of(f"serve {text}", {"A": "0 0"})).words[1:] for text in ('"${A:+x${A}}"', "${A:+x${A}}")
    ]
    assert runs == [("x0 0",), ("x0", "0")]


@given(values=st.dictionaries(NAMES, PLAIN, min_size=1, max_size=3), word=PLAIN)
def test_what_is_defined_is_filled_in_and_the_rest_is_named(values: dict[str, str], word: str) -> None:
    for world, text in ((of_kubernetes, "{}$({}){}"), (of_make, "{}$({}){}"), (of_compose, "{}${{{}}}{}")):
        for name in ("A", "B", "LONG_NAME"):
            read = world(text.format(word, name, word), values)
            assert (name in values) is not has_mark(read)
            assert shown(read).startswith(word)
            if name in values:
                assert read == word + values[name] + word


@given(text=st.text(max_size=200))
def test_no_text_makes_a_mark_of_its_own(text: str) -> None:
    found = read_files([Source("a.sh", "vllm serve a/b --served-model-name x " + text.replace("$", ""))])
    for one in found.workloads:
        assert not has_mark(repr(one))


def test_doubled_dollar_signs() -> None:
    assert of_compose("$$A ${A}", {"A": "1"}) == "$A 1"
    assert of_kubernetes("$$(A) $(A)", {"A": "1"}) == "$(A) 1"
    assert of_make("$$(A) $(A)", {"A": "1"}) == "$(A) 1"


def test_an_env_file() -> None:
    assert env_file("# no=1\nA=1\n\nexport B='x # y'\nC=z # no\nD\n") == {"A": "1", "B": "x # y", "C": "z"}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('A=(x "y z"); A+=(w); v "${A[@]}" ${#A[@]}', ("v", "x", "y z", "w", "3")),
        ("A=(x y z); I=1; v ${A[$I]} ${A[I+1]} ${A[-3]} ${A[9]} ${A[9]:-u}", ("v", "y", "z", "x", "u")),
        ("N=$((2 * 4)); v $N ${N%8}x", ("v", "8", "x")),
        ("P=/a/b.c; v ${P##*/} ${P%/*} ${P/a/x}", ("v", "b.c", "/a", "/x/b.c")),
        ("f() { v $1 \"$2\"; }; f 1 '2 3'", ("v", "1", "2 3")),
        ("if [ -z \"$U\" ]; then v a; else v b; fi", ("v", "a")),
        ("if [[ $X == h* && -n $X ]]; then v a; else v b; fi", ("v", "a")),
        ("case $X in a|hello) v 1 ;; *) v 2 ;; esac", ("v", "1")),
        ("T=$(cat <<'EOF'\nx\nEOF\n); v \"$T\"", ("v", "x")),
        ("v a \\\n  # gone\nv2 b", ("v", "a")),
        ("v ${U:+--never} ${X:+--now}", ("v", "--now")),
        ("set -- p q; shift; v \"$@\"", ("v", "q")),
        ("v --json '{\"a\": 1}' \"{\\\"b\\\": 2}\"", ("v", "--json", '{"a": 1}', '{"b": 2}')),
    ],
)  # fmt: skip
def test_a_script_is_followed(script: str, words: tuple[str, ...]) -> None:
    assert next(run.words for run in runs_of(script, {"X": "hello"}) if run.words[0] == "v") == words


def test_what_two_branches_set_differently_is_undefined() -> None:
    runs = list(runs_of("if nvidia-smi; then TP=8; E=1; else TP=4; E=1; fi; v $TP $E", {}))
    assert runs[-1].words == ("v", mark("TP"), "1")


def test_an_undefined_value_is_named_and_never_guessed() -> None:
    (one,) = read_files(
        [Source("run.sh", "vllm serve $MODEL -tp $1 --max-model-len $(size) $MORE")]
    ).workloads
    assert one.model is None
    assert one.request == {"tensor_parallel_size": None, "max_model_len": None}
    assert {"MODEL", "1", "$(size)"} <= set(one.undefined)
    assert one.open_arguments == ("MORE",)
