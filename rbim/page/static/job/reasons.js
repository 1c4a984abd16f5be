// The reasons for which accounts are not done, the most frequent first; each leads to its accounts.

import {fill, h, shown} from "../parts/dom.js";
import {cells, table} from "../parts/table.js";
import {stateTag, stateWord} from "./states.js";

export function reasonsView(page) {
    const {t, number} = page;
    const element = h("section", {class: "stack"});
    const columns = [
        {label: t("column state"), cell: each => stateTag(page, each.state)},
        {label: t("reason"), class: "line", cell: each => shown(each.text || "–", {most: 300})},
        {label: t("code"), class: "mono narrow", cell: each => each.code || each.error || ""},
        {label: t("accounts"), class: "number", cell: each => number(each.accounts)},
        {label: t("show accounts"), offscreen: true, class: "narrow", cell: buttons},
    ];

    function buttons(each) {
        if (each.state === "waiting" || page.ending !== null) return null;
        const key = `${each.state} ${each.code} ${each.text}`;
        const choice = {state: stateWord(page, each.state), reason: each.text, code: each.code};
        return h(
            "div",
            {class: "button-row"},
            h("button", {type: "button", class: "small", "data-key": key, onclick: () => page.showAccounts(choice)}, t("show accounts")),
            h("button", {type: "button", class: "small", "data-key": `${key} csv`, onclick: () => page.download(choice)}, t("download")),
        );
    }

    function draw() {
        const list = page.report?.reasons ?? [];
        if (list.length === 0) {
            fill(element, h("div", {class: "table-card"}, h("div", {class: "empty"}, t("reasons empty"))));
            return;
        }
        const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
        const body = h("tbody", {}, list.map(each => h("tr", {}, cells(columns, each))));
        const left = page.report.reasons_left_off;
        fill(
            element,
            h("div", {class: "table-card"}, table({caption: t("reasons"), columns, body})),
            left && h("p", {class: "muted"}, t("reasons left off", {reasons: number(left.reasons), accounts: number(left.accounts)})),
        );
        if (focused) [...element.querySelectorAll("button")].find(each => each.dataset.key === focused)?.focus();
    }

    return {element, draw};
}
