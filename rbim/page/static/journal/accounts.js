// The accounts of an outcome or a reason, or those with a text in their name or group; and the same as a file.

import {fill, h, shown, whenTyped} from "../parts/dom.js";
import {pagedList} from "../parts/paged.js";
import {ask} from "../parts/request.js";
import {STATES, stateTag, stateWord} from "./states.js";

export function accountsView(page) {
    const {t, number} = page;
    let reason = null; // {reason, code} of the reasons tab

    const search = h("input", {type: "search", placeholder: t("search"), "aria-label": t("search")});
    const outcomes = STATES.filter(([name]) => name !== "waiting");
    const outcome = h("select", {"aria-label": t("column state")}, h("option", {value: ""}, t("all outcomes")), outcomes.map(([name]) => h("option", {value: name}, t(name))));
    const save = h("button", {type: "button", onclick: () => page.download(choice())}, t("download"));
    const narrowing = h("div", {class: "narrowing", hidden: true});
    const list = pagedList({
        caption: t("accounts"),
        empty: t("accounts empty"),
        t,
        toolbar: h("div", {class: "toolbar", role: "search", "aria-label": t("accounts")}, search, outcome, save, narrowing),
        columns: [
            {label: t("column row"), class: "number narrow", cell: each => number(each.row)},
            {label: t("column account"), class: "name", cell: each => shown(each.account, {most: 100})},
            {label: t("column group"), class: "name muted", cell: each => shown(each.group, {most: 100})},
            {label: t("column state"), class: "narrow", cell: each => stateTag(page, each.state)},
            {label: t("column reason"), class: "line", cell: each => each.reason && page.reason(each.reason)},
        ],
        ask: async after => {
            const given = Object.entries(choice()).filter(([, value]) => value !== null && value !== "");
            const {rows, more} = await ask("GET", `accounts?${new URLSearchParams([["after", after], ...given])}`);
            return {rows, more, at: rows.at(-1)?.row ?? after};
        },
    });

    const choice = () => ({state: outcome.value === "" ? null : stateWord(page, outcome.value), text: search.value, ...reason});

    /** Show the accounts of a reason, or those of any (null). */
    function narrow(to) {
        reason = to;
        narrowing.hidden = reason === null;
        fill(narrowing, reason && [`${t("reason")}: `, reason.reason ? page.reason(reason.reason) : "–", " ", h("button", {type: "button", class: "small", onclick: () => narrow(null)}, t("all reasons"))]);
        list.read();
    }

    whenTyped(search, list.read);
    outcome.addEventListener("change", () => narrow(null));

    return {
        element: h("section", {}, list.element),
        /** Read the first accounts when the tab is opened, unless there are some or they are on their way. */
        opened() {
            if (list.length() === 0 && !list.reading()) list.read();
        },
        choose({state, reason: text, code}) {
            outcome.value = [...outcome.options].some(each => each.value === state) ? state : "";
            search.value = "";
            narrow({reason: text, code});
        },
    };
}
