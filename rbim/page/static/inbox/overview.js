// What is in the inbox, in figures and charts.

import {charts} from "../parts/chart.js";
import {h} from "../parts/dom.js";
import {figures} from "../parts/facts.js";

const KEPT = 600; // moments of the chart of what waits

export function overviewView(page) {
    const {t, number, duration, dateTime, time} = page;
    const numbers = h("dl", {class: "figures"});
    const deliveries = charts(
        [
            {
                label: t("chart deliveries"),
                series: [
                    {name: t("state done"), class: "good"},
                    {name: t("state waiting"), class: "info"},
                    {name: t("state dead"), class: "bad"},
                    {name: t("state quarantined"), class: "warn"},
                ],
                moments: points => points.map(each => [each.done, each.waiting, each.dead, each.quarantined]),
            },
        ],
        number,
    );
    const waiting = charts([{label: t("chart waiting"), series: [{name: t("state waiting"), class: "info"}], moments: points => points}], number);
    const began = new Date();
    const moments = [];

    return {
        element: h("section", {class: "stack"}, h("section", {class: "card"}, numbers), h("div", {class: "cards wide"}, deliveries.element, waiting.element)),
        draw() {
            const {counts, lag, chart} = page.state;
            numbers.replaceChildren(
                ...figures([
                    [t("state waiting"), number(counts.waiting)],
                    counts.waiting > 0 && [t("lag"), duration(Math.max(lag, 0.001))],
                    [t("state done"), number(counts.done)],
                    [t("dead"), number(counts.dead), counts.dead > 0 && "bad"],
                    [t("quarantined"), number(counts.quarantined), counts.quarantined > 0 && "bad"],
                ]),
            );
            moments.push([counts.waiting]);
            if (moments.length > KEPT) moments.shift();
            waiting.draw(moments, [time(began), time(new Date())]);
            deliveries.element.hidden = chart === null;
            if (chart !== null) deliveries.draw(chart.points, [dateTime(chart.first * 1000), dateTime((chart.first + chart.step * chart.points.length) * 1000)]);
        },
    };
}
