// The overview: the counts of all rows, how fast the job is and why, or how it has ended and what to do next; and charts.

import {charts} from "../parts/chart.js";
import {copyButton} from "../parts/copy.js";
import {fill, h, svg} from "../parts/dom.js";
import {figures} from "../parts/facts.js";
import {STATES} from "./states.js";

export function overviewView(page) {
    const progress = progressCard(page);
    const status = h("section", {class: "card status", "aria-live": "polite"});
    const overTime = chartsOf(page);
    let drawn = "";

    return {
        element: h("section", {class: "stack"}, progress.element, status, overTime.element),
        draw() {
            const {report, ...rest} = page.state;
            progress.draw();
            const text = JSON.stringify([rest, report.accounts, report.over_time.at(-1)]);
            if (text === drawn) return; // so that the focus stays, and nothing is read out again
            drawn = text;
            fill(status, rest.running ? paceOf(page) : endOf(page));
            overTime.element.hidden = report.over_time.length < 2;
            overTime.draw(report.over_time, ["0 s", page.duration(report.seconds)]);
        },
    };
}

/** The number of rows in each state: accounts in flight wait, and so do those that were not sent if the job can go on. */
function countsOf({accounts, skipped, complete, in_flight: flying, done_word: word}) {
    const waiting = complete ? 0 : skipped.not_sent;
    return {...accounts, done: accounts[word], unknown: accounts.unknown - flying, skipped: accounts.skipped - waiting, waiting: waiting + flying};
}

function progressCard(page) {
    const {t, number, duration, rate} = page;
    const bar = svg("svg", {viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img"});
    const legend = h("ul", {class: "legend"});
    const sum = h("p", {class: "sum"});
    const numbers = h("dl", {class: "figures"});

    function draw() {
        const {report, running} = page.state;
        const found = countsOf(report);
        const there = STATES.filter(([name]) => found[name] > 0);
        let x = 0;
        bar.replaceChildren(
            ...there.map(([name, tone]) => {
                const width = (1000 * found[name]) / found.total;
                const part = svg("rect", {class: tone, x, y: 0, width, height: 10});
                x += width;
                return part;
            }),
        );
        bar.setAttribute("aria-label", there.map(([name]) => `${number(found[name])} ${t(name)}`).join(", "));
        fill(
            legend,
            STATES.map(([name, tone]) =>
                h("li", {class: tone, "data-state": name}, h("span", {class: "swatch", "aria-hidden": "true"}), t(name), h("output", {}, number(found[name]))),
            ),
        );
        fill(sum, t("sum", {sum: there.map(([name]) => number(found[name])).join(" + ") || "0", total: number(found.total)}));
        sum.dataset.sum = String(STATES.reduce((all, [name]) => all + found[name], 0));
        sum.dataset.total = String(found.total);

        const settled = found.total - found.waiting;
        const last = running && report.state !== "loading" ? report.over_time.at(-1) : undefined;
        fill(
            numbers,
            figures([
                [t("rows"), `${number(settled)} / ${number(found.total)}`],
                [t("settled"), `${found.total === 0 ? 0 : Math.floor((100 * settled) / found.total)} %`],
                last && [t("requests"), t("per second", {n: rate(last.requests)})],
                last && [t("accounts"), t("per second", {n: rate(last.accounts)})],
                last && [t("in flight"), number(report.requests.in_flight)],
                last && last.accounts > 0 && found.waiting > 0 && [t("eta"), duration(found.waiting / last.accounts)],
                [t("elapsed"), duration(report.seconds)],
            ]),
        );
    }

    return {element: h("section", {class: "card progress"}, numbers, bar, legend, sum), draw};
}

/** Why a job that runs is as fast as it is, and its limits. */
function paceOf({t, number, state: {why, settings, report}}) {
    const last = report.over_time.at(-1);
    const value = {begins: last?.rate, throttled: last?.rate, concurrency: last?.concurrency}[why];
    const units = {1: "/s", 60: "/min", 3600: "/h"};
    const rates = settings.rates.map(({limit, per, each_group: each}) => {
        const rate = `${number(limit)}${units[per] ?? `/${per} s`}`;
        return each ? t("limits group", {rate}) : rate;
    });
    const limits = [
        ...(rates.length > 0 ? rates : [t("limits none")]),
        t("limits concurrency", {n: number(settings.concurrency)}),
        last && Math.round(last.concurrency) < settings.concurrency && t("limits now", {n: number(last.concurrency)}),
        settings.adaptive && t("limits adaptive"),
    ];
    return [
        h("p", {class: "pace"}, value ? t(`why ${why}`, {n: number(value)}) : t(`why ${why === "throttled" || why === "concurrency" ? "full" : why}`, {n: ""})),
        h("p", {class: "muted"}, `${t("limits")}: ${limits.filter(Boolean).join(" · ")}`),
    ];
}

/** How a job has ended that does not run, and what can be done now. */
function endOf(page) {
    const {t, number, has, state: {report, commands}} = page;
    const {accounts, skipped} = report;
    const why = report.runs.at(-1)?.why ?? "killed";
    const counted = names => names.filter(([count]) => count > 0).map(([count, name]) => `${number(count)} ${t(name)}`).join(", ");
    const left = [[accounts.refused, "refused"], [accounts.failed, "failed"], [accounts.unknown, "unknown"], [skipped.not_sent, "not sent"]];
    const again = report.complete ? accounts.failed + accounts.unknown > 0 && "retry" : report.state === "incomplete" && "resume";
    const heading = report.state === "loading" ? t("ended loading") : report.complete ? t("ended complete") : has(`stop ${why}`) ? t(`stop ${why}`) : why;
    return [
        h("h2", {}, heading),
        report.job.erased && h("p", {}, t("erased", {time: page.dateTime(report.job.erased)})),
        report.state !== "loading" && h("p", {}, counted(left) === "" ? t("nothing left") : t("left", {left: counted(left)})),
        !report.job.erased && counted(left) !== "" && report.state !== "loading" && h("button", {type: "button", class: "primary", onclick: () => page.download({not_done: ""})}, t("download not done")),
        !report.job.erased && again && h("div", {}, h("p", {class: "muted"}, t(`to ${again}`)), h("div", {class: "command"}, h("pre", {tabindex: "0"}, commands[again]), copyButton(commands[again], {t}))),
    ];
}

function chartsOf({t, number}) {
    return charts(
        [
            {
                label: t("pace chart"),
                series: [
                    {name: t("requests"), class: "info"},
                    {name: t("adaptive rate"), class: "warn plain"},
                ],
                moments: points => points.map(each => [each.requests, each.rate]),
            },
            {
                label: t("accounts chart"),
                series: [{name: t("accounts"), class: "good"}],
                moments: points => points.map(each => [each.accounts]),
            },
            {
                label: t("trouble chart"),
                series: [
                    {name: t("throttled"), class: "warn"},
                    {name: t("failed"), class: "bad"},
                ],
                moments: points => points.map(each => [each.throttled, each.failed]),
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
