"""What the scheduler tells of requests: seeds, times, counters, progress."""

from __future__ import annotations

from headrace.messages.outputs import RequestLedger
from tests.core.scheduler_rig import Rig

# Seeds, times, counters


def test_seeds_are_the_callers_or_drawn_from_the_engines() -> None:
    def seeds(engine_seed: int) -> list[int]:
        rig = Rig(seed=engine_seed)
        rig.add("a", [1])
        rig.add("b", [1], seed=5)
        rig.add("c", [1])
        return [new.seed for new in rig.step().new_requests]

    first = seeds(0)
    assert first == seeds(0)
    assert first[1] == 5
    assert len(set(first)) == 3
    assert first != seeds(1)


def test_seed_given_to_one_request_leaves_those_of_the_others_alone() -> None:
    drawn = []
    for given in (None, 5):
        rig = Rig()
        rig.add("a", [1], seed=given)
        rig.add("b", [1])
        drawn.append(rig.step().new_requests[1].seed)
    assert drawn[0] == drawn[1]


def test_ledger_comes_with_the_first_and_the_last_output() -> None:
    rig = Rig(max_num_batched_tokens=4)
    rig.time = 1.0
    rig.add("a", [1] * 8, max_tokens=3)
    for rig.time in (2.0, 3.0, 4.0, 5.0):
        rig.step()
    first, between, last = rig.outputs["a"]
    assert first.ledger == RequestLedger(1.0, 2.0, 3.0, 3.0, 8, 0, 1, 0)
    assert between.ledger is None
    assert last.ledger == RequestLedger(1.0, 2.0, 3.0, 5.0, 8, 0, 3, 0)


def test_times_that_never_came_are_those_of_the_end() -> None:
    rig = Rig()
    rig.executor.errors["a"] = "broken"
    rig.add("a", [1])
    rig.time = 7.0
    rig.step()
    times = rig.outputs["a"][0].ledger
    assert times is not None
    assert (times.queued, times.first_token, times.last_token) == (0.0, 7.0, 7.0)


def test_counters_follow_the_work() -> None:
    rig = Rig(max_num_batched_tokens=4)
    rig.add("a", [1] * 6, max_tokens=2)
    rig.add("b", [2] * 5, max_tokens=2)
    assert rig.scheduler.stats().num_queued_tokens == 11
    rig.step()
    stats = rig.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_queued_tokens) == (1, 1, 7)
    assert (stats.num_blocks, stats.num_free_blocks) == (64, 62)
    rig.run()
    stats = rig.scheduler.stats()
    assert (stats.prompt_tokens, stats.generation_tokens) == (11, 4)
    assert (stats.num_running, stats.num_queued_tokens, stats.num_free_blocks) == (0, 0, 64)
    assert stats.num_steps == len(rig.executor.orders)


def test_cached_prompt_tokens_count_as_neither_queued_nor_computed() -> None:
    rig = Rig()
    rig.add("a", [1] * 9, max_tokens=1)
    rig.run()
    rig.add("b", [1] * 9, max_tokens=1)
    rig.run()
    assert rig.scheduler.stats().prompt_tokens == 9 + 1
    assert rig.scheduler.stats().num_queued_tokens == 0


def test_reset_prefix_cache_is_refused_while_requests_run() -> None:
    rig = Rig()
    rig.add("a", [1] * 9)
    rig.step()
    assert rig.scheduler.reset_prefix_cache() is False
    rig.run()
    assert rig.scheduler.reset_prefix_cache() is True
    rig.add("b", [1] * 9)
    rig.run()
    assert rig.outputs["b"][0].num_cached_tokens == 0


def test_progress_tells_stage_place_and_tokens_of_live_requests() -> None:
    rig = Rig(max_num_seqs=2, max_num_batched_tokens=6)
    rig.add("decodes", [1, 2])
    rig.step()
    rig.add("prefills", list(range(20)))
    rig.step()
    for name in ("first", "second"):
        rig.add(name, [1])
    found = rig.scheduler.roster.progress(["decodes", "prefills", "second", "first", "gone"])
    assert {name: (one.stage, one.position) for name, one in found.items()} == {
        "decodes": ("decode", 0),
        "prefills": ("prefill", 0),
        "first": ("waiting", 1),
        "second": ("waiting", 2),
    }
    assert found["decodes"].num_output_tokens == 2
    assert 0 < found["prefills"].num_computed_tokens < 20 == found["prefills"].num_prompt_tokens


def test_progress_tells_the_place_of_those_behind_a_closing_gate() -> None:
    rig = Rig(max_num_seqs=1)
    rig.add("runs", [1])
    rig.step()
    rig.add("waits", [1])
    rig.scheduler.roster.gate.close()
    rig.add("held", [1])
    found = rig.scheduler.roster.progress(["held", "waits"])
    assert (found["waits"].position, found["held"].position) == (1, 2)
