// The reasons for which accounts are not done, the most frequent first; each leads to its accounts.

import {h} from "../parts/dom.js";
import {dataTable} from "../parts/table.js";
import {stateTag, stateWord} from "./states.js";

export function reasonsView(page) {
    const {t, has, number} = page;
    const left = h("p", {class: "muted"});
    const reasons = dataTable({
        caption: t("reasons"),
        empty: t("reasons empty"),
        key: each => `${each.state} ${each.code} ${each.error} ${each.text}`,
        columns: [
            {label: t("column state"), class: "narrow", cell: each => stateTag(page, each.state)},
            {label: t("reason"), class: "line", cell: each => (each.text ? page.reason(each.text) : "–")},
            {label: t("code"), class: "narrow", cell: each => (each.code ? h("code", {}, each.code) : has(`error ${each.error}`) ? t(`error ${each.error}`) : each.error)},
            {label: t("accounts"), class: "number", cell: each => number(each.accounts)},
            {label: t("show accounts"), offscreen: true, class: "narrow", cell: buttons},
        ],
    });

    function buttons(each) {
        if (each.state === "waiting" || page.state.report.job.erased) return null;
        const choice = {state: stateWord(page, each.state), reason: each.text, code: each.code};
        return h(
            "div",
            {class: "button-row"},
            h("button", {type: "button", class: "small", onclick: () => page.showAccounts(choice)}, t("show accounts")),
            h("button", {type: "button", class: "small", onclick: () => page.download(choice)}, t("download")),
        );
    }

    return {
        element: h("section", {class: "stack"}, reasons.element, left),
        draw() {
            const {reasons: found, reasons_left_off: more} = page.state.report;
            reasons.show(found);
            left.textContent = more ? t("reasons left off", {reasons: number(more.reasons), accounts: number(more.accounts)}) : "";
        },
    };
}
