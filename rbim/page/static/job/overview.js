// The overview: how the job has ended, the counts of all rows, how fast it is and why, and the charts of the run.

import {runCharts} from "../parts/chart.js";
import {fill, h, shown, svg} from "../parts/dom.js";
import {figures} from "../parts/facts.js";
import {endCard} from "./end.js";
import {SENT, SETTLED, STATES} from "./states.js";

const SMOOTHED = 4; // points over which outcomes per second are taken

export function overviewView(page) {
    const end = endCard(page);
    const progress = progressCard(page);
    const pace = paceCard(page);
    const charts = chartsOf(page);
    return {
        element: h("section", {class: "stack"}, end.element, progress.element, pace.element, charts.element),
        points: charts.stream,
        draw() {
            progress.draw();
            pace.draw();
        },
        end: end.draw,
    };
}

function chartsOf({t, number}) {
    const outcomes = (each, at, points) => {
        const before = points[Math.max(0, at - SMOOTHED)];
        const seconds = Math.max(0.1, each.elapsed - before.elapsed);
        return SENT.map(([name]) => Math.max(0, each[name] - before[name]) / seconds);
    };
    return runCharts(
        [
            {
                label: t("pace chart"),
                series: [
                    {name: t("requests"), class: "info"},
                    {name: t("adaptive rate"), class: "warn plain"},
                ],
                moments: points => points.map(each => [each.request_rate, each.adaptive_rate]),
            },
            {
                label: t("outcomes chart"),
                series: SENT.map(([name, tone]) => ({name: t(name), class: tone})),
                moments: points => points.map(outcomes),
            },
            {
                label: t("in flight chart"),
                series: [
                    {name: t("in flight"), class: "info"},
                    {name: t("concurrency"), class: "quiet-tone plain"},
                ],
                moments: points => points.map(each => [each.in_flight, each.concurrency]),
            },
        ],
        number,
    );
}

function progressCard(page) {
    const {t, number, duration, rate} = page;
    const bar = svg("svg", {viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img"});
    const legend = h("ul", {class: "legend"});
    const sum = h("p", {class: "sum"});
    const facts = h("dl", {class: "figures"});

    function draw() {
        const found = countsOf(page);
        if (found === null) return;
        const there = STATES.filter(([name]) => found[name] > 0);
        drawBar(found, there);
        fill(
            legend,
            STATES.map(([name, tone]) =>
                h("li", {class: tone, "data-state": name, "data-count": found[name]}, h("span", {class: "swatch", "aria-hidden": "true"}), t(name), h("output", {}, number(found[name]))),
            ),
        );
        fill(sum, t("sum", {sum: there.map(([name]) => number(found[name])).join(" + ") || "0", total: number(found.total)}));
        sum.dataset.sum = String(STATES.reduce((all, [name]) => all + found[name], 0));
        sum.dataset.total = String(found.total);
        drawFigures(found);
    }

    function drawBar(found, there) {
        let x = 0;
        const parts = SETTLED.filter(([name]) => found[name] > 0).map(([name, tone]) => {
            const width = (1000 * found[name]) / Math.max(1, found.total);
            const part = svg("rect", {class: tone, x, y: 0, width, height: 10});
            x += width;
            return part;
        });
        bar.replaceChildren(...parts);
        bar.setAttribute("aria-label", there.map(([name]) => `${number(found[name])} ${t(name)}`).join(", "));
    }

    function drawFigures(found) {
        const progress = page.levels?.progress;
        const running = progress && page.ending === null;
        const settled = found.total - found.waiting;
        const percent = found.total === 0 ? 0 : Math.floor((100 * settled) / found.total);
        fill(
            facts,
            figures([
                [t("rows"), `${number(settled)} / ${number(found.total)}`],
                [t("settled"), `${percent} %`],
                running && [t("requests"), t("per second", {n: rate(progress.request_rate)})],
                running && [t("accounts"), t("per second", {n: rate(progress.rate)})],
                running && [t("in flight"), `${number(progress.in_flight)} / ${number(progress.concurrency)}`],
                running && progress.eta !== null && found.waiting > 0 && [t("eta"), duration(progress.eta)],
                progress && [t("elapsed"), duration(progress.elapsed)],
            ]),
        );
    }

    return {element: h("section", {class: "card progress"}, facts, bar, legend, sum), draw};
}

/** The number of rows in each state, and their total: of the report if the job has ended with one, otherwise of the progress. */
function countsOf({levels, report, ending}) {
    const progress = levels?.progress;
    if (report !== null && (ending?.report || !progress)) return reported(report); // the last progress is newer than other reports
    return progress ?? null;
}

/** The counts of a report: accounts that were not sent wait, as long as the job is not complete. */
function reported({accounts, skipped, complete, done_word: word}) {
    const waiting = complete ? 0 : skipped.not_sent;
    return {...accounts, done: accounts[word], waiting, skipped: accounts.skipped - waiting};
}

function paceCard(page) {
    const {t, number} = page;
    const why = h("p", {class: "pace"});
    const cause = h("p", {class: "cause", hidden: true});
    const limits = h("p", {class: "muted"});

    function draw() {
        const {levels, ending} = page;
        const progress = levels?.progress;
        const now = ending !== null ? "ended" : (levels?.why ?? "loading");
        const values = {begins: progress?.adaptive_rate, throttled: progress?.adaptive_rate, concurrency: progress?.concurrency, draining: progress?.in_flight};
        fill(why, t(`why ${now}`, {n: number(values[now] ?? 0)}));
        cause.hidden = !progress?.cause || ending !== null;
        fill(cause, shown(progress?.cause ?? "", {most: 400}));
        fill(limits, levels?.settings.concurrency ? `${t("limits")}: ${limitsText(levels.settings)}` : "");
    }

    function limitsText({rates, concurrency, adaptive}) {
        const texts = rates.map(each => (each.each_group ? t("limits group", {rate: rateText(each)}) : rateText(each)));
        return [...(rates.length > 0 ? texts : [t("limits none")]), t("limits concurrency", {n: number(concurrency)}), adaptive && t("limits adaptive")].filter(Boolean).join(" · ");
    }

    function rateText({limit, per}) {
        const units = {1: "/s", 60: "/min", 3600: "/h"};
        return `${number(limit)}${units[per] ?? `/${per} s`}`;
    }

    return {element: h("section", {class: "card"}, why, cause, limits), draw};
}
