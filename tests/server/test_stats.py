"""The metrics against the usage of the answers behind them."""

from collections import Counter

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from .conftest import SCRIPTS
from .fake import FakeEngine
from .live import MODEL, Live, serving, until

REQUESTS = (
    ("hello", {"max_tokens": 40}),
    ("hello", {"max_tokens": 1}),
    ("stop id", {"max_tokens": 9}),
    ("stop string", {"max_tokens": 99, "stop": "STOP"}),
    (["one", "two"], {"max_tokens": 17}),
    ("plain", {"max_tokens": 6, "speculative": False}),
)


def ask_all(live: Live) -> tuple[Counter[str], Counter[int], Counter[int]]:
    """Usage, drafts offered and drafts accepted by position, added up over the answers."""
    total: Counter[str] = Counter()
    offered: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for prompt, options in REQUESTS:
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, **options}
        answer = live.http.post("/v1/completions", json=body).json()
        usage, details = answer["usage"], answer["usage"]["completion_tokens_details"]
        total["prompt"] += usage["prompt_tokens"]
        total["cached"] += usage["prompt_tokens_details"]["cached_tokens"]
        total["generated"] += usage["completion_tokens"]
        total["standing"] += details["accepted_prediction_tokens"]
        total["drafts"] += details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"]
        total["steps"] += answer["ft"]["steps"]
        offered.update(dict(enumerate(answer["ft"]["offered_by_position"])))
        accepted.update(dict(enumerate(answer["ft"]["accepted_by_position"])))
    return total, offered, accepted


def test_metrics_reconcile_with_usage() -> None:
    """Catches a token, a step or a draft that one side counts and the other does not."""
    with serving(FakeEngine(SCRIPTS)) as live:
        total, offered, accepted = ask_all(live)
        until(lambda: live.engine.idle)
        seen = live.metrics()
    assert seen["ft_prompt_tokens_total"] == total["prompt"]
    assert seen["ft_cached_prompt_tokens_total"] == total["cached"] > 0
    assert seen["ft_generation_tokens_total"] == total["generated"]
    assert seen["ft_emitted_tokens_per_step_sum"] == total["generated"]
    assert seen["ft_emitted_tokens_per_step_count"] == total["steps"]
    assert seen["ft_draft_tokens_total"] == total["drafts"] == offered.total()
    assert seen["ft_output_draft_tokens_total"] == total["standing"]
    assert seen["ft_accepted_draft_tokens_total"] == accepted.total() > total["standing"]
    for name, counts in (("", offered), ("accepted_", accepted)):
        for position, number in counts.items():
            sample = f'ft_{name}draft_tokens_by_position_total{{position="{position}"}}'
            assert seen[sample] == number
    assert seen['ft_requests_total{finish="length"}'] == 5
    assert seen['ft_requests_total{finish="stop"}'] == 2
    assert seen["ft_engine_steps_total"] == seen["ft_engine_step_seconds_count"] > 0
    assert seen["ft_time_to_first_token_seconds_count"] == 7
    assert seen["ft_running_requests"] == seen["ft_waiting_requests"] == 0


def test_requests_that_run_and_wait() -> None:
    with serving(FakeEngine(step_seconds=0.02, slots=2)) as live:
        body = {"prompt": ["a", "b", "c"], "max_tokens": 400, "stream": True}
        with live.http.stream("POST", "/v1/completions", json=body):
            until(lambda: live.metrics()["ft_running_requests"] == 2)
            assert live.metrics()["ft_waiting_requests"] == 1
        until(lambda: live.metrics()["ft_running_requests"] == 0)


def test_both_text_formats_can_be_parsed(live: Live) -> None:
    """Catches a page that a scraper refuses."""
    plain = live.http.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    names = {family.name for family in parse(plain.text)}
    accept = "application/openmetrics-text; version=1.0.0"
    opened = live.http.get("/metrics", headers={"Accept": accept})
    assert opened.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = parse_openmetrics(opened.text)  # type: ignore[no-untyped-call]
    assert {family.name for family in families} <= names
    assert "ft_generation_tokens" in {name.removesuffix("_total") for name in names}


def test_two_servers_count_apart() -> None:
    """Catches a registry that a process shares."""
    with serving(FakeEngine()) as one, serving(FakeEngine()) as other:
        one.still_answers()
        assert one.metrics()["ft_generation_tokens_total"] == 5
        assert other.metrics()["ft_generation_tokens_total"] == 0
