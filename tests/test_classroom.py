"""The small load of the class: what the engine's rules make of it, step by step."""

from __future__ import annotations

import pytest
from packaging.version import Version

from kvcore.base.words import Language, words
from kvcore.charts.drawings import last_block_drawing, pool_drawing, timeline_drawing
from kvcore.course.classroom import BLOCK_TOKENS, CHUNKS, LOAD, POOL_BLOCKS, Classroom, State, classroom

NEWEST = Version("0.33.0")


@pytest.mark.parametrize("chunk", CHUNKS)
class TestLaws:
    @pytest.fixture
    def room(self, chunk: int) -> Classroom:
        return classroom(NEWEST, chunk=chunk)

    def test_no_step_computes_more_than_its_budget(self, room: Classroom) -> None:
        assert all(frame.tokens <= room.chunk for frame in room.frames)

    def test_a_request_has_just_the_blocks_that_its_tokens_fill(self, room: Classroom) -> None:
        for frame in room.frames:
            for cell in frame.cells.values():
                assert len(cell.blocks) == -(-cell.cached_tokens // BLOCK_TOKENS)

    def test_each_answer_is_written_to_its_end(self, room: Classroom) -> None:
        for request in LOAD:
            cells = [frame.cells[request.id] for frame in room.frames]
            # The last token is never computed: nothing follows it.
            assert (
                max(cell.cached_tokens for cell in cells) == request.prompt_tokens + request.answer_tokens - 1
            )

    def test_a_block_is_of_one_request_but_for_shared_beginnings(self, room: Classroom) -> None:
        for frame in room.frames:
            tables = [cell.blocks for cell in frame.cells.values()]
            common = {block for block in set().union(*tables) if sum(block in table for table in tables) > 1}
            assert common <= {0, 1}
            assert len(set().union(*tables)) + frame.free_blocks >= POOL_BLOCKS


def test_b_finds_the_system_prompt_that_a_has_computed() -> None:
    cell = classroom(NEWEST).frames[1].cells["B"]
    assert (cell.hit_tokens, cell.tokens, cell.blocks[:2]) == (8, 3, (0, 1))


def test_c_is_preempted_and_starts_over_with_the_blocks_that_are_still_there() -> None:
    room = classroom(NEWEST)
    at = room.first(State.PREEMPTED)
    before, lost, again = (room.frames[at + move].cells["C"] for move in (-1, 0, 1))
    assert (before.cached_tokens, lost.cached_tokens) == (23, 0)
    assert (again.state, again.hit_tokens, again.tokens) == (State.PREFILL, 20, 4)


def test_a_long_prompt_comes_in_chunks_of_what_decodes_leave() -> None:
    cells = [frame.cells["C"] for frame in classroom(NEWEST, chunk=8).frames]
    assert [cell.tokens for cell in cells if cell.state is State.PREFILL][:4] == [6, 6, 6, 3]


def test_a_release_before_the_replayed_ones_is_taken_for_the_oldest() -> None:
    assert classroom(Version("0.8.5")) == classroom(Version("0.19.0"))


def test_the_document_on_llama_2_leaves_24_of_1024_slots_empty() -> None:
    said = last_block_drawing(1000, words(Language.ENGLISH)).alternative
    assert "blocks of 64: 16 blocks, 24 slots empty, 37.5 % of the last block, 2.3 % of the request" in said


@pytest.mark.parametrize("language", Language)
def test_the_drawings_say_what_they_show(language: Language) -> None:
    room, t = classroom(NEWEST), words(language)
    pool, steps = pool_drawing(room, 1, t), timeline_drawing(room, 1, t)
    assert pool.html.count("kv-token kv-of-several") == 8
    assert "8" in pool.alternative
    # The steps up to this one; what comes later is empty.
    assert steps.html.count('class="kv-step kv-state-') == len(LOAD) * 2
    assert steps.html.count("kv-later") == len(LOAD) * (len(room.frames) - 2)
    assert steps.html.count("kv-present") == len(LOAD) + 1
    assert all(request.id in steps.alternative for request in LOAD)


def test_the_timeline_says_where_a_request_computes_less_than_its_tokens() -> None:
    said = timeline_drawing(classroom(NEWEST), 99, words(Language.ENGLISH)).html
    assert "Step 1: the first 8 tokens of B are in the cache already, so it computes only 3." in said
    assert "Step 8: C is back, and the blocks of its first 20 tokens are still in the cache" in said
    assert "preempted: waits, then recomputes what the cache lost" in said
    assert "C is back" not in timeline_drawing(classroom(NEWEST), 7, words(Language.ENGLISH)).html
    nobody = timeline_drawing(classroom(NEWEST, chunk=32), 99, words(Language.ENGLISH)).html
    assert "is back" not in nobody
