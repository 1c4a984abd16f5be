// Tables, whose columns say how they are headed and what they show: {label, class, cell: entry => node or text}.
//
//   table({caption: "Runs", columns, body: h("tbody")});        the table with its head; `visible`: its caption is seen, too
//   tableRow(columns, entry, open)                              a row of it; `open`: what a click into it calls, or null
//
//   const groups = dataTable({caption: "Groups", empty: "None so far", columns, key: row => row.id});
//   groups.show(rows); groups.element
//
// A data table has a bounded length and is replaced as a whole, without losing the focus: rows that did not change stay.

import {h} from "./dom.js";

/** `offscreen` of a column: only screen readers get its label. */
export function table({caption, columns, body, visible = false, kind = "rows"}) {
    return h(
        "table",
        {class: kind},
        h("caption", {class: visible ? "muted" : "offscreen"}, caption),
        h("thead", {}, h("tr", {}, columns.map(({label, class: name, offscreen}) => h("th", {scope: "col", class: name}, offscreen ? h("span", {class: "offscreen"}, label) : label)))),
        body,
    );
}

/** The cells of a row. If it opens, its first cell is a button. */
export const cells = (columns, entry, open = null) =>
    columns.map(({label, offscreen, class: name, cell}, at) => {
        const content = open !== null && at === 0 ? h("button", {type: "button", class: "link", onclick: () => open(entry)}, cell(entry)) : cell(entry);
        return h("td", {class: name, "data-label": offscreen ? null : label}, content);
    });

export function tableRow(columns, entry, open) {
    const element = h("tr", {class: open && "opens"}, cells(columns, entry, open));
    element.addEventListener("click", event => {
        if (event.target.closest("button, a") === null && String(getSelection()) === "") open?.(entry);
    });
    return element;
}

/** Put rows into a body in their order; those that are in their place stay, with their focus. */
export function inOrder(body, rows) {
    rows.forEach((row, at) => row !== body.children[at] && body.insertBefore(row, body.children[at] ?? null));
}

export function dataTable({caption, empty, columns, key, visible = false}) {
    const body = h("tbody");
    const kept = new Map(); // by key: the row's content as text, and its element
    const whole = table({caption, columns, body, visible, kind: "rows labelled"});
    const nothing = h("div", {class: "empty"}, empty);
    const element = h("div", {class: "table-card", tabindex: "0", role: "group", "aria-label": caption}, whole, nothing);
    show([]);

    function show(rows) {
        const wanted = new Set(rows.map(key));
        for (const [name, {row}] of kept) {
            if (wanted.has(name)) continue;
            if (row.contains(document.activeElement)) element.focus();
            row.remove();
            kept.delete(name);
        }
        inOrder(body, rows.map(current));
        whole.hidden = rows.length === 0;
        nothing.hidden = rows.length > 0;
    }

    function current(entry) {
        const name = key(entry);
        const text = JSON.stringify(entry);
        const found = kept.get(name);
        if (found?.text === text) return found.row;
        const row = found?.row ?? h("tr");
        const focused = [...row.querySelectorAll("button")].indexOf(document.activeElement);
        row.replaceChildren(...cells(columns, entry));
        if (focused >= 0) row.querySelectorAll("button")[focused]?.focus();
        kept.set(name, {text, row});
        return row;
    }

    return {element, show};
}
