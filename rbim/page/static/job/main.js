// The page of a job that runs: how far it is, how fast and why, the reasons, and the accounts.

import {commandBar, follow} from "../parts/command.js";
import {fill, h, shown} from "../parts/dom.js";
import {warn} from "../parts/notice.js";
import {ask} from "../parts/request.js";
import {tabs} from "../parts/tabs.js";
import {speech} from "../parts/words.js";
import {accountsView} from "./accounts.js";
import {detailView} from "./detail.js";
import {overviewView} from "./overview.js";
import {reasonsView} from "./reasons.js";
import {words} from "./words.js";

const TONES = {running: "good", halted: "warn", draining: "warn", loading: "info", ended: ""};

const voice = speech(words);
const {t, number} = voice;

const page = {
    ...voice,
    levels: null,
    report: null, // the newest
    ending: null, // what the command said at its end
    showAccounts(choice) {
        views.accounts.choose(choice);
        panel.show("accounts");
    },
    /** Download the accounts of a choice as CSV. */
    async download(choice) {
        try {
            const {path, name} = await ask("POST", "download", choice);
            h("a", {href: path.slice(1), download: name}).click(); // a path for one use, without the token
        } catch (error) {
            warn(error.message || t("unreachable"));
        }
    },
};

const views = {
    overview: overviewView(page),
    reasons: reasonsView(page),
    accounts: accountsView(page),
    detail: detailView(page),
};
const bar = commandBar({t, title: "rbim"});
const panel = tabs({
    label: t("title"),
    tabs: [
        {id: "overview", label: t("overview"), panel: views.overview.element},
        {id: "reasons", label: t("reasons"), panel: views.reasons.element},
        {id: "accounts", label: t("accounts"), panel: views.accounts.element, onShow: views.accounts.opened},
        {id: "detail", label: t("detail"), panel: views.detail.element},
    ],
});

function drawTop() {
    const {levels, report, ending} = page;
    const progress = levels?.progress;
    if (levels) {
        fill(bar.title, levels.command);
        fill(bar.source, shown((report?.job?.source?.name || levels.journal).split(/[\\/]/u).at(-1), {most: 60}));
    }
    const now = ending !== null ? "ended" : progress?.phase;
    if (now) bar.phase(t(`phase ${now}`), TONES[now]);
    const percent = progress && progress.total > 0 ? `${Math.floor((100 * (progress.total - progress.waiting)) / progress.total)} % · ` : "";
    document.title = `${percent}${levels?.command ?? "rbim"}`;
}

function drawReport() {
    const count = page.report?.reasons.length ?? 0;
    panel.badge("reasons", count > 0 ? number(count) : "");
    views.reasons.draw();
    views.detail.draw();
}

drawReport();
follow({
    t,
    bar,
    panel,
    onLevels: levels => {
        page.levels = levels;
        drawTop();
        views.overview.draw();
    },
    streams: {
        points: views.overview.points,
        report: {
            onItems: items => {
                if (items.length === 0) return;
                page.report = items.at(-1);
                drawTop();
                drawReport();
                if (page.ending !== null) views.overview.draw();
            },
        },
    },
    onEnd: last => {
        page.ending = last ?? {gone: true};
        drawTop();
        views.overview.draw();
        views.overview.end();
        views.accounts.end();
        drawReport();
    },
});
