// The live list of requests, the rates of the last two minutes, and one request with everything that was sent and answered.

import {chart} from "../parts/chart.js";
import {copyButton} from "../parts/copy.js";
import {openDialog} from "../parts/dialog.js";
import {fill, h, shown} from "../parts/dom.js";
import {facts} from "../parts/facts.js";
import {liveList} from "../parts/list.js";

const SUCCESS = "000000";
const SLOW = ["delay", "body_time", "retry_after"]; // faults with which the client still gets the platform's answer
const LATEST = 100; // answers of which the median is taken

export function requestsView(page) {
    const {t, number, duration} = page;
    const waiting = new Map(); // requests without an answer yet, by number
    const took = []; // of the latest answers, in seconds
    const second = {done: 0, refused: 0, fault: 0};

    const figures = {total: h("dd", {id: "total"}, "0"), rate: h("dd", {}, "0"), latency: h("dd", {}, "–")};
    const rates = chart({
        label: t("per second, last two minutes"),
        series: [
            {name: t("done"), class: "good"},
            {name: t("refused"), class: "warn"},
            {name: t("fault"), class: "bad"},
        ],
        number,
    });
    const list = liveList({
        caption: t("tab requests"),
        empty: noRequests(page),
        t,
        number,
        key: item => item.number,
        text: item => [item.operation, item.account, item.code, item.path, ...item.trouble, ...(item.values ?? []).flat()].join(" "),
        open: item => openRequest(page, item),
        filters: [
            {
                label: t("outcome"),
                options: [["", t("every outcome")], ["done", t("done")], ["refused", t("refused")], ["fault", t("fault")]],
                accepts: (item, wanted) => wanted === "" || outcome(item) === wanted,
            },
        ],
        columns: [
            {label: "#", class: "number narrow", cell: item => number(item.number)},
            {label: t("time"), class: "narrow muted", cell: item => h("span", {class: "time"}, time(page, item))},
            {label: t("operation"), class: "narrow strong", cell: item => (item.operation === undefined ? shown(lastPart(item.path), {most: 40}) : item.operation)},
            {label: t("account"), class: "narrow", cell: item => (item.account === undefined ? "" : shown(item.account, {most: 24}))},
            {label: t("values"), class: "line", cell: item => valuesOf(item)},
            {label: t("outcome"), class: "narrow", cell: item => result(page, item)},
            {label: t("latency"), class: "number narrow", cell: item => (item.took === null ? (item.kept ? "…" : "") : duration(item.took))},
        ],
    });

    const named = {total: t("tab requests"), rate: t("per second"), latency: t("median latency")};
    const numbers = Object.entries(named).map(([name, label]) => h("div", {}, h("dt", {}, label), figures[name]));
    const head = h("div", {class: "card overview"}, h("dl", {class: "figures"}, numbers), rates.element);

    /** Take what is new: requests, and the times of answers that earlier ones had not had yet. */
    function add({items, took: times, missed}, all) {
        for (const item of items) {
            second[outcome(item)] += 1;
            if (item.took === null && item.kept) waiting.set(item.number, item);
            else if (item.took !== null) note(item.took);
        }
        if (waiting.size > 1000) waiting.delete(waiting.keys().next().value);
        if (missed > 0) list.missed(missed);
        list.add(items, {all});
        for (const [name, seconds] of times) {
            const item = waiting.get(name);
            if (item === undefined) continue;
            waiting.delete(name);
            item.took = seconds;
            note(seconds);
            list.update(item);
        }
    }

    function note(seconds) {
        took.push(seconds);
        if (took.length > LATEST) took.shift();
    }

    function clear() {
        waiting.clear();
        took.length = 0;
        list.clear();
        for (const name of Object.keys(second)) second[name] = 0;
        skip = true;
    }

    let before = null;
    let skip = true; // the first items are older than a second

    setInterval(() => {
        if (document.hidden || page.levels === null) {
            before = null;
            return;
        }
        const total = page.levels.counts.requests;
        const rate = before === null ? 0 : Math.max(0, total - before);
        before = total;
        rates.push(skip ? [0, 0, 0] : [second.done, second.refused, second.fault]);
        skip = false;
        for (const name of Object.keys(second)) second[name] = 0;
        figures.rate.textContent = number(rate);
        const sorted = took.toSorted((a, b) => a - b);
        figures.latency.textContent = sorted.length === 0 ? "–" : duration(sorted[Math.floor(sorted.length / 2)]);
    }, 1000);

    return {
        element: h("section", {class: "stack"}, head, list.element),
        add,
        clear,
        draw() {
            for (const item of list.items()) list.update(item);
        },
        onLevels(levels) {
            figures.total.textContent = number(levels.counts.requests);
        },
    };
}

function noRequests({t}) {
    const command = "rbim groups create --name 产品公告 --type paid-500";
    return [
        h("p", {}, t("no request so far")),
        h("p", {class: "button-row center"}, h("code", {}, command), copyButton(command, {t, name: t("copy command")})),
    ];
}

export function outcome(item) {
    if (item.code === null || item.trouble.some(name => !SLOW.includes(name))) return "fault";
    return item.code === SUCCESS ? "done" : "refused";
}

function result({t}, item) {
    const kind = outcome(item);
    const tone = {done: "good", refused: "warn", fault: "bad"}[kind];
    const code = item.code ?? (item.status === null || item.status === 200 ? t("no code") : `HTTP ${item.status}`);
    return h(
        "span",
        {class: "chips"},
        h("span", {class: `tag ${tone}`}, item.code === SUCCESS ? t("done") : code),
        item.trouble.map(name => h("span", {class: `tag ${SLOW.includes(name) ? "info" : "bad"}`}, name)),
    );
}

function valuesOf(item) {
    if (item.values === undefined) return h("span", {class: "truncate muted"}, shown(item.path));
    const parts = item.values.flatMap(([name, value]) => [h("span", {class: "muted"}, `${name} `), shown(value, {most: 80}), "  "]);
    return h("span", {class: "truncate"}, parts);
}

const lastPart = path => path.split("/").at(-1) || path;

const time = (page, item) => (page.epoch === 0 ? "" : page.time(page.epoch + item.at * 1000));

// One request.

async function openRequest(page, item) {
    const {t} = page;
    const details = await page.press("GET", `requests/${item.number}`);
    if (details === undefined) return;
    openDialog({
        title: `#${page.number(item.number)} ${item.operation ?? lastPart(item.path).slice(0, 60)}`,
        close: t("close"),
        body: [about(page, item, details), ...(details.exchange === null ? [h("p", {class: "muted"}, t("not kept"))] : exchange(page, details))],
    });
}

function about(page, item, details) {
    const {t, duration} = page;
    const took = details.exchange?.took ?? item.took;
    return facts([
        [t("outcome"), result(page, item)],
        [t("account"), item.account === undefined ? "–" : shown(item.account)],
        [t("time"), time(page, item)],
        [t("latency"), took === null ? "–" : duration(took)],
        [t("effect"), t(item.effect ? "took effect" : "no effect")],
        item.attempt > 1 && [t("attempt"), t("equal requests", {n: page.number(item.attempt)})],
        ...(item.values ?? []).map(([name, value]) => [h("code", {}, name), shown(value)]),
    ]);
}

function exchange(page, {exchange: sent, answer, curl}) {
    const {t} = page;
    const line = `${sent.method} ${sent.path}${sent.query === "" ? "" : `?${sent.query}`}`;
    return [
        part(page, t("request"), headText(line, sent.headers), "headers"),
        part(page, t("body"), contentText(page, sent.body), "body"),
        answer === null
            ? h("p", {class: "muted"}, t("emulator failed"))
            : [
                  !answer.sent && h("p", {class: "problem"}, t("answer not sent")),
                  part(page, t("answer"), headText(`HTTP ${answer.status}`, answer.headers), "answer"),
                  part(page, t("answer body"), contentText(page, answer.body), "answer-body"),
              ],
        curl === null
            ? h("p", {class: "muted"}, t("no curl"))
            : [part(page, t("as curl"), curl, "curl"), h("p", {class: "hint"}, t("curl needs"))],
    ];
}

function part({t}, title, text, id) {
    if (text === "") return null;
    return h(
        "section",
        {},
        h("header", {}, h("h3", {}, title), copyButton(text, {t, name: `${t("copy")}: ${title}`})),
        fill(h("pre", {"data-part": id, tabindex: "0", "aria-label": title}), shown(text, {lines: true, tag: "code"})),
    );
}

const headText = (line, headers) => [line, ...headers.map(([name, value]) => `${name}: ${value}`)].join("\n");

function contentText({t, bytes}, content) {
    if (content.size === 0) return "";
    const cut = content.cut ? `\n… ${t("cut", {size: bytes(content.size)})}` : "";
    if (content.text === undefined) return `${t("not text")}\n${content.base64}${cut}`;
    return content.cut ? content.text + cut : pretty(content.text);
}

/** JSON with indentation, if that says the same: a number that JavaScript would round stays as it is. */
export function pretty(text) {
    try {
        const document = JSON.parse(text);
        return JSON.stringify(document) === text.replace(/(?<=[,:])\s+|\s+(?=[}\]])|(?<=[{[])\s+/gu, "") ? JSON.stringify(document, null, 2) : text;
    } catch {
        return text;
    }
}
