// The page of a job, while it runs or later: how far it is, how fast and why, the reasons, and the accounts.

import {download} from "../parts/download.js";
import {fill, shown} from "../parts/dom.js";
import {follow} from "../parts/follow.js";
import {warn} from "../parts/notice.js";
import {askForFile} from "../parts/request.js";
import {speech} from "../parts/words.js";
import {accountsView} from "./accounts.js";
import {detailView} from "./detail.js";
import {overviewView} from "./overview.js";
import {reasonsView} from "./reasons.js";
import {words} from "./words.js";

const TONES = {running: "good", loading: "info", incomplete: "warn"};

const voice = speech(words);
const {t, number} = voice;

const page = {
    ...voice,
    state: null, // what the server said last
    /** A reason in the language of the page, if it is one of rbim's own. */
    reason(text) {
        const [, line] = /^the same as line (\d+)$/u.exec(text) ?? [];
        if (line) return t("repeats", {n: number(line)});
        const [, refusals, rest] = /^not sent: the group was closed after (\d+) refusals in a row: (.*)$/su.exec(text) ?? [];
        if (refusals) return [t("given up", {n: number(refusals)}), " ", page.reason(rest)];
        return voice.has(`reason ${text}`) ? t(`reason ${text}`) : shown(text, {most: 300});
    },
    showAccounts(choice) {
        views.accounts.choose(choice);
        frame.panel.show("accounts");
    },
    /** Download the accounts of a choice as CSV, or with {not_done: ""} those that were not done, as the input is. */
    async download(choice) {
        const given = Object.entries(choice).filter(([, value]) => value !== null && value !== undefined);
        try {
            const {name, blob} = await askForFile(`download?${new URLSearchParams(given)}`);
            download(name, blob);
        } catch (error) {
            warn(error.message || t("unreachable"));
        }
    },
};

const views = {overview: overviewView(page), reasons: reasonsView(page), accounts: accountsView(page), detail: detailView(page)};

const frame = follow({
    t,
    title: t("title"),
    tabs: Object.entries(views).map(([id, {element, opened}]) => ({id, label: t(id), panel: element, onShow: opened})),
    onState(state) {
        page.state = state;
        const {report, journal} = state;
        fill(frame.source, shown((report.job.source.name || journal).split(/[\\/]/u).at(-1), {most: 60}));
        const phase = state.running && report.state !== "loading" ? "running" : report.state;
        frame.phase(t(`phase ${phase}`), TONES[phase] ?? "");
        const {total} = report.accounts;
        document.title = `${total > 0 ? `${Math.floor((100 * (total - report.skipped.not_sent - report.in_flight)) / total)} % · ` : ""}${t("title")}`;
        frame.panel.badge("reasons", report.reasons.length > 0 ? number(report.reasons.length) : "");
        for (const view of Object.values(views)) view.draw?.();
    },
});
