// A list that is read from the server part by part: a toolbar, a table, and a button that reads the next part.
//
//   const list = pagedList({
//       caption: "Accounts", empty: "None", columns, toolbar: element, t,
//       ask: async after => ({rows: [...], more: true, at: 17}),   // the rows after a position; 0: from the beginning
//       open: row => {},                                           // optional: the first cell becomes a button
//   });
//   await list.read()     from the beginning; of several readings at once, only the last one is shown
//   list.element; list.length(); list.reading()

import {h} from "./dom.js";
import {warn} from "./notice.js";
import {table, tableRow} from "./table.js";

export function pagedList({caption, empty, columns, toolbar, ask, open = null, t}) {
    let last = 0;
    let asked = 0;

    const body = h("tbody");
    const rows = table({caption, columns, body});
    const none = h("div", {class: "empty"});
    const more = h("button", {type: "button", onclick: () => read(last)}, t("more"));
    const moreRow = h("div", {class: "more", hidden: true}, more);
    const element = h(
        "div",
        {class: "live-list"},
        toolbar,
        h("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": caption}, rows, none, moreRow),
    );
    rows.hidden = true;

    async function read(after) {
        const turn = ++asked;
        element.setAttribute("aria-busy", "true");
        try {
            const found = await ask(after);
            if (turn !== asked) return;
            if (after === 0) body.replaceChildren();
            body.append(...found.rows.map(each => tableRow(columns, each, open)));
            last = found.at;
            rows.hidden = body.children.length === 0;
            none.hidden = !rows.hidden;
            none.textContent = empty;
            moreRow.hidden = !found.more;
        } catch (error) {
            warn(error.message || t("unreachable"));
        } finally {
            if (turn === asked) element.removeAttribute("aria-busy");
        }
    }

    return {element, read: () => read(0), length: () => body.children.length, reading: () => element.hasAttribute("aria-busy")};
}
