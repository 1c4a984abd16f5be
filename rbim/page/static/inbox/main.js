// The page of an inbox: what came and what waits, every delivery, and the dead letters and the quarantine.

import {fill, shown} from "../parts/dom.js";
import {follow} from "../parts/follow.js";
import {speech} from "../parts/words.js";
import {eventsView} from "./events.js";
import {overviewView} from "./overview.js";
import {words} from "./words.js";

const voice = speech(words);
const {t, number} = voice;

const page = {...voice, state: null, refresh: () => frame.refresh(), isShown: id => frame.panel.shown() === id};

const views = {
    overview: overviewView(page),
    events: eventsView(page, "events"),
    dead: eventsView(page, "dead"),
    quarantined: eventsView(page, "quarantined"),
};

const frame = follow({
    t,
    title: t("title"),
    tabs: Object.entries(views).map(([id, {element, opened}]) => ({id, label: t(id), panel: element, onShow: opened})),
    onState(state) {
        page.state = state;
        const {counts, inbox} = state;
        fill(frame.source, shown(inbox.split(/[\\/]/u).at(-1), {most: 60}));
        document.title = `${counts.waiting > 0 ? `${number(counts.waiting)} · ` : ""}${t("title")}`;
        for (const id of ["dead", "quarantined"]) frame.panel.badge(id, counts[id] > 0 ? number(counts[id]) : "");
        for (const view of Object.values(views)) view.draw();
    },
});
