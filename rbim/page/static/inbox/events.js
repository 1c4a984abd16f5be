// Deliveries of any state, or the dead letters or the quarantine with their errors: each with all that is kept of it.

import {copyButton} from "../parts/copy.js";
import {confirmed, openDialog} from "../parts/dialog.js";
import {fill, h, shown, whenTyped} from "../parts/dom.js";
import {facts} from "../parts/facts.js";
import {notify, warn} from "../parts/notice.js";
import {pagedList} from "../parts/paged.js";
import {ask} from "../parts/request.js";
import {dataTable} from "../parts/table.js";

const STATES = {waiting: "info", done: "good", dead: "bad", quarantined: "warn"};
const STILL = 200; // events from which a list stays as it is, although others have come

/** An error; a reason for quarantine in the language of the page. */
function errorText({t}, text) {
    const [, signed, sent] = /^app_mismatch: signed by application (.*), sent by an account of (.*)$/u.exec(text) ?? [];
    if (signed) return shown(t("app mismatch", {signed, sent}), {most: 200});
    const [, other] = /^other content under the msgId of event (\w+)/u.exec(text) ?? [];
    if (other) return t("other content", {n: other});
    const [, cause] = /^the body cannot be read: (.*)$/su.exec(text) ?? [];
    return shown(cause ? t("unreadable", {cause}) : text || "–", {most: 200});
}

const tag = ({t}, state) => h("span", {class: `tag ${STATES[state]}`}, t(`state ${state}`));

/** `kind` is "events", "dead" or "quarantined". */
export function eventsView(page, kind) {
    const {t, number, dateTime} = page;
    const letters = kind !== "events";
    let reason = null; // the error of which only the letters are shown
    let known = ""; // the counts when the list was last read

    const search = h("input", {type: "search", placeholder: t("search"), "aria-label": t("search")});
    const state = h("select", {"aria-label": t("column state")}, h("option", {value: ""}, t("all states")), Object.keys(STATES).map(each => h("option", {value: each}, t(`state ${each}`))));
    const narrowing = h("div", {class: "narrowing", hidden: true});
    const errors = letters ? errorsCard(page, {choose, act}) : null;
    const list = pagedList({
        caption: t(kind),
        empty: t(`empty ${kind}`),
        t,
        open,
        toolbar: h("div", {class: "toolbar", role: "search", "aria-label": t(kind)}, search, !letters && state, h("button", {type: "button", onclick: read}, t("refresh")), narrowing),
        columns: [
            {label: t("column number"), class: "number narrow", cell: each => number(each.number)},
            {label: t("column received"), class: "narrow", cell: each => dateTime(each.received)},
            {label: t("column type"), class: "narrow", cell: each => shown(each.msg_type || "–", {most: 60})},
            {label: "msgId", class: "name", cell: each => shown(each.msgId || "–", {most: 80})},
            {label: t("column sender"), class: "name muted", cell: each => shown(each.fromAccount || "–", {most: 80})},
            {label: t("column conversation"), class: "name", cell: each => shown(each.conversation || "–", {most: 80})},
            !letters && {label: t("column state"), class: "narrow", cell: each => tag(page, each.state)},
            {label: t("column error"), class: "line", cell: each => each.headline && errorText(page, each.headline)},
            letters && {label: t("requeue"), class: "narrow", cell: each => h("button", {type: "button", class: "small", onclick: () => act("requeue", {number: each.number}, 1)}, t("requeue"))},
        ].filter(Boolean),
        ask: async before => {
            const wanted = {state: letters ? kind : state.value, text: search.value, ...(reason !== null && {reason})};
            const {rows, more, before: at} = await ask("GET", `events?${new URLSearchParams({before, ...wanted})}`);
            return {rows, more, at};
        },
    });

    function choose(text) {
        reason = text;
        narrowing.hidden = reason === null;
        fill(narrowing, reason !== null && [errorText(page, reason), " ", h("button", {type: "button", class: "small", onclick: () => choose(null)}, t("show all"))]);
        list.read();
    }

    async function read() {
        known = JSON.stringify(page.state?.counts);
        await Promise.all([list.read(), errors?.read(kind)]);
    }

    whenTyped(search, list.read);
    state.addEventListener("change", list.read);

    /** Requeue or discard letters after a question: {number} one, {reason} all with this error. Return whether it was done. */
    async function act(verb, wanted, count) {
        const yes = t(wanted.reason === undefined ? verb : `${verb} all`);
        if (!(await confirmed({title: t(`${verb} title`), text: t(`${verb} ask`, {n: number(count)}), yes, no: t("cancel")}))) return false;
        try {
            const {events, left} = await ask("POST", verb, {state: kind, ...wanted});
            if (left > 0 && verb === "requeue") warn(t("requeue left", {done: number(events), left: number(left)}));
            else notify(t(`${verb} ok`, {n: number(events)}));
        } catch (error) {
            warn(error.message || t("unreachable"));
        }
        page.refresh();
        await read();
        return true;
    }

    async function open({number: name}) {
        const content = h("div", {class: "stack"}, h("p", {class: "muted"}, t("working")));
        const press = verb => h("button", {type: "button", class: verb === "discard" ? "danger" : null, onclick: async () => (await act(verb, {number: name}, 1)) && dialog.close()}, t(verb));
        const dialog = openDialog({title: `${t("column number")} ${number(name)}`, close: t("close"), body: [content], actions: letters ? [press("discard"), press("requeue")] : []});
        try {
            fill(content, whole(page, await ask("GET", `event?number=${name}`)));
        } catch (error) {
            fill(content, h("p", {class: "problem"}, error.message || t("unreachable")));
        }
    }

    return {
        element: h("section", {class: "stack"}, h("p", {class: "note"}, t(`intro ${kind}`)), errors?.elements, list.element),
        /** Read the events when the tab is opened. */
        opened: read,
        /** Read again if there are others than before, while the tab is shown. */
        draw() {
            if (page.isShown(kind) && JSON.stringify(page.state.counts) !== known && list.length() < STILL && !list.reading()) read();
        },
    };
}

/** All that the inbox keeps of an event. */
function whole(page, event) {
    const {t, number, dateTime} = page;
    const body = event.body === null ? event.text : JSON.stringify(event.body, null, 2);
    return [
        facts([
            ["msgId", h("code", {}, shown(event.msgId || "–"))],
            [t("column state"), tag(page, event.state)],
            [t("column type"), shown(event.msg_type || "–")],
            [t("column conversation"), shown(event.conversation || "–")],
            [t("column received"), dateTime(event.received)],
            [t("attempts"), number(event.attempts)],
            [t("app"), shown(event.app_id)],
            [t("key"), h("code", {}, event.key)],
        ]),
        event.error && h("section", {}, h("h3", {}, t("the error")), h("pre", {tabindex: "0"}, shown(event.error, {lines: true}))),
        h("section", {}, h("header", {}, h("h3", {}, t(event.body === null ? "body text" : "body")), copyButton(body, {t})), h("pre", {tabindex: "0"}, shown(body, {lines: true, most: 100_000}))),
    ];
}

/** The errors with the number of their letters: each narrows the list, or has all of its letters handled again or deleted. */
function errorsCard(page, {choose, act}) {
    const {t, number} = page;
    const press = (verb, each) => h("button", {type: "button", class: `small ${verb === "discard" ? "danger" : ""}`, onclick: () => act(verb, {reason: each.reason}, each.events)}, t(`${verb} all`));
    const rows = dataTable({
        caption: t("reasons"),
        empty: "",
        key: each => each.reason,
        columns: [
            {label: t("column error"), class: "line", cell: each => h("button", {type: "button", class: "link", onclick: () => choose(each.reason)}, errorText(page, each.reason))},
            {label: t("column events"), class: "number narrow", cell: each => number(each.events)},
            {label: t("requeue"), offscreen: true, class: "narrow", cell: each => h("span", {class: "button-row"}, press("requeue", each), press("discard", each))},
        ],
    });
    const note = h("p", {class: "note", hidden: true});
    rows.element.hidden = true;
    return {
        elements: [rows.element, note],
        async read(kind) {
            let found;
            try {
                found = await ask("GET", `reasons?state=${kind}`);
            } catch {
                return; // the list says why
            }
            rows.show(found.reasons);
            rows.element.hidden = found.reasons.length === 0;
            const lines = [found.others > 0 && t("others", {n: number(found.others)}), found.more && t("letters counted", {n: number(found.counted)})].filter(Boolean);
            note.hidden = lines.length === 0;
            note.textContent = lines.join(" ");
        },
    };
}
