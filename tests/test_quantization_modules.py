"""Module lists against the plain reading of each method's rule, entry by entry."""

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from kvcore.model.quantization.modules import (
    SHORT_LIST,
    FragmentList,
    Kind,
    ModuleName,
    NameList,
    PatternList,
    PrefixIndex,
    WildcardList,
    beginnings,
    component_runs,
)
from kvcore.model.quantization.patterns import Allowance

NAMES = st.text("ab.1", max_size=5)
LONG = [f"never.in.it.{number}" for number in range(SHORT_LIST + 1)]
"""Entries that make any list a long one."""


def module(name: str, *parts: str, kind: Kind = Kind.LINEAR) -> ModuleName:
    return ModuleName(name=name, parts=parts, kind=kind)


class TestNames:
    def test_a_fused_module_is_listed_when_all_of_its_parts_are(self):
        fused = module("a.qkv_proj", "a.q_proj", "a.k_proj", "a.v_proj")
        for names, expected in (
            ({"a.q_proj", "a.k_proj", "a.v_proj"}, True),
            ({"a"}, True),
            ({"a.qkv_proj"}, True),
            ({"a.q_proj", "a.k_proj"}, False),
        ):
            assert NameList(names, Allowance()).covers(fused) is expected

    def test_experts_are_listed_by_one_of_them(self):
        experts = module("model.layers.1.mlp.experts", kind=Kind.EXPERTS)
        assert NameList(["model.layers.1.mlp.experts.0.up_proj"], Allowance()).covers(experts)
        assert not NameList(["model.layers.11.mlp.experts.0.up_proj"], Allowance()).covers(experts)


class TestFragments:
    @given(NAMES, st.lists(NAMES, max_size=4))
    def test_a_long_list_answers_as_one_that_is_read_through(self, name, fragments):
        expected = any(fragment in name for fragment in fragments)
        assert FragmentList(fragments, Allowance()).are_in(name) is expected
        assert FragmentList([*fragments, *LONG], Allowance()).are_in(name) is expected

    def test_all_parts_must_contain_one(self):
        listed = FragmentList(["gate"], Allowance())
        assert listed.covers(module("mlp.gate_up_proj"))
        assert not listed.covers(module("mlp.gate_up_proj", "mlp.gate_proj", "mlp.up_proj"))


class TestWildcards:
    def test_by_name_beginning_and_wildcard(self):
        gate = module("model.layers.3.mlp.gate")
        assert WildcardList(["*.mlp.gate"], Allowance()).covers(gate)
        assert WildcardList(["model.layers.3.*"], Allowance()).covers(gate)
        assert not WildcardList(["model.layers.30.*", "lm_head"], Allowance()).covers(gate)

    @given(NAMES, st.text("ab.1*?[]!-", max_size=6).map(lambda text: text + "*"))
    def test_a_wildcard_matches_as_fnmatch_does(self, name, pattern):
        expected = fnmatchcase(name, pattern) or pattern in name
        assert WildcardList([pattern], Allowance()).covers(module(name, "x")) is expected


class TestPatterns:
    def test_patterns_match_from_the_start_and_names_as_a_whole(self):
        down = module("model.layers.3.mlp.down_proj")
        assert PatternList(["re:.*mlp.*"], Allowance()).covers(down)
        assert PatternList(["model.layers.3.mlp.down_proj"], Allowance()).covers(down)
        assert not PatternList(["re:mlp.*", "down_proj"], Allowance()).covers(down)

    def test_experts_match_by_the_projections_of_the_first(self):
        experts = module("model.layers.3.mlp.experts", kind=Kind.EXPERTS)
        for pattern, expected in (
            (r"re:.*experts\.\d+\.(gate|up|down)_proj", True),
            (r"re:.*experts\.0\.(gate|up|down)_proj", True),
            (r"re:.*experts\.0\.gate_proj", False),
        ):
            assert PatternList([pattern], Allowance()).covers(experts) is expected


class TestPieces:
    @given(st.lists(NAMES, unique=True), NAMES)
    def test_names_by_their_beginning_in_their_order(self, names, prefix):
        expected = [name for name in names if name.startswith(prefix)]
        assert list(PrefixIndex(names).beginning_with(prefix)) == expected

    @given(NAMES, NAMES)
    def test_beginnings_and_runs_of_components(self, name, other):
        assert (other in set(beginnings(name))) is name.startswith(other)
        assert (other in set(component_runs(name))) is (f".{other}." in f".{name}.")
