"""What became of the flags of older guides."""

import pytest
from packaging.version import Version

from kvcore.engine.vllm.former_flags import FORMER_FLAGS, former_flag
from kvcore.errors import CatalogueError

ROW = {"flag": "--x", "seen": "0.6.6", "gone": "0.11.0", "source": "s"}


def test_swap_space_is_in_0_11_and_not_in_0_19() -> None:
    former = former_flag("--swap-space")
    assert former is not None
    assert (former.seen, former.gone) == (Version("0.11.0"), Version("0.19.0"))


def test_a_flag_that_never_was() -> None:
    former = former_flag("--speculative-mode")
    assert former is not None
    assert former.seen is None
    assert former.replaced_by == "--speculative-config"


def test_a_flag_that_is_still_there() -> None:
    assert former_flag("--max-model-len") is None


def test_none_is_gone_before_it_was_seen() -> None:
    assert all(former.seen is None or former.seen < former.gone for former in FORMER_FLAGS.load().flags)


@pytest.mark.parametrize(
    "row",
    [ROW | {"more": 1}, ROW | {"seen": "x"}, ROW | {"seen": "0.12.0"}, {}, 1],
)
def test_any_other_shape_is_refused(row: object) -> None:
    assert FORMER_FLAGS.read({"reviewed": "0.33.0", "flags": [ROW]}).flags[0].flag == "--x"
    with pytest.raises(CatalogueError):
        FORMER_FLAGS.read({"reviewed": "0.33.0", "flags": [row]})
