// The emulator's page: it asks for counters and new requests again and again, and the view that is open asks for the rest.

import {fill, h} from "../parts/dom.js";
import {copyButton} from "../parts/copy.js";
import {notices, warn} from "../parts/notice.js";
import {tabs} from "../parts/tabs.js";
import {speech} from "../parts/words.js";
import {accountsView} from "./accounts.js";
import {copiesView} from "./copies.js";
import {faultsView} from "./faults.js";
import {groupsView} from "./groups.js";
import {requestsView} from "./requests.js";
import {settingsView} from "./settings.js";
import {tasksView} from "./tasks.js";
import {words} from "./words.js";
import {ask} from "../parts/request.js";

const PAUSE = 500; // milliseconds between two refreshes of a view
const SLOW = 5000; // and without a known change, because Python code can change the state directly
const PAUSE_LIVE = 500; // milliseconds between an answer and the next question for what is new

const voice = speech(words);
const {t, number} = voice;
document.title = t("title");

const page = {
    ...voice,
    levels: null,
    epoch: 0, // milliseconds: the wall-clock time of second 0 of the emulator's clock
    /** Ask the emulator to do something, and refresh what is shown. */
    async act(method, path, body) {
        const answer = await ask(method, path, body);
        refresh();
        return answer;
    },
    /** The same for a button without a place for an error. */
    async press(method, path, body) {
        try {
            return await page.act(method, path, body);
        } catch (error) {
            warn(error.message || t("unreachable"));
            return undefined;
        }
    },
};

const views = {
    requests: requestsView(page),
    groups: groupsView(page),
    tasks: tasksView(page),
    accounts: accountsView(page),
    copies: copiesView(page),
    faults: faultsView(page),
    settings: settingsView(page),
};

const brand = h("div", {class: "brand"}, h("img", {src: "static/parts/icon.svg", alt: ""}), h("h1", {}, t("title")));
const state = h("span", {class: "pill", id: "state"});
const clock = h("span", {class: "muted", id: "clock"});
const banner = h("div", {class: "banner", hidden: true});
const bar = tabs({
    label: t("views"),
    tabs: Object.entries(views).map(([id, view]) => ({id, label: t(`tab ${id}`), panel: view.element, onShow: refresh})),
});

document.body.append(
    h("a", {class: "skip", href: "#main", onclick: skip}, t("skip")),
    h("header", {class: "top-bar"}, h("div", {class: "bar"}, brand, state, h("span", {class: "spring"}), clock), bar.bar),
    h("main", {id: "main", tabindex: "-1"}, banner, bar.panels),
    h("footer", {class: "page-foot"}, h("p", {}, t("about"))),
    notices,
);

function skip(event) {
    event.preventDefault();
    document.getElementById("main").focus();
}

// What is shown of the emulator's parts: asked for when the tab opens, after changes, and now and then.

let asking = false;
let again = false;
let lastAsked = 0;

async function refresh() {
    const view = views[bar.shown()];
    if (view?.refresh === undefined || document.hidden) return;
    if (asking) {
        again = true;
        return;
    }
    asking = true;
    again = false;
    try {
        await view.refresh();
    } catch {
        // the state of the page says that there is no connection
    }
    lastAsked = performance.now();
    setTimeout(() => {
        asking = false;
        if (again) refresh();
    }, PAUSE);
}

setInterval(() => performance.now() - lastAsked > SLOW && refresh(), SLOW / 5);

// What is new, asked for all the time; not in a hidden tab, which goes on later from where it was.

let position = "0";
let question = 0;
let timer = 0;

async function follow() {
    clearTimeout(timer);
    const turn = ++question;
    if (document.hidden) {
        onState("paused");
        return;
    }
    const levels = await ask("GET", `live/${position}`).catch(() => null);
    if (turn !== question) return;
    timer = setTimeout(follow, PAUSE_LIVE);
    if (levels === null) {
        onState("lost");
        return;
    }
    onState("open", levels);
    position = levels.requests.position;
    if (levels.requests.start) views.requests.clear();
    views.requests.add(levels.requests, levels.counts.requests);
    onLevels(levels);
}

document.addEventListener("visibilitychange", follow);

let changes = "";

function onLevels(levels) {
    page.levels = levels;
    const {counts} = levels;
    for (const id of ["requests", "groups", "tasks"]) bar.badge(id, counts[id] > 0 ? number(counts[id]) : "");
    bar.badge("copies", counts.deliveries > 0 ? number(counts.deliveries) : "");
    bar.badge("faults", counts.faults + counts.copy_faults > 0 ? number(counts.faults + counts.copy_faults) : "");
    clock.textContent = levels.clock.emulated ? `${t("emulated time")} ${voice.dateTime(levels.clock.now)}` : "";
    for (const view of Object.values(views)) view.onLevels?.(levels);
    showOutage();
    const now = JSON.stringify(levels.changes);
    if (now !== changes) {
        changes = now;
        refresh();
    }
}

let connection = "";

function onState(now, levels) {
    const [text, kind] = {
        open: [t("live"), "good"],
        lost: [t("live lost"), "bad"],
        paused: [t("live paused"), ""],
    }[now];
    if (connection !== now) {
        state.className = `pill ${kind}`;
        state.textContent = text;
    }
    if (now === "open" && (connection !== "open" || levels.requests.start)) {
        // the clock says which second of its own is which moment; at a start it may be that of another emulator
        page.epoch = Date.parse(levels.clock.now) - levels.clock.monotonic * 1000;
        views.requests.draw();
    }
    if (now === "lost") views.faults.onLost();
    connection = now;
    showOutage();
}

let shownOutage = "";

/** During an outage the platform's port refuses this page, too; the control port does not. */
function showOutage() {
    const levels = page.levels;
    const away = levels !== null && connection === "lost" && levels.control !== null;
    const outage = levels !== null && !levels.listening && connection === "open";
    const kind = away ? "away" : outage ? "outage" : "";
    if (kind === shownOutage) return;
    shownOutage = kind;
    banner.hidden = kind === "";
    if (kind === "away") {
        const {control} = levels;
        fill(banner, h("span", {}, t("away")), h("code", {}, control), copyButton(control, {t, name: t("copy address")}));
    } else if (kind === "outage") {
        const end = h("button", {type: "button", onclick: () => page.press("DELETE", "outage")}, t("end outage"));
        fill(banner, h("span", {}, t("outage now")), end);
    }
}

bar.begin();
follow();
