// The page of a receiver: what comes in, what waits, and the dead letters and the quarantine of its inbox.

import {authorizedSource, takeToken} from "../parts/access.js";
import {chart} from "../parts/chart.js";
import {confirmed, openDialog} from "../parts/dialog.js";
import {fill, h, shown} from "../parts/dom.js";
import {liveList} from "../parts/list.js";
import {notices, notify, warn} from "../parts/notice.js";
import {ask} from "../parts/request.js";
import {watch} from "../parts/stream.js";
import {tabs} from "../parts/tabs.js";
import {speech} from "../parts/words.js";
import {words} from "./words.js";

const {t, has, number, duration, time, dateTime} = speech(words);
const GONE_AFTER = 4000; // milliseconds without a connection after which the command is taken for gone
const TONES = {handled: "good", failed: "warn", dead: "bad", quarantine: "warn", overflow: "info"};

let levels = null;
let ended = false;
let gone = 0;

const token = takeToken();

// ------------------------------------------------------------------------------ overview

const phase = h("span", {class: "pill"}, t("not connected"));
const live = h("span", {class: "pill"}, t("not connected"));
const inbox = h("span", {class: "muted"});
const banner = h("div", {class: "banner", role: "status", hidden: true});
const figures = h("dl", {class: "figures"});
const notes = h("div", {});
const coming = chart({
    label: t("chart deliveries"),
    series: [
        {name: t("accepted"), class: "good"},
        {name: t("refused"), class: "bad"},
        {name: t("unavailable"), class: "warn plain"},
    ],
    number,
});
const working = chart({
    label: t("chart handling"),
    series: [
        {name: t("handled"), class: "good"},
        {name: t("failed attempts"), class: "bad"},
    ],
    number,
});
const waiting = chart({
    label: t("chart waiting"),
    series: [
        {name: t("waiting"), class: "info"},
        {name: t("in work"), class: "warn plain"},
    ],
    number,
});
const charts = h("div", {class: "cards charts"}, [coming, working, waiting].map(each => h("section", {class: "card"}, each.element)));

let points = [];

function drawCharts() {
    coming.set(points.map(each => [each.accepted, each.refused, each.unavailable]));
    working.set(points.map(each => [each.handled, each.failed]));
    waiting.set(points.map(each => [each.waiting ?? null, each.in_work]));
}

function drawFigures() {
    const {counters, counts, lag, problem, rate} = levels;
    const facts = [
        [t("per second", {n: rate >= 100 ? number(rate) : rate.toFixed(1)}), t("rate")],
        [number(counters.deliveries), t("received")],
        [number(counters.refused), t("refused"), counters.refused > 0],
        counts && [number(counts.waiting), t("waiting")],
        counts && counts.waiting > 0 && [duration(Math.max(lag, 0.001)), t("lag")],
        levels.handling.length > 0 && [number(counters.in_work), t("in work")],
        counts && [number(counts.done), t("done")],
        counts && [number(counts.dead), t("dead"), counts.dead > 0],
        counts && [number(counts.quarantined), t("in quarantine"), counts.quarantined > 0],
    ].filter(Boolean);
    fill(figures, facts.map(([value, name, bad]) => h("div", {}, h("dt", {}, name), h("dd", {class: bad ? "bad" : null}, value))));
    const by = levels.handling.length === 0 ? t("by nothing") : levels.handling.map(each => t(`by ${each}`)).join(", ");
    fill(
        notes,
        h("p", {class: "note"}, `${t("address")} `, h("code", {}, shown(levels.url)), ` · ${t("mode")}: ${levels.mode} · ${t("handling")} ${by}.`),
        levels.kind === "servers" && h("p", {class: "note"}, t("on servers")),
    );
    if (!ended) {
        banner.hidden = !problem;
        fill(banner, problem ? t("not available", {problem}) : "");
    }
    fill(inbox, shown(levels.kind === "file" ? levels.inbox.split(/[\\/]/u).at(-1) : levels.inbox, {most: 60}));
    panel.badge("dead", counts?.dead ? number(counts.dead) : "");
    panel.badge("quarantine", counts?.quarantined ? number(counts.quarantined) : "");
    document.title = `${number(counters.deliveries)} · rbim callback serve`;
}

// ------------------------------------------------------------------------------ deliveries

const byNumber = new Map();

function answer({status}) {
    const tone = status === 200 ? "good" : status === null ? "" : status >= 500 ? "warn" : "bad";
    return h("span", {class: `tag ${tone}`}, status === null ? "–" : String(status));
}

function stateOf({state, attempt, status, type}) {
    // events that another process handles end there
    if (state === "") return status === 200 && type !== "" && levels?.handling.length > 0 ? h("span", {class: "tag"}, t("waiting")) : "";
    const name = state === "handled" && attempt > 1 ? "handled later" : state;
    return h("span", {class: `tag ${TONES[state] ?? ""}`}, t(`state ${name}`, {n: attempt}));
}

function sentence(item) {
    const text = item.finding ?? (item.detail || item.error);
    return text ? h("span", {class: "why"}, shown(text, {most: 240})) : "";
}

const list = liveList({
    caption: t("deliveries"),
    empty: t("deliveries empty"),
    t,
    number,
    columns: [
        {label: t("column time"), cell: item => time(item.at), class: "narrow"},
        {label: t("column answer"), cell: answer, class: "narrow"},
        {label: t("column type"), cell: item => [shown(item.type || "–", {most: 60}), item.resent ? ` (${t("resent")})` : ""], class: "narrow"},
        {label: t("column conversation"), cell: item => shown(item.conversation || "–", {most: 80}), class: "conversation"},
        {label: t("state"), cell: item => [stateOf(item), sentence(item)], class: "line"},
    ],
    filters: [
        {
            label: t("column answer"),
            options: [
                ["", t("every type")],
                ["accepted", t("filter accepted")],
                ["refused", t("filter refused")],
                ["trouble", t("filter trouble")],
            ],
            accepts: (item, value) =>
                value === "" ||
                (value === "accepted" && item.status === 200) ||
                (value === "refused" && item.status !== 200) ||
                (value === "trouble" && ["failed", "dead", "quarantine"].includes(item.state)),
        },
    ],
    key: item => item.number,
    text: item => [item.type, item.conversation, item.key, item.reason, item.detail, item.error, item.finding, item.status].join(" "),
    open: show,
});

function received(items) {
    for (const item of items) byNumber.set(item.number, item);
    for (const old of byNumber.keys()) {
        if (byNumber.size <= 1000) break;
        byNumber.delete(old);
    }
    diagnoseLater(items.filter(isRefused));
}

const isRefused = item => item.status !== null && item.status !== 200 && item.status < 500;

// The newest refused deliveries are explained by themselves, one at a time: a flood of them must not keep the receiver busy.

const NEWEST = 5;
const PAUSE = 500; // milliseconds
let unexplained = [];
let explaining = false;

function diagnoseLater(items) {
    unexplained = [...unexplained, ...items].slice(-NEWEST);
    if (!explaining) explain();
}

async function explain() {
    explaining = true;
    while (unexplained.length > 0 && !ended) {
        const item = unexplained.pop();
        try {
            const {findings} = await ask("GET", `refused?number=${item.number}`);
            if (findings.length > 0) {
                item.finding = findings[0].text.split(/(?<=\.) (?=[A-Z])/u)[0]; // its first sentence
                list.update(item);
            }
        } catch {
            // the sentence of the refusal stays
        }
        await new Promise(resolve => setTimeout(resolve, PAUSE));
    }
    explaining = false;
}

async function show(item) {
    const facts = [
        [t("column time"), dateTime(item.at)],
        [t("column answer"), [answer(item), ` ${number(item.ms)} ms`]],
        [t("column type"), shown(item.type || "–")],
        [t("column conversation"), shown(item.conversation || "–")],
        item.key && [t("key"), h("code", {}, item.key)],
        item.state && [t("state"), stateOf(item)],
        item.reason && [t("reason"), [item.reason, item.detail ? ": " : "", shown(item.detail)]],
        item.error && [t("the error"), shown(item.error)],
    ].filter(Boolean);
    const diagnosis = h("div", {});
    openDialog({
        title: `${t("column event")} ${number(item.number)}`,
        close: t("close"),
        body: [h("dl", {class: "facts"}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])), isRefused(item) && h("h3", {}, t("diagnosis")), diagnosis],
    });
    if (!isRefused(item)) return;
    fill(diagnosis, h("p", {class: "muted"}, t("working")));
    try {
        const {findings} = await ask("GET", `refused?number=${item.number}`);
        fill(diagnosis, findings.length > 0 ? findings.map(each => h("p", {class: "finding"}, shown(each.text))) : h("p", {class: "muted"}, t("diagnosis none")));
    } catch (error) {
        fill(diagnosis, h("p", {class: "problem"}, error.message || t("unreachable")));
    }
}

// ------------------------------------------------------------------------------ dead letters and quarantine

function letters(kind) {
    let reason = null;
    let last = 0;
    let asked = 0;
    let known = -1; // the number of letters when they were last read

    const groups = h("tbody");
    const body = h("tbody");
    const counted = h("p", {class: "note", hidden: true});
    const narrowed = h("span", {class: "muted"});
    const any = h("button", {type: "button", class: "small", hidden: true, onclick: () => choose(null)}, t("show all"));
    const none = h("div", {class: "empty"}, t(`empty ${kind}`));
    const moreRow = h("div", {class: "more", hidden: true}, h("button", {type: "button", onclick: () => read(true)}, t("more")));
    const groupCard = h(
        "div",
        {class: "table-card reasons-card", hidden: true},
        h(
            "div",
            {class: "scroll", tabindex: "0", role: "group", "aria-label": t("reasons")},
            h(
                "table",
                {class: "rows"},
                h("caption", {class: "offscreen"}, t("reasons")),
                head([t("column error"), t("column events"), t("requeue")], [null, "number", "narrow"]),
                groups,
            ),
        ),
    );
    const table = h(
        "table",
        {class: "rows"},
        h("caption", {class: "offscreen"}, t(kind)),
        head([t("column number"), t("column received"), t("column type"), t("column conversation"), t("column error"), t("requeue")], ["narrow", "narrow", "narrow", null, null, "narrow"]),
        body,
    );
    const refresh = h("button", {type: "button", onclick: () => read(false)}, t("refresh"));
    const listCard = h(
        "div",
        {class: "live-list"},
        h("div", {class: "toolbar", role: "group", "aria-label": t(kind)}, refresh, any, narrowed),
        h("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": t(kind)}, table, none, moreRow),
    );
    const element = h("section", {class: "stack"}, h("p", {class: "note"}, t(`intro ${kind}`)), groupCard, counted, listCard);

    function choose(text) {
        reason = text;
        read(false);
    }

    async function read(further) {
        const turn = ++asked;
        any.hidden = reason === null;
        fill(narrowed, reason === null ? "" : shown(reason, {most: 120}));
        const query = new URLSearchParams({kind, after: further ? last : 0});
        if (reason !== null) query.set("reason", reason);
        listCard.setAttribute("aria-busy", "true");
        try {
            const [found, grouped] = await Promise.all([ask("GET", `letters?${query}`), further ? null : ask("GET", `reasons?kind=${kind}`)]);
            if (turn !== asked) return;
            known = levels?.counts?.[kind === "dead" ? "dead" : "quarantined"] ?? -1;
            if (!further) body.replaceChildren();
            body.append(...found.letters.map(row));
            last = found.letters.at(-1)?.number ?? last;
            table.hidden = body.children.length === 0;
            none.hidden = !table.hidden;
            moreRow.hidden = !found.more;
            if (grouped !== null) {
                groupCard.hidden = grouped.reasons.length === 0;
                fill(groups, grouped.reasons.map(group));
                const total = levels?.counts?.[kind === "dead" ? "dead" : "quarantined"] ?? 0;
                const lines = [grouped.others > 0 && t("others", {n: number(grouped.others)}), total > grouped.counted && t("letters counted", {n: number(grouped.counted)})].filter(Boolean);
                counted.hidden = lines.length === 0;
                counted.textContent = lines.join(" ");
            }
        } catch (error) {
            warn(error.message || t("unreachable"));
        } finally {
            if (turn === asked) listCard.removeAttribute("aria-busy");
        }
    }

    function group({reason: text, events}) {
        return h(
            "tr",
            {},
            h("td", {class: "line", "data-label": t("column error")}, h("button", {type: "button", class: "link", onclick: () => choose(text)}, shown(text || "–", {most: 200}))),
            h("td", {class: "number", "data-label": t("column events")}, number(events)),
            h("td", {class: "narrow"}, h("button", {type: "button", class: "small", onclick: () => requeue({reason: text}, events)}, t("requeue all"))),
        );
    }

    function row(letter) {
        return h(
            "tr",
            {},
            h("td", {class: "narrow"}, h("button", {type: "button", class: "link", onclick: () => detail(letter)}, number(letter.number))),
            h("td", {class: "narrow", "data-label": t("column received")}, dateTime(letter.received)),
            h("td", {class: "narrow", "data-label": t("column type")}, shown(letter.msg_type || "–", {most: 60})),
            h("td", {"data-label": t("column conversation")}, shown(letter.conversation, {most: 80})),
            h("td", {class: "line", "data-label": t("column error")}, shown(letter.headline || "–", {most: 200})),
            h("td", {class: "narrow"}, h("button", {type: "button", class: "small", onclick: () => requeue({number: letter.number}, 1)}, t("requeue"))),
        );
    }

    async function requeue(wanted, count) {
        const yes = t(wanted.reason === undefined ? "requeue" : "requeue all");
        if (!(await confirmed({title: t("requeue title"), text: t("requeue ask", {n: number(count)}), yes, no: t("cancel")}))) return;
        try {
            const {events, left} = await ask("POST", "requeue", {kind, ...wanted});
            if (left.length > 0) warn(t("requeue left", {done: number(events), left: number(left.length)}));
            else notify(t("requeue ok", {n: number(events)}));
        } catch (error) {
            warn(error.message || t("unreachable"));
        }
        await read(false);
    }

    async function detail(letter) {
        const content = h("div", {class: "stack"}, h("p", {class: "muted"}, t("working")));
        openDialog({
            title: `${t(kind)} ${number(letter.number)}`,
            close: t("close"),
            body: [content],
            actions: [h("button", {type: "button", onclick: () => requeue({number: letter.number}, 1)}, t("requeue"))],
        });
        try {
            const whole = await ask("GET", `letter?kind=${kind}&number=${letter.number}`);
            const facts = [
                [t("column type"), shown(whole.msg_type || "–")],
                [t("column conversation"), shown(whole.conversation)],
                [t("column received"), dateTime(whole.received)],
                kind === "dead" && [t("attempts"), number(whole.attempts)],
                [t("key"), h("code", {}, whole.key)],
            ].filter(Boolean);
            fill(
                content,
                h("dl", {class: "facts"}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
                h("h3", {}, t("the error")),
                h("pre", {tabindex: "0"}, shown(whole.error, {lines: true})),
                h("h3", {}, t(whole.body === null ? "body text" : "body")),
                h("pre", {tabindex: "0"}, shown(whole.body === null ? whole.text : JSON.stringify(whole.body, null, 2), {lines: true, most: 100_000})),
            );
        } catch (error) {
            fill(content, h("p", {class: "problem"}, error.message || t("unreachable")));
        }
    }

    return {
        element,
        read: () => read(false),
        /** Read again if there are others than before, while the tab is shown. */
        changed(count) {
            if (panel.shown() === kind && count !== known && body.children.length < 200 && !listCard.hasAttribute("aria-busy")) read(false);
        },
        end: () => element.querySelectorAll("button").forEach(button => (button.disabled = true)),
    };
}

function head(names, classes) {
    return h("thead", {}, h("tr", {}, names.map((name, at) => h("th", {scope: "col", class: classes[at]}, name))));
}

const dead = letters("dead");
const quarantine = letters("quarantine");

// ------------------------------------------------------------------------------ the page

const deliveries = h("section", {class: "stack"}, banner, h("section", {class: "card"}, figures, notes), charts, list.element);

const panel = tabs({
    label: t("title"),
    tabs: [
        {id: "deliveries", label: t("deliveries"), panel: deliveries},
        {id: "dead", label: t("dead"), panel: dead.element, onShow: () => !ended && dead.read()},
        {id: "quarantine", label: t("quarantine"), panel: quarantine.element, onShow: () => !ended && quarantine.read()},
    ],
});

function begin() {
    document.body.append(
        h(
            "header",
            {class: "top-bar"},
            h("div", {class: "bar"}, h("div", {class: "brand"}, h("img", {src: "static/parts/icon.svg", alt: ""}), h("h1", {}, "rbim callback serve")), phase, inbox, h("span", {class: "spring"}), live),
            panel.bar,
        ),
        h("main", {}, panel.panels),
        notices,
    );
    const stop = watch({
        url: "events",
        source: authorizedSource,
        stays: true,
        onState: state => {
            if (state === "open") {
                clearTimeout(gone);
                gone = 0;
            } else if (state === "lost" && levels !== null && gone === 0) {
                gone = setTimeout(finish, GONE_AFTER);
            }
            if (ended) return;
            live.className = `pill ${{open: "good", lost: "bad", paused: ""}[state]}`;
            live.textContent = t({open: "live", lost: "live lost", paused: "live paused"}[state]);
        },
        onLevels: now => {
            levels = now;
            phase.className = "pill good";
            phase.textContent = t("running");
            drawFigures();
            if (now.counts) {
                dead.changed(now.counts.dead);
                quarantine.changed(now.counts.quarantined);
            }
        },
        streams: {
            deliveries: {
                onStart: () => {
                    list.clear();
                    byNumber.clear();
                },
                onItems: (items, {missed, count}) => {
                    received(items);
                    list.add(items, {all: count});
                    if (missed > 0) list.missed(missed);
                    panel.badge("deliveries", count > 0 ? number(count) : "");
                },
            },
            changes: {
                onItems: items => {
                    for (const change of items) {
                        const item = byNumber.get(change.number);
                        if (item !== undefined) list.update(Object.assign(item, change));
                    }
                },
            },
            points: {
                onStart: () => (points = []),
                onItems: items => {
                    points.push(...items);
                    if (items.length > 0) drawCharts();
                },
            },
            end: {onItems: items => items.length > 0 && finish()},
        },
    });

    function finish() {
        if (ended) return;
        ended = true;
        stop();
        live.hidden = true;
        phase.className = "pill";
        phase.textContent = t("stopped");
        banner.hidden = false;
        banner.textContent = t("gone");
        dead.end();
        quarantine.end();
    }
    panel.begin();
}

if (token === "") document.body.append(h("main", {}, h("h1", {}, "rbim"), h("p", {}, t("no token"))));
else begin();
