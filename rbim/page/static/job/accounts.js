// The accounts of an outcome or a reason, or those with a text in their name or group; and the same as a file.

import {fill, h, shown} from "../parts/dom.js";
import {pagedList} from "../parts/paged.js";
import {ask} from "../parts/request.js";
import {SETTLED, stateTag, stateWord} from "./states.js";

const TYPED = 250; // milliseconds without a key after which the search begins

export function accountsView(page) {
    const {t, number} = page;
    let reason = null; // {reason, code} of the reasons tab

    const search = h("input", {type: "search", placeholder: t("search"), "aria-label": t("search")});
    const outcome = h("select", {"aria-label": t("column state")}, h("option", {value: ""}, t("all outcomes")), SETTLED.map(([name]) => h("option", {value: name}, t(name))));
    const save = h("button", {type: "button", onclick: () => page.download(choice())}, t("download"));
    const narrowing = h("div", {class: "narrowing", hidden: true});
    const list = pagedList({
        caption: t("accounts"),
        begin: t("accounts intro"),
        empty: t("accounts empty"),
        t,
        toolbar: h("div", {class: "toolbar", role: "search", "aria-label": t("accounts")}, search, outcome, save, narrowing),
        columns: [
            {label: t("column row"), class: "number", cell: each => number(each.row)},
            {label: t("column account"), cell: each => shown(each.account, {most: 100})},
            {label: t("column group"), class: "muted", cell: each => shown(each.group, {most: 100})},
            {label: t("column state"), cell: each => stateTag(page, each.state)},
            {label: t("column reason"), class: "line", cell: each => each.reason && shown(each.reason, {most: 200})},
        ],
        at: each => each.row,
        ask: after => {
            const given = Object.entries(choice()).filter(([, value]) => value !== null && value !== "");
            return ask("GET", `accounts?${new URLSearchParams([["after", after], ...given])}`);
        },
    });

    const choice = () => ({state: outcome.value === "" ? null : stateWord(page, outcome.value), text: search.value, ...reason});

    /** Show the accounts of a reason, or those of any (null). */
    function narrow(to) {
        reason = to;
        narrowing.hidden = reason === null;
        fill(narrowing, reason && [`${t("reason")}: `, shown(reason.reason || "–", {most: 200}), " ", h("button", {type: "button", class: "small", onclick: () => narrow(null)}, t("all reasons"))]);
        list.read();
    }

    let typing = 0;
    search.addEventListener("input", () => {
        clearTimeout(typing);
        typing = setTimeout(list.read, TYPED);
    });
    outcome.addEventListener("change", () => narrow(null));

    return {
        element: h("section", {class: "accounts"}, list.element),
        /** Read the first accounts when the tab is opened, unless there are some or they are on their way. */
        opened() {
            if (page.ending === null && list.length() === 0 && !list.reading()) list.read();
        },
        choose({state, reason: text, code}) {
            outcome.value = [...outcome.options].some(each => each.value === state) ? state : "";
            search.value = "";
            narrow({reason: text, code});
        },
        end() {
            for (const control of [search, outcome, save, list.more]) control.disabled = true;
        },
    };
}
