// A table of bounded length that is replaced as a whole, without losing the focus: rows that did not change stay.
//
//   const table = dataTable({
//       caption: "Groups", empty: "None so far",
//       columns: [{label: "Name", cell: row => node or text, class: "narrow"}],
//       key: row => row.id,
//   });
//   table.show(rows); table.element

import {h} from "./dom.js";

export function dataTable({caption, empty, columns, key, visible = false}) {
    const body = h("tbody");
    const kept = new Map(); // by key: the row's content as text, and its element
    const table = h(
        "table",
        {class: "rows labelled"},
        h("caption", {class: visible ? "muted" : "offscreen"}, caption),
        h("thead", {}, h("tr", {}, columns.map(column => h("th", {scope: "col", class: column.class}, column.label)))),
        body,
    );
    const nothing = h("div", {class: "empty"}, empty);
    const element = h("div", {class: "table-card", tabindex: "0", role: "group", "aria-label": caption}, table, nothing);
    show([]);

    function show(rows) {
        const wanted = new Set(rows.map(key));
        for (const [name, {row}] of kept) {
            if (wanted.has(name)) continue;
            if (row.contains(document.activeElement)) element.focus();
            row.remove();
            kept.delete(name);
        }
        let after = null;
        for (const entry of rows) {
            const row = current(entry);
            const next = after === null ? body.firstChild : after.nextSibling;
            if (row !== next) body.insertBefore(row, next);
            after = row;
        }
        table.hidden = rows.length === 0;
        nothing.hidden = rows.length > 0;
    }

    function current(entry) {
        const name = key(entry);
        const text = JSON.stringify(entry);
        const found = kept.get(name);
        if (found?.text === text) return found.row;
        const row = found?.row ?? h("tr");
        const focused = [...row.querySelectorAll("button")].indexOf(document.activeElement);
        row.replaceChildren(...columns.map(column => h("td", {class: column.class, "data-label": column.label}, column.cell(entry))));
        if (focused >= 0) row.querySelectorAll("button")[focused]?.focus();
        kept.set(name, {text, row});
        return row;
    }

    return {element, show};
}
