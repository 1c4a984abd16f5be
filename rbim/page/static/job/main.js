// The page of a job that runs: how far it is, how fast and why, the reasons, and the accounts.

import {authorizedSource, takeToken} from "../parts/access.js";
import {chart} from "../parts/chart.js";
import {copyButton} from "../parts/copy.js";
import {fill, h, shown, svg} from "../parts/dom.js";
import {notices, warn} from "../parts/notice.js";
import {ask} from "../parts/request.js";
import {watch} from "../parts/stream.js";
import {tabs} from "../parts/tabs.js";
import {speech} from "../parts/words.js";
import {words} from "./words.js";

const {t, has, number, duration, dateTime} = speech(words);

// The states of a row, in the order of the bar; `tone` is its colour.
const STATES = [
    ["done", "good"],
    ["refused", "warn"],
    ["failed", "bad"],
    ["unknown", "info"],
    ["skipped", "quiet-tone"],
    ["duplicate", "quiet-tone"],
    ["waiting", "rest-tone"],
];
const TONES = {running: "good", halted: "warn", draining: "warn", loading: "info", ended: ""};
const GONE_AFTER = 4000; // milliseconds without a connection after which the command is taken for gone

let levels = null;
let report = null;
let ending = null;
let gone = 0;

const token = takeToken();

// ------------------------------------------------------------------------------ the top bar

const title = h("h1", {}, "rbim");
const source = h("span", {class: "muted"});
const phase = h("span", {class: "pill"}, t("not connected"));
const live = h("span", {class: "pill"}, t("not connected"));

// ------------------------------------------------------------------------------ overview

const result = h("section", {class: "card result", hidden: true, "aria-live": "polite"});
const bar = svg("svg", {viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img"});
const legend = h("ul", {class: "legend"});
const sum = h("p", {class: "sum"});
const figures = h("dl", {class: "figures"});
const why = h("p", {class: "pace"});
const cause = h("p", {class: "cause", hidden: true});
const limits = h("p", {class: "muted"});
const pace = chart({
    label: t("pace chart"),
    series: [
        {name: t("requests"), class: "info"},
        {name: t("adaptive rate"), class: "warn plain"},
    ],
    number,
});
const outcomes = chart({
    label: t("outcomes chart"),
    series: STATES.slice(0, 4).map(([name, tone]) => ({name: t(name), class: tone})),
    number,
});
const flight = chart({
    label: t("in flight chart"),
    series: [
        {name: t("in flight"), class: "info"},
        {name: t("concurrency"), class: "quiet-tone plain"},
    ],
    number,
});
const overview = h(
    "section",
    {class: "stack"},
    result,
    h("section", {class: "card progress"}, figures, bar, legend, sum),
    h("section", {class: "card"}, why, cause, limits),
    h("div", {class: "cards charts"}, [pace, outcomes, flight].map(each => h("section", {class: "card"}, each.element))),
);

let points = [];

function drawCharts() {
    pace.set(points.map(each => [each.request_rate, each.adaptive_rate]));
    flight.set(points.map(each => [each.in_flight, each.concurrency]));
    outcomes.set(
        points.map((each, at) => {
            const before = points[Math.max(0, at - SMOOTHED)];
            const seconds = Math.max(0.1, each.elapsed - before.elapsed);
            return STATES.slice(0, 4).map(([name]) => Math.max(0, each[name] - before[name]) / seconds);
        }),
    );
}

const SMOOTHED = 4; // points over which outcomes per second are taken

function counts() {
    const progress = levels?.progress;
    if (ending?.report && report !== null) return reported(report); // otherwise the last progress is newer
    if (progress) return Object.fromEntries([["total", progress.total], ...STATES.map(([name]) => [name, progress[name]])]);
    return report === null ? null : reported(report);
}

/** The counts of a report: accounts that were not sent wait, as long as the job is not complete. */
function reported({accounts, skipped, complete, done_word: word}) {
    const waiting = complete ? 0 : skipped.not_sent;
    return {...accounts, done: accounts[word], waiting, skipped: accounts.skipped - waiting};
}

function drawProgress() {
    const found = counts();
    if (found === null) return;
    const total = Math.max(1, found.total);
    const settled = found.total - found.waiting;
    let x = 0;
    const parts = STATES.slice(0, 6)
        .filter(([name]) => found[name] > 0)
        .map(([name, tone]) => {
            const width = (1000 * found[name]) / total;
            const part = svg("rect", {class: tone, x, y: 0, width, height: 10});
            x += width;
            return part;
        });
    bar.replaceChildren(...parts);
    const said = STATES.filter(([name]) => found[name] > 0).map(([name]) => `${number(found[name])} ${t(name)}`);
    bar.setAttribute("aria-label", said.join(", "));
    fill(
        legend,
        STATES.map(([name, tone]) =>
            h("li", {class: tone, "data-state": name, "data-count": found[name]}, h("span", {class: "swatch", "aria-hidden": "true"}), t(name), h("output", {}, number(found[name]))),
        ),
    );
    const added = STATES.reduce((all, [name]) => all + found[name], 0);
    fill(sum, t("sum", {sum: STATES.filter(([name]) => found[name] > 0).map(([name]) => number(found[name])).join(" + ") || "0", total: number(found.total)}));
    sum.dataset.sum = String(added);
    sum.dataset.total = String(found.total);
    const progress = levels?.progress;
    const percent = found.total === 0 ? 0 : Math.floor((100 * settled) / found.total);
    const running = progress && ending === null;
    const facts = [
        [`${number(settled)} / ${number(found.total)}`, t("rows")],
        [`${percent} %`, t("settled")],
        running && [t("per second", {n: precise(progress.request_rate)}), t("requests")],
        running && [t("per second", {n: precise(progress.rate)}), t("accounts")],
        running && [`${number(progress.in_flight)} / ${number(progress.concurrency)}`, t("in flight")],
        running && progress.eta !== null && found.waiting > 0 && [duration(progress.eta), t("eta")],
        progress && [duration(progress.elapsed), t("elapsed")],
    ].filter(Boolean);
    fill(figures, facts.map(([value, name]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function precise(value) {
    return value >= 100 ? number(value) : value.toFixed(1);
}

function drawPace() {
    const progress = levels?.progress;
    const now = ending !== null ? "ended" : (levels?.why ?? "loading");
    const values = {begins: progress?.adaptive_rate, throttled: progress?.adaptive_rate, concurrency: progress?.concurrency, draining: progress?.in_flight};
    fill(why, t(`why ${now}`, {n: number(values[now] ?? 0)}));
    cause.hidden = !progress?.cause || ending !== null;
    fill(cause, shown(progress?.cause ?? "", {most: 400}));
    const settings = levels?.settings ?? {};
    const rates = (settings.rates ?? []).map(rate => {
        const text = rateText(rate);
        return rate.each_group ? t("limits group", {rate: text}) : text;
    });
    const known = [...(rates.length > 0 ? rates : [t("limits none")]), settings.concurrency && t("limits concurrency", {n: number(settings.concurrency)}), settings.adaptive && t("limits adaptive")];
    fill(limits, settings.concurrency ? `${t("limits")}: ${known.filter(Boolean).join(" · ")}` : "");
}

function rateText({limit, per}) {
    const units = {1: "/s", 60: "/min", 3600: "/h"};
    return units[per] ? `${number(limit)}${units[per]}` : `${number(limit)}/${per} s`;
}

function drawTop() {
    const progress = levels?.progress;
    if (levels) {
        fill(title, levels.command);
        fill(source, shown((report?.job?.source?.name || levels.journal).split(/[\\/]/u).at(-1), {most: 60}));
    }
    const now = ending !== null ? "ended" : progress?.phase;
    if (now) {
        phase.className = `pill ${TONES[now]}`;
        phase.textContent = t(`phase ${now}`);
    }
    const percent = progress && progress.total > 0 ? `${Math.floor((100 * (progress.total - progress.waiting)) / progress.total)} % · ` : "";
    document.title = `${percent}${levels?.command ?? "rbim"}`;
}

// ------------------------------------------------------------------------------ the end

function drawEnd() {
    if (ending === null) return;
    const {code, meaning, steps = []} = ending;
    const tone = code === 0 ? "good" : code === null || code === undefined || [3, 130].includes(code) ? "warn" : "bad";
    result.className = `card result ${tone}`;
    result.hidden = false;
    const lines =
        code === null || code === undefined
            ? [h("h2", {}, t(ending.gone ? "ended gone" : "ended killed"))]
            : [h("h2", {}, t("ended exit", {code, meaning: has(`exit ${code}`) ? t(`exit ${code}`) : meaning}))];
    const commands = steps.length > 0 || code !== null ? steps : [];
    fill(
        result,
        lines,
        commands.length > 0 && h("h3", {class: "section"}, t("next steps")),
        commands.map(step => h("div", {}, h("p", {}, shown(stepText(step))), step.command && command(step.command))),
        h("p", {class: "muted"}, t("ended note")),
    );
}

/** The text of a step in the language of the page; the command's own text, if it is of no known kind. */
function stepText({text, kind, reason: stop, left, cause: why_}) {
    if (!has(`step ${kind}`)) return text;
    const counted = Object.entries(left).filter(([, count]) => count > 0).map(([name, count]) => `${number(count)} ${t(`left ${name}`)}`);
    const said = stop && has(`stop ${stop}`) ? t(`stop ${stop}`) : stop;
    return t(`step ${kind}`, {stop: why_ ? `${said}: ${why_}` : said, left: counted.join(", ")});
}

function command(text) {
    return h("div", {class: "command"}, h("pre", {tabindex: "0"}, shown(text)), copyButton({text: () => text, label: t("copy"), done: t("copied"), failed: t("copy failed")}));
}

// ------------------------------------------------------------------------------ reasons

const reasons = h("section", {class: "stack"});

function drawReasons() {
    const list = report?.reasons ?? [];
    panel.badge("reasons", list.length > 0 ? number(list.length) : "");
    if (list.length === 0) {
        fill(reasons, h("div", {class: "table-card"}, h("div", {class: "empty"}, t("reasons empty"))));
        return;
    }
    const focused = reasons.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const rows = list.map(each => {
        const key = `${each.state} ${each.code} ${each.text}`;
        const choose = {state: stateWord(each.state), reason: each.text, code: each.code};
        const waits = each.state === "waiting";
        return h(
            "tr",
            {},
            h("td", {"data-label": t("column state")}, h("span", {class: `tag ${tone(each.state)}`}, stateText(each.state))),
            h("td", {class: "line", "data-label": t("reason")}, shown(each.text || "–", {most: 300})),
            h("td", {class: "mono narrow", "data-label": t("code")}, each.code || each.error || ""),
            h("td", {class: "number", "data-label": t("accounts")}, number(each.accounts)),
            h(
                "td",
                {class: "narrow"},
                !waits &&
                    ending === null &&
                    h(
                        "div",
                        {class: "button-row"},
                        h("button", {type: "button", class: "small", "data-key": key, onclick: () => showAccounts(choose)}, t("show accounts")),
                        h("button", {type: "button", class: "small", "data-key": `${key} csv`, onclick: () => fetchFile(choose)}, t("download")),
                    ),
            ),
        );
    });
    const left = report.reasons_left_off;
    fill(
        reasons,
        h(
            "div",
            {class: "table-card"},
            h(
                "table",
                {class: "rows"},
                h("caption", {class: "offscreen"}, t("reasons")),
                h(
                    "thead",
                    {},
                    h(
                        "tr",
                        {},
                        h("th", {scope: "col"}, t("column state")),
                        h("th", {scope: "col"}, t("reason")),
                        h("th", {scope: "col"}, t("code")),
                        h("th", {scope: "col", class: "number"}, t("accounts")),
                        h("th", {scope: "col"}, h("span", {class: "offscreen"}, t("show accounts"))),
                    ),
                ),
                h("tbody", {}, rows),
            ),
        ),
        left && h("p", {class: "muted"}, t("reasons left off", {reasons: number(left.reasons), accounts: number(left.accounts)})),
    );
    if (focused) [...reasons.querySelectorAll("button")].find(each => each.dataset.key === focused)?.focus();
}

const tone = state => ({refused: "warn", failed: "bad", unknown: "info", waiting: "warn", duplicate: "", skipped: ""})[state] ?? "good";
/** The word of an outcome in the report's rows: a done account has the word of its operation, such as "invited". */
const stateWord = state => (state === "done" ? (report?.done_word ?? "done") : state);
const stateText = state => (state === report?.done_word ? t("done") : has(state) ? t(state) : state);

// ------------------------------------------------------------------------------ accounts

const outcome = h(
    "select",
    {"aria-label": t("column state")},
    h("option", {value: ""}, t("all outcomes")),
    ["done", "refused", "failed", "unknown", "skipped", "duplicate"].map(name => h("option", {value: name}, t(name))),
);
const search = h("input", {type: "search", placeholder: t("search"), "aria-label": t("search")});
const narrowing = h("div", {class: "narrowing", hidden: true});
const save = h("button", {type: "button", onclick: () => fetchFile(choice())}, t("download"));
const body = h("tbody");
const none = h("div", {class: "empty"}, t("accounts intro"));
const more = h("button", {type: "button", onclick: () => load(true)}, t("more"));
const moreRow = h("div", {class: "more", hidden: true}, more);
const table = h(
    "table",
    {class: "rows", hidden: true},
    h("caption", {class: "offscreen"}, t("accounts")),
    h(
        "thead",
        {},
        h(
            "tr",
            {},
            ["row", "account", "group", "state", "reason"].map(name => h("th", {scope: "col", class: name === "row" ? "number" : null}, t(`column ${name}`))),
        ),
    ),
    body,
);
const accounts = h(
    "section",
    {class: "live-list accounts"},
    h("div", {class: "toolbar", role: "search", "aria-label": t("accounts")}, search, outcome, save, narrowing),
    h("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": t("accounts")}, table, none, moreRow),
);

let reason = null; // {reason, code} of the reasons tab
let last = 0;
let asked = 0;

const choice = () => ({state: outcome.value === "" ? null : stateWord(outcome.value), text: search.value, ...(reason ?? {})});

function showAccounts({state, reason: text, code}) {
    outcome.value = [...outcome.options].some(each => each.value === state) ? state : "";
    reason = {reason: text, code};
    search.value = "";
    panel.show("accounts");
    load(false);
}

async function load(further) {
    fill(
        narrowing,
        reason && [`${t("reason")}: `, shown(reason.reason || "–", {most: 200}), " ", h("button", {type: "button", class: "small", onclick: anyReason}, t("all reasons"))],
    );
    narrowing.hidden = reason === null;
    const number_ = ++asked;
    accounts.setAttribute("aria-busy", "true");
    const query = new URLSearchParams({after: further ? last : 0});
    for (const [name, value] of Object.entries(choice())) if (value !== null && value !== "") query.set(name, value);
    try {
        const {rows, more: others} = await ask("GET", `accounts?${query}`);
        if (number_ !== asked) return;
        if (!further) body.replaceChildren();
        body.append(...rows.map(row));
        last = rows.at(-1)?.row ?? last;
        table.hidden = body.children.length === 0;
        none.hidden = !table.hidden;
        none.textContent = t("accounts empty");
        moreRow.hidden = !others;
    } catch (error) {
        warn(error.message || t("unreachable"));
    } finally {
        if (number_ === asked) accounts.removeAttribute("aria-busy");
    }
}

function anyReason() {
    reason = null;
    load(false);
}

function row(each) {
    return h(
        "tr",
        {},
        h("td", {class: "number", "data-label": t("column row")}, number(each.row)),
        h("td", {"data-label": t("column account")}, shown(each.account, {most: 100})),
        h("td", {class: "muted", "data-label": t("column group")}, shown(each.group, {most: 100})),
        h("td", {"data-label": t("column state")}, h("span", {class: `tag ${tone(each.state)}`}, stateText(each.state))),
        h("td", {class: "line", "data-label": t("column reason")}, each.reason && shown(each.reason, {most: 200})),
    );
}

let typing = 0;
search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => load(false), 250);
});
outcome.addEventListener("change", () => {
    reason = null;
    load(false);
});

async function fetchFile(wanted) {
    try {
        const {path, name} = await ask("POST", "download", wanted);
        h("a", {href: path.slice(1), download: name}).click(); // a path for one use, without the token
    } catch (error) {
        warn(error.message || t("unreachable"));
    }
}

// ------------------------------------------------------------------------------ details

const details = h("section", {class: "stack"});

function drawDetails() {
    if (report === null) {
        fill(details, h("div", {class: "table-card"}, h("div", {class: "empty"}, t("why loading"))));
        return;
    }
    const {requests, job} = report;
    const facts = [
        [t("source"), shown(job.source?.name || "–")],
        [t("journal"), h("code", {}, shown(levels?.journal ?? ""))],
        [t("requests"), t("requests value", Object.fromEntries(["sent", "answered", "refused", "throttled", "unknown"].map(name => [name, number(requests[name])])))],
        [t("sent again"), t("sent again value", Object.fromEntries(["repeated", "resent", "split"].map(name => [name, number(requests[name])])))],
        requests.latency && [t("latency"), t("latency value", Object.fromEntries(Object.entries(requests.latency).map(([name, value]) => [name, duration(value)])))],
    ].filter(Boolean);
    fill(
        details,
        h("section", {class: "card"}, h("dl", {class: "facts"}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))),
        listed(t("runs"), [t("run"), t("run began"), t("run seconds"), t("run why")], report.runs.map(each => [each.id, dateTime(each.began), duration(each.seconds), each.why ?? t("still")])),
        listed(t("bad rows"), [t("line"), t("reason"), t("raw")], report.bad_rows.map(each => [each.line, each.reason, shown(each.raw, {most: 200})])),
        listed(
            t("duplicates"),
            [t("column row"), t("column account"), t("column group"), ""],
            report.duplicates.map(each => [each.row, shown(each.account), shown(each.group), t("repeats", {n: number(each.first_row)})]),
        ),
        listed(
            t("anomalies"),
            [t("column account"), t("column group"), t("reason")],
            report.anomalies.first.map(each => [shown(each.account), shown(each.group), shown(each.reason)]),
        ),
    );
}

function listed(caption, heads, rows) {
    if (rows.length === 0) return null;
    return h(
        "div",
        {},
        h("h3", {class: "section"}, caption),
        h(
            "div",
            {class: "table-card", tabindex: "0", role: "group", "aria-label": caption},
            h(
                "table",
                {},
                h("caption", {class: "offscreen"}, caption),
                h("thead", {}, h("tr", {}, heads.map(each => h("th", {scope: "col"}, each || h("span", {class: "offscreen"}, caption))))),
                h("tbody", {}, rows.map(cells => h("tr", {}, cells.map(cell => h("td", {}, cell))))),
            ),
        ),
    );
}

// ------------------------------------------------------------------------------ the page

const panel = tabs({
    label: t("title"),
    tabs: [
        {id: "overview", label: t("overview"), panel: overview},
        {id: "reasons", label: t("reasons"), panel: reasons},
        {id: "accounts", label: t("accounts"), panel: h("section", {}, accounts), onShow: () => ending === null && body.children.length === 0 && load(false)},
        {id: "detail", label: t("detail"), panel: details},
    ],
});

function begin() {
    document.body.append(
        h(
            "header",
            {class: "top-bar"},
            h("div", {class: "bar"}, h("div", {class: "brand"}, h("img", {src: "static/parts/icon.svg", alt: ""}), title), phase, source, h("span", {class: "spring"}), live),
            panel.bar,
        ),
        h("main", {}, panel.panels),
        notices,
    );
    panel.begin();
    drawReasons();
    drawDetails();
    const end = watch({
        url: "events",
        source: authorizedSource,
        stays: true,
        onState: state => {
            const missing = state === "lost" && levels !== null && ending === null;
            if (state === "open") {
                clearTimeout(gone);
                gone = 0;
            } else if (missing && gone === 0) {
                gone = setTimeout(() => finish({code: null, gone: true}), GONE_AFTER);
            }
            if (ending !== null) return;
            live.className = `pill ${{open: "good", lost: "bad", paused: ""}[state]}`;
            live.textContent = t({open: "live", lost: "live lost", paused: "live paused"}[state]);
        },
        onLevels: now => {
            levels = now;
            drawTop();
            drawProgress();
            drawPace();
        },
        streams: {
            points: {
                onStart: () => (points = []),
                onItems: items => {
                    points.push(...items);
                    if (items.length > 0) drawCharts();
                },
            },
            report: {
                onItems: items => {
                    if (items.length === 0) return;
                    report = items.at(-1);
                    drawTop();
                    drawReasons();
                    drawDetails();
                    if (ending !== null) drawProgress();
                },
            },
            end: {onItems: items => items.length > 0 && finish(items.at(-1))},
        },
    });

    function finish(document_) {
        if (ending !== null) return;
        ending = document_;
        end();
        live.hidden = true;
        for (const control of [search, outcome, save, more]) control.disabled = true;
        drawTop();
        drawProgress();
        drawPace();
        drawEnd();
        drawReasons();
        drawDetails();
    }
}

if (token === "") document.body.append(h("main", {}, h("h1", {}, "rbim"), h("p", {}, t("no token"))));
else begin();
