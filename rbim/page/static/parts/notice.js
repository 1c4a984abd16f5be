// A short notice of what just happened, at the edge of the page. Screen readers say it; errors at once.
//
//   notify("The clock moved."); warn("There is no group g1");

import {h} from "./dom.js";

const SECONDS = 6;
const MOST = 3;

const polite = h("div", {role: "status", "aria-live": "polite", class: "notices"});
const urgent = h("div", {role: "alert", class: "notices urgent"});

export const notices = h("div", {class: "notice-corner"}, urgent, polite);

export const notify = text => add(polite, text);
export const warn = text => add(urgent, text);

function add(region, text) {
    const notice = h("p", {}, text);
    region.append(notice);
    while (region.children.length > MOST) region.firstChild.remove();
    setTimeout(() => notice.remove(), SECONDS * 1000);
    // a dialog is above everything else: the notice joins it
    const dialogs = document.querySelectorAll("dialog[open]");
    const host = dialogs.length > 0 ? dialogs[dialogs.length - 1] : document.body;
    if (notices.parentNode !== host) {
        host.append(notices);
        if (host !== document.body) host.addEventListener("close", () => document.body.append(notices), {once: true});
    }
}
