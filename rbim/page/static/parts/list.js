// A live table: the newest row first, a filter, a pause button. It holds a bounded number of items and shows fewer of them.
//
//   const list = liveList({
//       caption: "Requests", empty: "None so far", t, number,
//       columns: [{label: "Operation", cell: item => node or text, class: "wide"}],
//       key: item => item.number,                 // unique
//       text: item => "what the filter searches",
//       open: item => {},                         // at a click into the row, or on its first cell
//       filters: [{label, options: [["", "All"]], accepts: (item, chosen) => true}],
//   });
//   list.add(items, {all}); list.update(item); list.clear(); list.missed(n); list.items()
//   list.element
//
// While it is paused, the rows stand still and new items are counted; none is lost that the list can hold.

import {fill, h, perFrame} from "./dom.js";
import {cells, inOrder, table, tableRow} from "./table.js";

const HELD = 1000;
const ROWS = 100;

export function liveList({caption, empty, columns, key, text, open, t, number, filters}) {
    let items = []; // oldest first
    let frozen = null; // while paused: the items that are shown
    let total = 0;
    let lost = 0;
    const rows = new Map();

    const body = h("tbody");
    const count = h("span", {class: "muted"});
    const search = h("input", {type: "search", placeholder: t("filter"), "aria-label": `${t("filter")}: ${caption}`});
    const choices = filters.map(choice);
    const pause = h("button", {type: "button", "aria-pressed": "false", onclick: toggle}, t("pause"));
    const nothing = h("div", {class: "empty"}, empty);
    const whole = table({caption, columns, body});
    const element = h(
        "div",
        {class: "live-list"},
        h("div", {class: "toolbar", role: "group", "aria-label": caption}, search, choices.map(each => each.element), pause, count),
        h("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": caption}, whole, nothing),
    );
    const draw = perFrame(render);
    search.addEventListener("input", draw);

    function choice({label, options, accepts}) {
        const select = h("select", {"aria-label": label}, options.map(([value, name]) => h("option", {value}, name)));
        select.addEventListener("change", () => draw());
        return {element: select, accepts: item => accepts(item, select.value)};
    }

    function toggle() {
        frozen = frozen === null ? items.slice() : null;
        pause.setAttribute("aria-pressed", String(frozen !== null));
        pause.textContent = t(frozen === null ? "pause" : "resume");
        draw();
    }

    function matching() {
        const wanted = search.value.trim().toLowerCase();
        const found = [];
        const among = frozen ?? items;
        for (let at = among.length - 1; at >= 0 && found.length < ROWS; at -= 1) {
            const item = among[at];
            if (wanted !== "" && !text(item).toLowerCase().includes(wanted)) continue;
            if (choices.every(each => each.accepts(item))) found.push(item);
        }
        return found;
    }

    function render() {
        const found = matching();
        const wanted = new Set(found.map(key));
        for (const [name, before] of rows) {
            if (wanted.has(name)) continue;
            if (before.contains(document.activeElement)) element.querySelector(".scroll").focus();
            before.remove();
            rows.delete(name);
        }
        for (const item of found) {
            if (!rows.has(key(item))) rows.set(key(item), tableRow(columns, item, open));
        }
        inOrder(body, found.map(item => rows.get(key(item))));
        whole.hidden = found.length === 0;
        nothing.hidden = found.length > 0;
        const parts = [t("shown", {shown: number(found.length), all: number(total)})];
        if (frozen !== null) parts.push(t("new ones", {n: number(Math.max(0, items.length - frozen.length))}));
        if (lost > 0) parts.push(t("missed", {n: number(lost)}));
        count.textContent = parts.join(" · ");
    }

    return {
        element,
        add(more, {all}) {
            items.push(...more);
            if (items.length > HELD) items = items.slice(-HELD);
            total = all;
            draw();
        },
        /** Draw one item again. */
        update(item) {
            const drawn = rows.get(key(item));
            if (drawn !== undefined && !drawn.contains(document.activeElement)) fill(drawn, cells(columns, item, open));
        },
        clear() {
            items = [];
            frozen = frozen === null ? null : [];
            total = lost = 0;
            body.replaceChildren();
            rows.clear();
            draw();
        },
        missed(more) {
            lost += more;
            draw();
        },
        items: () => items,
    };
}
