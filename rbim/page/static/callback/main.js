// The page of a receiver: what comes in, what waits, and the dead letters and the quarantine of its inbox.

import {commandBar, follow} from "../parts/command.js";
import {fill, shown} from "../parts/dom.js";
import {tabs} from "../parts/tabs.js";
import {speech} from "../parts/words.js";
import {deliveriesView} from "./deliveries.js";
import {lettersView} from "./letters.js";
import {words} from "./words.js";

const COMMAND = "rbim callback serve";

const voice = speech(words);
const {t, number} = voice;

const page = {
    ...voice,
    levels: null,
    ended: false,
    shown: () => panel.shown(),
    badge: (id, count) => panel.badge(id, count > 0 ? number(count) : ""),
};

const deliveries = deliveriesView(page);
const dead = lettersView(page, "dead", "dead");
const quarantine = lettersView(page, "quarantine", "quarantined");
const bar = commandBar({t, title: COMMAND});
const panel = tabs({
    label: t("title"),
    tabs: [
        {id: "deliveries", label: t("deliveries"), panel: deliveries.element},
        {id: "dead", label: t("dead"), panel: dead.element, onShow: dead.opened},
        {id: "quarantine", label: t("quarantine"), panel: quarantine.element, onShow: quarantine.opened},
    ],
});

follow({
    t,
    bar,
    panel,
    onLevels: levels => {
        page.levels = levels;
        const {counters, counts, inbox, kind} = levels;
        bar.phase(t("running"), "good");
        fill(bar.source, shown(kind === "file" ? inbox.split(/[\\/]/u).at(-1) : inbox, {most: 60}));
        document.title = `${number(counters.deliveries)} · ${COMMAND}`;
        page.badge("dead", counts?.dead ?? 0);
        page.badge("quarantine", counts?.quarantined ?? 0);
        deliveries.draw();
        if (!counts) return;
        dead.changed();
        quarantine.changed();
    },
    streams: deliveries.streams,
    onEnd: () => {
        page.ended = true;
        bar.phase(t("stopped"), "");
        deliveries.end();
        dead.end();
        quarantine.end();
    },
});
