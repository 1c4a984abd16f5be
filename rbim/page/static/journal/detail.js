// The details: the input, the requests, the runs, and the rows that stand out.

import {fill, h, shown} from "../parts/dom.js";
import {facts} from "../parts/facts.js";
import {table} from "../parts/table.js";

export function detailView(page) {
    const {t, has, number, duration, dateTime} = page;
    const element = h("section", {class: "stack"});
    let drawn = "";

    const end = ({why}, last) => (why ? (has(`stop ${why}`) ? t(`stop ${why}`) : why) : last && page.state.running ? t("still") : t("stop killed"));

    function draw() {
        const text = JSON.stringify(page.state.report);
        if (text === drawn) return;
        drawn = text;
        const {requests, job, runs, bad_rows: bad, duplicates, anomalies} = page.state.report;
        const counts = names => Object.fromEntries(names.map(name => [name, number(requests[name])]));
        fill(
            element,
            h(
                "section",
                {class: "card"},
                facts([
                    [t("source"), shown(job.source.name || "–")],
                    [t("journal"), h("code", {}, shown(page.state.journal))],
                    [t("requests"), t("requests value", counts(["sent", "answered", "refused", "throttled", "unknown"]))],
                    [t("sent again"), t("sent again value", counts(["repeated", "resent", "split"]))],
                    requests.latency && [t("latency"), t("latency value", Object.fromEntries(Object.entries(requests.latency).map(([name, value]) => [name, duration(value)])))],
                ]),
            ),
            listed(t("runs"), [t("run"), t("run began"), t("run seconds"), t("run why")], runs.map(each => [each.id, dateTime(each.began), duration(each.seconds), end(each, each === runs.at(-1))])),
            listed(t("bad rows"), [t("line"), t("reason"), t("raw")], bad.map(each => [each.line, page.reason(each.reason), shown(each.raw, {most: 200})])),
            listed(
                t("duplicates"),
                [t("column row"), t("column account"), t("column group"), ""],
                duplicates.map(each => [each.row, shown(each.account), shown(each.group), t("repeats", {n: number(each.first_row)})]),
            ),
            listed(t("anomalies"), [t("column account"), t("column group"), t("reason")], anomalies.first.map(each => [shown(each.account), shown(each.group), shown(each.reason)])),
        );
    }

    return {element, draw};
}

/** A table of a few rows below its name, or null if it has none. A column without a name has the table's, for screen readers. */
function listed(caption, names, rows) {
    if (rows.length === 0) return null;
    const columns = names.map(name => ({label: name || caption, offscreen: name === ""}));
    const body = h("tbody", {}, rows.map(row => h("tr", {}, row.map((cell, at) => h("td", {class: at === 0 ? "name" : null}, cell)))));
    return h(
        "div",
        {},
        h("h3", {class: "section"}, caption),
        h("div", {class: "table-card", tabindex: "0", role: "group", "aria-label": caption}, table({caption, columns, body, kind: null})),
    );
}
