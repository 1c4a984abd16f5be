// What comes in and what waits, in figures and in charts of the whole run; and whether the inbox can be read.

import {runCharts} from "../parts/chart.js";
import {fill, h, shown} from "../parts/dom.js";
import {figures} from "../parts/facts.js";

export function overview(page) {
    const {t, number, duration, rate} = page;
    const banner = h("div", {class: "banner", role: "status", hidden: true});
    const numbers = h("dl", {class: "figures"});
    const notes = h("div", {});
    const charts = chartsOf(page);

    function draw() {
        const {counters, counts, handling, kind, lag, mode, problem, url} = page.levels;
        fill(
            numbers,
            figures([
                [t("rate"), t("per second", {n: rate(page.levels.rate)})],
                [t("received"), number(counters.deliveries)],
                [t("refused"), number(counters.refused), counters.refused > 0 && "bad"],
                counts && [t("waiting"), number(counts.waiting)],
                counts && counts.waiting > 0 && [t("lag"), duration(Math.max(lag, 0.001))],
                handling.length > 0 && [t("in work"), number(counters.in_work)],
                counts && [t("done"), number(counts.done)],
                counts && [t("dead"), number(counts.dead), counts.dead > 0 && "bad"],
                counts && [t("in quarantine"), number(counts.quarantined), counts.quarantined > 0 && "bad"],
            ]),
        );
        const by = handling.length === 0 ? t("by nothing") : handling.map(each => t(`by ${each}`)).join(", ");
        fill(
            notes,
            h("p", {class: "note"}, `${t("address")} `, h("code", {}, shown(url)), ` · ${t("mode")}: ${mode} · ${t("handling")} ${by}.`),
            kind === "servers" && h("p", {class: "note"}, t("on servers")),
        );
        if (!page.ended) say(problem ? t("not available", {problem}) : "");
    }

    function say(text) {
        banner.hidden = text === "";
        banner.textContent = text;
    }

    return {
        elements: [banner, h("section", {class: "card"}, numbers, notes), charts.element],
        points: charts.stream,
        draw,
        end: () => say(t("gone")),
    };
}

function chartsOf({t, number}) {
    return runCharts(
        [
            {
                label: t("chart deliveries"),
                series: [
                    {name: t("accepted"), class: "good"},
                    {name: t("refused"), class: "bad"},
                    {name: t("unavailable"), class: "warn plain"},
                ],
                moments: points => points.map(each => [each.accepted, each.refused, each.unavailable]),
            },
            {
                label: t("chart handling"),
                series: [
                    {name: t("handled"), class: "good"},
                    {name: t("failed attempts"), class: "bad"},
                ],
                moments: points => points.map(each => [each.handled, each.failed]),
            },
            {
                label: t("chart waiting"),
                series: [
                    {name: t("waiting"), class: "info"},
                    {name: t("in work"), class: "warn plain"},
                ],
                moments: points => points.map(each => [each.waiting ?? null, each.in_work]),
            },
        ],
        number,
    );
}
