// The dead letters, or the quarantine: how many have which error, each of them, and the command to handle them again.

import {confirmed, openDialog} from "../parts/dialog.js";
import {fill, h, shown} from "../parts/dom.js";
import {facts} from "../parts/facts.js";
import {notify, warn} from "../parts/notice.js";
import {pagedList} from "../parts/paged.js";
import {ask} from "../parts/request.js";
import {cells, table} from "../parts/table.js";

const STILL = 200; // letters from which a list stays as it is, although others have come

/** `kind` is "dead" or "quarantine"; `counted` is its name among the counts of the inbox. */
export function lettersView(page, kind, counted) {
    const {t, number, dateTime} = page;
    let reason = null; // of which only the letters are shown
    let known = -1; // the number of letters when they were last read

    const present = () => page.levels?.counts?.[counted];
    const groups = groupsCard(page, {choose, requeue});
    const narrowed = h("span", {class: "muted"});
    const any = h("button", {type: "button", class: "small", hidden: true, onclick: () => choose(null)}, t("show all"));
    const refresh = h("button", {type: "button", onclick: read}, t("refresh"));
    const list = pagedList({
        caption: t(kind),
        empty: t(`empty ${kind}`),
        t,
        toolbar: h("div", {class: "toolbar", role: "group", "aria-label": t(kind)}, refresh, any, narrowed),
        columns: [
            {label: t("column number"), class: "narrow", cell: each => h("button", {type: "button", class: "link", onclick: () => open(each)}, number(each.number))},
            {label: t("column received"), class: "narrow", cell: each => dateTime(each.received)},
            {label: t("column type"), class: "narrow", cell: each => shown(each.msg_type || "–", {most: 60})},
            {label: t("column conversation"), cell: each => shown(each.conversation, {most: 80})},
            {label: t("column error"), class: "line", cell: each => shown(each.headline || "–", {most: 200})},
            {label: t("requeue"), class: "narrow", cell: each => h("button", {type: "button", class: "small", onclick: () => requeue({number: each.number}, 1)}, t("requeue"))},
        ],
        at: each => each.number,
        ask: async after => {
            const query = new URLSearchParams({kind, after, ...(reason !== null && {reason})});
            const [{letters, more}, grouped] = await Promise.all([ask("GET", `letters?${query}`), after > 0 ? null : ask("GET", `reasons?kind=${kind}`)]);
            return {rows: letters, more, grouped};
        },
        onRead: ({grouped}) => {
            known = present() ?? -1;
            if (grouped !== null) groups.show(grouped, present() ?? 0);
        },
    });
    const element = h("section", {class: "stack"}, h("p", {class: "note"}, t(`intro ${kind}`)), groups.elements, list.element);

    function choose(text) {
        reason = text;
        read();
    }

    function read() {
        any.hidden = reason === null;
        fill(narrowed, reason === null ? "" : shown(reason, {most: 120}));
        return list.read();
    }

    /** Handle letters again after a question: {number} one, {reason} all with this error. */
    async function requeue(wanted, count) {
        const yes = t(wanted.reason === undefined ? "requeue" : "requeue all");
        if (!(await confirmed({title: t("requeue title"), text: t("requeue ask", {n: number(count)}), yes, no: t("cancel")}))) return;
        try {
            const {events, left} = await ask("POST", "requeue", {kind, ...wanted});
            if (left.length > 0) warn(t("requeue left", {done: number(events), left: number(left.length)}));
            else notify(t("requeue ok", {n: number(events)}));
        } catch (error) {
            warn(error.message || t("unreachable"));
        }
        await read();
    }

    async function open(letter) {
        const content = h("div", {class: "stack"}, h("p", {class: "muted"}, t("working")));
        openDialog({
            title: `${t(kind)} ${number(letter.number)}`,
            close: t("close"),
            body: [content],
            actions: [h("button", {type: "button", onclick: () => requeue({number: letter.number}, 1)}, t("requeue"))],
        });
        try {
            const whole = await ask("GET", `letter?kind=${kind}&number=${letter.number}`);
            fill(
                content,
                facts([
                    [t("column type"), shown(whole.msg_type || "–")],
                    [t("column conversation"), shown(whole.conversation)],
                    [t("column received"), dateTime(whole.received)],
                    kind === "dead" && [t("attempts"), number(whole.attempts)],
                    [t("key"), h("code", {}, whole.key)],
                ]),
                h("h3", {}, t("the error")),
                h("pre", {tabindex: "0"}, shown(whole.error, {lines: true})),
                h("h3", {}, t(whole.body === null ? "body text" : "body")),
                h("pre", {tabindex: "0"}, shown(whole.body === null ? whole.text : JSON.stringify(whole.body, null, 2), {lines: true, most: 100_000})),
            );
        } catch (error) {
            fill(content, h("p", {class: "problem"}, error.message || t("unreachable")));
        }
    }

    return {
        element,
        /** Read the letters when the tab is opened. */
        opened: () => !page.ended && read(),
        /** Read again if there are others than before, while the tab is shown. */
        changed() {
            if (page.shown() === kind && present() !== known && list.length() < STILL && !list.reading()) read();
        },
        end: () => element.querySelectorAll("button").forEach(button => (button.disabled = true)),
    };
}

/** The errors with the number of their letters: each narrows the list, or has all of its letters handled again. */
function groupsCard({t, number}, {choose, requeue}) {
    const columns = [
        {label: t("column error"), class: "line", cell: each => h("button", {type: "button", class: "link", onclick: () => choose(each.reason)}, shown(each.reason || "–", {most: 200}))},
        {label: t("column events"), class: "number", cell: each => number(each.events)},
        {label: t("requeue"), class: "narrow", cell: each => h("button", {type: "button", class: "small", onclick: () => requeue({reason: each.reason}, each.events)}, t("requeue all"))},
    ];
    const body = h("tbody");
    const card = h(
        "div",
        {class: "table-card reasons-card", hidden: true},
        h("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": t("reasons")}, table({caption: t("reasons"), columns, body})),
    );
    const note = h("p", {class: "note", hidden: true});
    return {
        elements: [card, note],
        /** `total` is the number of all letters, of which the oldest were counted. */
        show({reasons, counted, others}, total) {
            card.hidden = reasons.length === 0;
            fill(body, reasons.map(each => h("tr", {}, cells(columns, each))));
            const lines = [others > 0 && t("others", {n: number(others)}), total > counted && t("letters counted", {n: number(counted)})].filter(Boolean);
            note.hidden = lines.length === 0;
            note.textContent = lines.join(" ");
        },
    };
}
