"""PrometheusStatLogger: names, values, buckets, and that nothing is counted twice."""

from __future__ import annotations

from headrace.messages.outputs import SchedulerStats
from headrace.metrics.prometheus import PrometheusStatLogger, one_two_five
from headrace.metrics.stats import FinishedRequestStats, IterationStats
from tests.server.fakes import make_config

NAMES = [
    "headrace:admission_rejections",
    "headrace:cache_config_info",
    "headrace:corrupted_requests",
    "headrace:e2e_request_latency_seconds",
    "headrace:engine_sleep_state",
    "headrace:generation_tokens",
    "headrace:inter_token_latency_seconds",
    "headrace:iteration_tokens_total",
    "headrace:key_generation_tokens",
    "headrace:key_prompt_tokens",
    "headrace:key_rejections",
    "headrace:key_requests",
    "headrace:kv_cache_usage_perc",
    "headrace:num_preemptions",
    "headrace:num_requests_running",
    "headrace:num_requests_waiting",
    "headrace:num_requests_waiting_by_reason",
    "headrace:prefix_cache_hits",
    "headrace:prefix_cache_queries",
    "headrace:prompt_tokens",
    "headrace:prompt_tokens_by_source",
    "headrace:prompt_tokens_cached",
    "headrace:prompt_tokens_cached_by_source",
    "headrace:request_decode_time_seconds",
    "headrace:request_generation_tokens",
    "headrace:request_inference_time_seconds",
    "headrace:request_max_num_generation_tokens",
    "headrace:request_num_preemptions",
    "headrace:request_params_max_tokens",
    "headrace:request_params_n",
    "headrace:request_prefill_kv_computed_tokens",
    "headrace:request_prefill_time_seconds",
    "headrace:request_prompt_tokens",
    "headrace:request_queue_time_seconds",
    "headrace:request_success",
    "headrace:request_time_per_output_token_seconds",
    "headrace:sleep_mode_operation_duration_seconds",
    "headrace:sleep_mode_operations_in_flight",
    "headrace:time_to_first_token_seconds",
    "headrace:tool_call_parser_invocations",
    "http_request_duration_highr_seconds",
    "http_request_duration_seconds",
    "http_request_size_bytes",
    "http_requests",
    "http_response_size_bytes",
]
LABELS = {"model_name": "tiny", "engine": "0"}


def finished(reason: str = "stop", **changes: object) -> FinishedRequestStats:
    known: dict[str, object] = {
        "finish_reason": reason, "num_prompt_tokens": 10, "num_generation_tokens": 5,
        "num_cached_tokens": 4, "num_preemptions": 1, "max_tokens_param": 16, "n_param": 1,
        "e2e_latency": 2.0,
    }  # fmt: skip
    return FinishedRequestStats(**{**known, **changes})  # type: ignore[arg-type]


def value(logger: PrometheusStatLogger, name: str, **labels: str) -> float | None:
    return logger.registry.get_sample_value(f"headrace:{name}", {**LABELS, **labels})


def test_names_are_those_of_the_golden_list() -> None:
    logger = PrometheusStatLogger(make_config())
    assert sorted(metric.name for metric in logger.registry.collect()) == NAMES


def test_iteration_is_recorded() -> None:
    logger = PrometheusStatLogger(make_config())
    scheduler = SchedulerStats(
        num_running=3, num_waiting=2, num_blocks=10, num_free_blocks=4, prefix_cache_queries=100,
        prefix_cache_hits=40, num_preemptions=2,
    )  # fmt: skip
    iteration = IterationStats(
        num_step_tokens=12, num_generation_tokens=4, num_prompt_tokens=8, num_cached_tokens=3,
        time_to_first_tokens=[0.003], inter_token_latencies=[0.02, 0.03],
        finished=[finished(queue_time=0.1, prefill_time=0.2, decode_time=0.3, inference_time=0.5,
                           time_per_output_token=0.05)],
    )  # fmt: skip
    logger.record(scheduler, iteration)
    expected = {
        "num_requests_running": 3, "num_requests_waiting": 2, "kv_cache_usage_perc": 0.6,
        "prefix_cache_queries_total": 100, "prefix_cache_hits_total": 40,
        "num_preemptions_total": 2, "prompt_tokens_total": 8, "prompt_tokens_cached_total": 3,
        "generation_tokens_total": 4, "iteration_tokens_total_sum": 12,
        "time_to_first_token_seconds_count": 1, "inter_token_latency_seconds_count": 2,
        "e2e_request_latency_seconds_sum": 2.0, "request_queue_time_seconds_sum": 0.1,
        "request_prompt_tokens_sum": 10, "request_prefill_kv_computed_tokens_sum": 6,
        "request_params_max_tokens_sum": 16, "request_time_per_output_token_seconds_sum": 0.05,
        "request_num_preemptions_sum": 1,
    }  # fmt: skip
    assert {name: value(logger, name) for name in expected} == expected
    assert value(logger, "request_success_total", finished_reason="stop") == 1


def test_totals_of_the_core_are_added_once() -> None:
    logger = PrometheusStatLogger(make_config())
    for hits in (5, 5, 9):
        logger.record(SchedulerStats(prefix_cache_hits=hits), IterationStats())
    assert value(logger, "prefix_cache_hits_total") == 9
    assert value(logger, "iteration_tokens_total_count") == 0


def test_part_of_the_registry_is_fresh_each_time_it_is_read() -> None:
    logger = PrometheusStatLogger(make_config())
    for total in (2, 4):
        stats = SchedulerStats(num_running=total, num_preemptions=total)
        logger.record(stats, IterationStats(num_generation_tokens=2, num_step_tokens=2))
        names = [f"headrace:{name}" for name in (
            "num_requests_running", "num_preemptions_total", "generation_tokens_total",
            "iteration_tokens_total_sum",
        )]  # fmt: skip
        part = logger.registry.restricted_registry(names)
        samples = [one for metric in part.collect() for one in metric.samples]
        assert {one.name: one.value for one in samples if one.name in names} == dict.fromkeys(
            names, total
        )


def test_longest_of_the_answers_to_a_request_is_recorded_once() -> None:
    logger = PrometheusStatLogger(make_config())
    parts = [finished(), finished(max_num_generation_tokens=9)]
    logger.record(SchedulerStats(num_corrupted=2), IterationStats(finished=parts))
    assert value(logger, "request_max_num_generation_tokens_count") == 1
    assert value(logger, "request_max_num_generation_tokens_sum") == 9
    assert value(logger, "corrupted_requests_total") == 2


def test_every_way_to_end_has_a_counter_from_the_start() -> None:
    logger = PrometheusStatLogger(make_config())
    for reason in ("stop", "length", "abort", "error"):
        assert value(logger, "request_success_total", finished_reason=reason) == 0
    logger.record(SchedulerStats(), IterationStats(finished=[finished("abort")]))
    assert value(logger, "request_success_total", finished_reason="abort") == 1


def test_times_that_never_came_are_not_recorded() -> None:
    logger = PrometheusStatLogger(make_config())
    one = finished("abort", max_tokens_param=None)
    logger.record(SchedulerStats(), IterationStats(finished=[one]))
    for name in ("request_queue_time_seconds", "request_time_per_output_token_seconds",
                 "request_params_max_tokens"):  # fmt: skip
        assert value(logger, f"{name}_count") == 0


def test_prefix_and_registry_are_the_loggers_own() -> None:
    one = PrometheusStatLogger(make_config(), prefix="vllm")
    two = PrometheusStatLogger(make_config(), prefix="vllm")
    one.record(SchedulerStats(num_running=1), IterationStats())
    assert b'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in one.render()
    assert b'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in two.render()


def test_methods_of_strangers_share_one_label() -> None:
    logger = PrometheusStatLogger(make_config())
    for method in ("GET", "BREW", "X" * 1000):
        logger.http.record(method, "none", 405, 0.1)
    text = logger.render().decode()
    assert 'http_requests_total{handler="none",method="other",status="4xx"} 2.0' in text
    assert "BREW" not in text


def test_size_buckets_go_up_to_the_context_length() -> None:
    assert one_two_five(100) == [1, 2, 5, 10, 20, 50, 100]
    assert one_two_five(60) == [1, 2, 5, 10, 20, 50]
    assert one_two_five(1) == [1]


def test_waiting_requests_and_prompt_tokens_are_told_apart() -> None:
    logger = PrometheusStatLogger(make_config())
    stats = SchedulerStats(num_waiting=5, num_held=2)
    logger.record(stats, IterationStats(num_prompt_tokens=10, num_cached_tokens=4))
    assert value(logger, "num_requests_waiting_by_reason", reason="capacity") == 3
    assert value(logger, "num_requests_waiting_by_reason", reason="deferred") == 2
    assert value(logger, "prompt_tokens_by_source_total", source="local_compute") == 6
    assert value(logger, "prompt_tokens_by_source_total", source="local_cache_hit") == 4
    assert value(logger, "prompt_tokens_cached_by_source_total", source="local_cache_hit") == 4


def test_sleep_state_is_one_of_three() -> None:
    logger = PrometheusStatLogger(make_config())

    def states() -> list[float | None]:
        names = ("awake", "weights_offloaded", "discard_all")
        return [value(logger, "engine_sleep_state", sleep_state=name) for name in names]

    assert states() == [1, 0, 0]
    logger.sleep.set_level(1)
    assert states() == [0, 1, 0]
    logger.sleep.set_level(2)
    assert states() == [0, 0, 1]
    with logger.sleep.operation("wake_up"):
        assert value(logger, "sleep_mode_operations_in_flight", operation="wake_up") == 1
    assert value(logger, "sleep_mode_operations_in_flight", operation="wake_up") == 0
    name = "sleep_mode_operation_duration_seconds_count"
    assert value(logger, name, operation="wake_up") == 1
