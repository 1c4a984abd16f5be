"""The dashboard and the alerts: a process exports their metrics and labels, and the alerts fire."""

import json
import re
import shutil
import subprocess

import anyio
import pytest
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from helpers.loads import run
from helpers.paths import ROOT
from helpers.stubs import READ
from helpers.tables import each_row
from helpers.throttling import drawn, throttling
from helpers_ci.prometheus import scraped
from rbim import Limits
from rbim.otel import OtelObserver

EXAMPLES = ROOT / "docs" / "examples"
DASHBOARD = json.loads((EXAMPLES / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
GROUPS = yaml.safe_load((EXAMPLES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
QUERIES = {
    f"{panel['id']} {panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]
}
EXPRESSIONS = QUERIES | {name: rule["expr"] for name, rule in ALERTS.items()}
OF_PROMETHEUS = {"instance", "job"}  # labels that Prometheus adds when it reads a process
LEFT_OUT = {"target_info": "of the SDK"}  # metrics that no panel shows, with the reason


@pytest.fixture(scope="module")
def process(tmp_path_factory):
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


@each_row("name", EXPRESSIONS)
def test_each_metric_of_an_expression_is_one_that_a_process_exports(name, process):
    mentioned = metrics_of(EXPRESSIONS[name])
    assert mentioned
    assert mentioned <= process.labels.keys()
    every = set(re.findall(r"\b(?:rbim|http)_\w+", EXPRESSIONS[name]))
    labels = grouped_by(EXPRESSIONS[name]) | {label for _, label, *_ in matchers_of(EXPRESSIONS[name])}
    assert every <= mentioned | labels | {"http_client"}  # nothing was overlooked


@each_row("name", EXPRESSIONS)
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


def test_the_dashboard_shows_each_metric_or_there_is_a_reason_why_not(process):
    shown = {re.sub("_(bucket|count|sum)$", "", metric) for query in QUERIES.values() for metric in metrics_of(query)}
    assert shown & LEFT_OUT.keys() == set()
    assert shown | LEFT_OUT.keys() == process.families()


def test_the_page_explains_each_alert_with_its_severity():
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(Rbim\w+)` \| \*\*(\w+)\*\* \| [^|]+ \|$", page, flags=re.MULTILINE)
    assert dict(rows) == {name: rule["labels"]["severity"] for name, rule in ALERTS.items()}
    assert all(rule["annotations"]["runbook"] for rule in ALERTS.values())  # the page sends its reader there


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
ATTEMPTS = 'http_client_request_duration_seconds_count{otel_scope_name="rbim",'
HEADROOM = "rbim_receiver_headroom_seconds_bucket"
DELIVERIES = "rbim_receiver_deliveries_total"
HANDLED = "rbim_worker_handling_duration_seconds_count"
FIRST = "_x20 1x100"  # A counter that begins with its first error after 20 minutes
GROWS = "0+6x120"  # A counter that grows all the time, by 6 a minute


def buckets(name, counts):
    return {f'{name}le="{bound}"}}': f"0+{count}x120" for bound, count in counts.items()}


def of(observation):
    return f'rbim_receiver_incidents_total{{rbim_observation="{observation}"}}'


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
    "RbimCallsRefused": (
        {CALLS + '{error_type="DeadlineExceeded",rbim_outcome="not sent"}': GROWS},
        {CALLS + '{error_type="DeadlineExceeded",rbim_outcome="unknown"}': GROWS},
    ),
    "RbimCallsWait": ({"rbim_client_oldest_seconds": "11x120"}, {"rbim_client_oldest_seconds": "9x120"}),
    "RbimThrottled": (
        {ATTEMPTS + 'rbim_throttled="true"}': "0+2x120", ATTEMPTS + "}": "0+98x120"},
        {ATTEMPTS + 'rbim_throttled="true"}': "0+2x120", ATTEMPTS + "}": "0+298x120"},
    ),
    "RbimRetriesSpent": ({"rbim_client_retries_left": "4x120"}, {"rbim_client_retries_left": "50x120"}),
    "RbimJobStalls": (
        {'rbim_job_rows{rbim_state="waiting"}': "5x120"},
        {'rbim_job_rows{rbim_state="waiting"}': "500-2x120"},
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
    "RbimOverflow": ({of("Spooled"): FIRST}, {of("Spooled"): "3x120"}),
    "RbimOverflowStays": ({"rbim_receiver_overflow": "2x120"}, {"rbim_receiver_overflow": "0x120"}),
    "RbimQuarantine": ({of("Quarantined"): FIRST}, {of("Quarantined"): "3x120"}),
    "RbimClockWrong": ({of("Skewed"): FIRST}, {of("Skewed"): "3x120"}),
    "RbimOldToken": ({of("OldToken"): "0+6x300"}, {of("OldToken"): "9x300"}),
    "RbimPartEnded": ({of("PartEnded"): FIRST}, {of("PartRestarted"): FIRST}),
    "RbimNotEntered": ({of("NotEntered"): "_x20 1x100"}, {of("NotEntered"): "1x120"}),
    "RbimHandlerHangs": ({of("HungHandler"): FIRST}, {of("HungHandler"): "3x120"}),
    "RbimProcessDies": ({of("RetriedAlone"): FIRST}, {of("RetriedAlone"): "3x120"}),
    "RbimDeadLetters": ({of("DeadLettered"): FIRST}, {of("DeadLettered"): "3x120"}),
    "RbimHandlersFail": (
        {HANDLED + '{error_type="KeyError"}': GROWS, HANDLED + "{}": "0+40x120"},
        {
            HANDLED + '{error_type="cancelled"}': GROWS,
            HANDLED + '{error_type="KeyError"}': "0+2x120",
            HANDLED + "{}": "0+40x120",
        },
    ),
    "RbimInboxLags": ({"rbim_inbox_lag_seconds": "301x120"}, {"rbim_inbox_lag_seconds": "299x120"}),
}
"""For each alert, series that must set it off and similar ones that must not; a value a minute (or every 20)."""


def test_every_alert_has_its_cases():
    assert CASES.keys() == ALERTS.keys()


def fired(name, series, at, *, fires):
    """Return the unit of promtool that says whether an alert fires at a time."""
    samples = [{"labels": "{}", "value": 1}] if fires else []
    query = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    return {
        "name": f"{name} {fires}",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": samples}],
    }


def check_rules(tests, minutes, tmp_path):
    assert tests
    rules = [str(EXAMPLES / "alerts.yml")]
    tests = [{"interval": f"{minutes}m", **each} for each in tests]
    document = {"rule_files": rules, "evaluation_interval": f"{minutes}m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


@needs_promtool
@pytest.mark.parametrize(("slow", "minutes", "at"), [(False, 1, "30m"), (True, 20, "40h")], ids=["in minutes", "in days"])
def test_the_alerts_fire_when_they_should_and_not_otherwise(tmp_path, slow, minutes, at):
    tests = [
        fired(name, series, at, fires=fires)
        for name, pair in CASES.items()
        if slow == (name == "RbimOldToken")
        for series, fires in zip(pair, (True, False), strict=True)
    ]
    check_rules(tests, minutes, tmp_path)


@needs_promtool
@pytest.mark.parametrize(("limit", "fires"), [(5, True), (50, False)])
def test_throttling_by_an_emulated_platform_sets_its_alert_off(limit, fires, tmp_path):
    """A client makes 6 calls a second, for 20 minutes; what it exports is read each minute."""
    registry, series, read = CollectorRegistry(), {}, []
    otel = OtelObserver(meter_provider=MeterProvider([PrometheusMetricReader(registry=registry)], shutdown_on_exit=False))

    def each_minute(_):
        if anyio.current_time() < 60 * len(read):
            return
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for sample in family.samples:
                if sample.name == "http_client_request_duration_seconds_count":
                    labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                    values = series.setdefault(f"{sample.name}{{{labels}}}", [])
                    values += ["_"] * (len(read) - len(values)) + [f"{sample.value:g}"]
        read.append(None)

    platform = throttling(limit, limit, None)
    run(drawn(lambda _: 6, 20 * 60, lambda _: READ), platform, Limits(), observers=[otel, each_minute])
    assert bool(platform.throttled) is fires
    exported = {name: " ".join(values) for name, values in series.items()}
    check_rules([fired("RbimThrottled", exported, "18m", fires=fires)], 1, tmp_path)
