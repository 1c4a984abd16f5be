// Tabs by the ARIA pattern: arrow keys, Home and End; the open tab is part of the address (#groups).
//
//   tabs({label: "Views", tabs: [{id: "groups", label: "Groups", panel: element, onShow: () => {}}]})
//       -> {bar, panels, show(id), shown(), badge(id, text)}

import {h} from "./dom.js";

export function tabs({label, tabs: entries}) {
    const bar = h("div", {role: "tablist", "aria-label": label, class: "tabs"});
    const panels = h("div", {class: "panels"});
    const buttons = new Map();
    const badges = new Map();
    let open = "";

    for (const {id, label: name, panel} of entries) {
        const badge = h("span", {class: "badge", hidden: true});
        const button = h(
            "button",
            {role: "tab", type: "button", id: `tab-${id}`, "aria-controls": `panel-${id}`, onclick: () => show(id)},
            h("span", {}, name),
            badge,
        );
        buttons.set(id, button);
        badges.set(id, badge);
        bar.append(button);
        for (const [attribute, value] of Object.entries({
            role: "tabpanel",
            id: `panel-${id}`,
            "aria-labelledby": `tab-${id}`,
            tabindex: "0",
        })) panel.setAttribute(attribute, value);
        panels.append(panel);
    }
    bar.addEventListener("keydown", event => {
        const ids = [...buttons.keys()];
        const at = ids.indexOf(open);
        const next = {
            ArrowRight: (at + 1) % ids.length,
            ArrowLeft: (at + ids.length - 1) % ids.length,
            Home: 0,
            End: ids.length - 1,
        }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        show(ids[next]);
        buttons.get(ids[next]).focus();
    });

    function show(id) {
        if (!buttons.has(id)) return;
        open = id;
        for (const entry of entries) {
            const selected = entry.id === id;
            buttons.get(entry.id).setAttribute("aria-selected", String(selected));
            buttons.get(entry.id).tabIndex = selected ? 0 : -1;
            entry.panel.hidden = !selected;
        }
        buttons.get(id).scrollIntoView({block: "nearest", inline: "nearest"});
        if (location.hash !== `#${id}`) history.replaceState(null, "", `#${id}`);
        entries.find(entry => entry.id === id).onShow?.();
    }

    function badge(id, text) {
        const element = badges.get(id);
        if (element.textContent === text) return;
        element.textContent = text;
        element.hidden = text === "";
    }

    addEventListener("hashchange", () => show(location.hash.slice(1)));
    const begin = () => show(buttons.has(location.hash.slice(1)) ? location.hash.slice(1) : entries[0].id);
    return {bar, panels, show, badge, begin, shown: () => open};
}
