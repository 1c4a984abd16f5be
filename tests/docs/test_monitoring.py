"""The dashboard and the alerts: a process exports their metrics and labels, and the alerts fire."""

import json
import re
import shutil
import subprocess

import anyio
import pytest
import yaml

from helpers.paths import ROOT
from helpers.prometheus import scraped

EXAMPLES = ROOT / "docs" / "examples"
DASHBOARD = json.loads((EXAMPLES / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
GROUPS = yaml.safe_load((EXAMPLES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
QUERIES = {
    f"{panel['id']} {panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]
}
EXPRESSIONS = QUERIES | {name: rule["expr"] for name, rule in ALERTS.items()}
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds when it reads a process."""

LEFT_OUT = {
    "http_client_active_requests": "the panel of requests in flight shows the same, beside their limit",
    "rbim_client_attempt_time_seconds": "an estimate of the client for itself; the duration of requests is measured",
    "rbim_job_request_rate_per_second": "the panel of a job's requests has their rate",
    "target_info": "of the SDK",
}
"""Metrics that no panel shows, with the reason."""


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """What Prometheus reads from a process that uses everything."""
    return anyio.run(scraped, tmp_path_factory.mktemp("process"))


def metrics_of(expression):
    return set(re.findall(r"\b(?:rbim|http)_\w+\b(?=\s*(?:\{|\[|\)|offset|[><=/*]|unless|$))", _without_labels(expression)))


def _without_labels(expression):
    """Leave out the lists of labels; an empty pair of braces stays."""
    return re.sub(r"\{[^}]*\}", "{}", re.sub(r"\b(by|on)\s*\([^)]*\)", "", expression))


def matchers_of(expression):
    """Return the (metric, label, operator, value) of each matcher."""
    return [
        (metric, *matcher)
        for metric, inside in re.findall(r"(\w+)\{([^}]*)\}", expression)
        for matcher in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', inside)
    ]


def grouped_by(expression):
    return {label.strip() for inside in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression) for label in inside.split(",")}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_each_metric_of_an_expression_is_one_that_a_process_exports(name, process):
    mentioned = metrics_of(EXPRESSIONS[name])
    assert mentioned
    assert mentioned <= process.labels.keys()
    every = set(re.findall(r"\b(?:rbim|http)_\w+", EXPRESSIONS[name]))
    labels = grouped_by(EXPRESSIONS[name]) | {label for _, label, *_ in matchers_of(EXPRESSIONS[name])}
    assert every <= mentioned | labels | {"http_client"}  # nothing was overlooked


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_each_label_of_an_expression_is_one_of_its_metrics(name, process):
    expression = EXPRESSIONS[name]
    known = set.intersection(*(process.labels[metric] for metric in metrics_of(expression))) | OF_PROMETHEUS
    assert grouped_by(expression) <= known
    for metric, label, operator, value in matchers_of(expression):
        assert label in process.labels[metric]
        if operator == "=":
            assert value in process.values[label]
        if operator == "=~" and not value.startswith("$"):
            assert set(value.split("|")) <= process.values[label]


@pytest.mark.parametrize("name", ALERTS)
def test_each_label_in_the_words_of_an_alert_is_left_by_its_expression(name, process):
    rule = ALERTS[name]
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    by = [set(map(str.strip, inside.split(","))) for inside in re.findall(r"\bsum by\s*\(([^)]*)\)", rule["expr"])]
    of_metrics = set.intersection(*(process.labels[metric] for metric in metrics_of(rule["expr"])))
    assert used <= (set.intersection(*by) if by else of_metrics)


def test_each_legend_names_labels_that_its_query_leaves():
    for panel in PANELS:
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert labels
            assert labels <= grouped_by(target["expr"])


def test_the_dashboard_shows_each_metric_or_there_is_a_reason_why_not(process):
    shown = {re.sub("_(bucket|count|sum)$", "", metric) for query in QUERIES.values() for metric in metrics_of(query)}
    assert shown & LEFT_OUT.keys() == set()
    assert shown | LEFT_OUT.keys() == process.families()


def test_the_panels_have_places_of_their_own_and_the_variables_exist():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__all", "__rate_interval"}
    assert used == variables


def test_the_variables_ask_for_labels_that_exist(process):
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
            assert label in process.labels[metric]


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_says_what_it_is_and_what_to_do(name):
    rule = ALERTS[name]
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert rule["labels"]["severity"] in {"critical", "warning"}


def test_the_page_explains_each_alert_with_its_threshold():
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", page, flags=re.MULTILINE | re.DOTALL))
    assert sections.keys() == ALERTS.keys()
    for name, text in sections.items():
        assert f"**{ALERTS[name]['labels']['severity']}**" in text, name
        assert "**Why:**" in text, name
        assert "**Do:**" in text, name


# ------------------------------------------------------------------------------- with Prometheus' own tool

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool, of the Debian package prometheus"
)


def promtool(*arguments):
    done = subprocess.run(["promtool", *arguments], capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_accepts_the_alerts():
    promtool("check", "rules", str(EXAMPLES / "alerts.yml"))


@needs_promtool
def test_prometheus_accepts_the_queries_of_the_dashboard(tmp_path):
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(QUERIES.values())
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "rules.yml"))


CALLS = "rbim_client_call_duration_seconds_count"
REQUESTS = "http_client_request_duration_seconds_bucket"
HEADROOM = "rbim_receiver_headroom_seconds_bucket"
DELIVERIES = "rbim_receiver_deliveries_total"
FIRST = "_x20 1x100"
"""A counter that begins with its first error after 20 minutes."""

GROWS = "0+6x120"
"""A counter that grows all the time, by 6 a minute."""


def buckets(name, counts):
    return {f'{name}le="{bound}"}}': f"0+{count}x120" for bound, count in counts.items()}


CASES = {
    "RbimTokenRefused": ({CALLS + '{error_type="AuthenticationError"}': FIRST}, {CALLS + '{error_type="NotFound"}': FIRST}),
    "RbimCallsFail": (
        {CALLS + '{error_type="NotSent",rbim_outcome="not sent"}': GROWS, CALLS + "{}": "0+60x120"},
        {CALLS + '{error_type="NotMember",rbim_outcome="refused"}': GROWS, CALLS + "{}": "0+60x120"},
    ),
    "RbimEffectUnknown": (
        {CALLS + '{rbim_outcome="unknown",rbim_operation="JoinGroup"}': FIRST},
        {CALLS + '{rbim_outcome="unknown",rbim_operation="QueryGroupDetail"}': FIRST},
    ),
    "RbimPlatformSlow": (
        buckets(REQUESTS + '{otel_scope_name="rbim",', {"5": 90, "10": 100, "+Inf": 100}),
        buckets(REQUESTS + '{otel_scope_name="rbim",', {"5": 99, "10": 100, "+Inf": 100}),
    ),
    "RbimCallsRefused": ({"rbim_client_refused_total": GROWS}, {"rbim_client_refused_total": "7x120"}),
    "RbimCallsWait": ({"rbim_client_oldest_seconds": "11x120"}, {"rbim_client_oldest_seconds": "9x120"}),
    "RbimHalted": ({"rbim_client_halted_seconds": "3x120"}, {"rbim_client_halted_seconds": "0x120"}),
    "RbimRetriesSpent": ({"rbim_client_retries_left": "4x120"}, {"rbim_client_retries_left": "50x120"}),
    "RbimJobStalls": (
        {'rbim_job_rows{rbim_state="waiting"}': "5x120", "rbim_job_requests_total": "9x120"},
        {'rbim_job_rows{rbim_state="waiting"}': "5x120", "rbim_job_requests_total": GROWS},
    ),
    "RbimJobUnknown": ({'rbim_job_rows{rbim_state="unknown"}': "5x120"}, {'rbim_job_rows{rbim_state="refused"}': "5x120"}),
    "RbimDeliveriesUnavailable": (
        {DELIVERIES + '{rbim_result="unavailable"}': FIRST},
        {DELIVERIES + '{rbim_result="accepted"}': FIRST},
    ),
    "RbimDeliveriesRefused": (
        {DELIVERIES + '{rbim_result="refused"}': "0+20x120", DELIVERIES + '{rbim_result="accepted"}': "0+100x120"},
        {DELIVERIES + '{rbim_result="refused"}': "0+5x120", DELIVERIES + '{rbim_result="accepted"}': "0+100x120"},
    ),
    "RbimAnswersLate": (
        buckets(HEADROOM + "{", {"0.5": 10, "1": 10, "5": 100, "+Inf": 100}),
        buckets(HEADROOM + "{", {"0.5": 1, "1": 1, "5": 100, "+Inf": 100}),
    ),
    "RbimOverflow": ({"rbim_receiver_spooled_total": FIRST}, {"rbim_receiver_spooled_total": "3x120"}),
    "RbimOverflowStays": ({"rbim_receiver_overflow": "2x120"}, {"rbim_receiver_overflow": "0x120"}),
    "RbimQuarantine": ({"rbim_receiver_quarantined_total": FIRST}, {"rbim_receiver_quarantined_total": "3x120"}),
    "RbimClockWrong": ({"rbim_receiver_skewed_total": FIRST}, {"rbim_receiver_skewed_total": "3x120"}),
    "RbimOldToken": ({"rbim_receiver_old_tokens_total": "0+6x300"}, {"rbim_receiver_old_tokens_total": "9x300"}),
    "RbimPartEnded": ({'rbim_receiver_ends_total{rbim_part="worker"}': FIRST}, {"rbim_receiver_ends_total": "3x120"}),
    "RbimNotEntered": ({"rbim_receiver_not_entered_total": "_x20 1x100"}, {"rbim_receiver_not_entered_total": "1x120"}),
    "RbimHandlerHangs": ({"rbim_worker_hung_total": FIRST}, {"rbim_worker_hung_total": "3x120"}),
    "RbimProcessDies": ({"rbim_worker_crashes_total": FIRST}, {"rbim_worker_crashes_total": "3x120"}),
    "RbimDeadLetters": ({"rbim_worker_dead_letters_total": FIRST}, {"rbim_worker_dead_letters_total": "3x120"}),
    "RbimHandlersFail": (
        {"rbim_worker_failures_total": GROWS},
        {"rbim_worker_failures_total": GROWS, "rbim_worker_handling_duration_seconds_count": "0+600x120"},
    ),
    "RbimTakeovers": ({"rbim_inbox_takeovers_total": "0x20 8x100"}, {"rbim_inbox_takeovers_total": "8x120"}),
    "RbimInboxLags": ({"rbim_inbox_lag_seconds": "301x120"}, {"rbim_inbox_lag_seconds": "299x120"}),
}
"""For each alert, series that must set it off and similar ones that must not; a value a minute (or every 20)."""


def test_every_alert_has_its_cases():
    assert CASES.keys() == ALERTS.keys()


@needs_promtool
@pytest.mark.parametrize(("slow", "minutes", "at"), [(False, 1, "30m"), (True, 20, "40h")], ids=["in minutes", "in days"])
def test_the_alerts_fire_when_they_should_and_not_otherwise(tmp_path, slow, minutes, at):
    tests = []
    for name, pair in CASES.items():
        if slow != (name == "RbimOldToken"):
            continue
        for series, fires in zip(pair, (1, 0), strict=True):
            query = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
            samples = [{"labels": "{}", "value": 1}] if fires else []
            tests.append(
                {
                    "interval": f"{minutes}m",
                    "name": f"{name} {fires}",
                    "input_series": [{"series": each, "values": values} for each, values in series.items()],
                    "promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": samples}],
                }
            )
    assert tests
    rules = [str(EXAMPLES / "alerts.yml")]
    document = {"rule_files": rules, "evaluation_interval": f"{minutes}m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", str(tmp_path / "tests.yml"))
