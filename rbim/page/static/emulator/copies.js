// Message copies: their target, messages to send by hand, and every delivery with its attempts.

import {openDialog} from "../parts/dialog.js";
import {fill, h, shown} from "../parts/dom.js";
import {form} from "../parts/form.js";
import {notify, warn} from "../parts/notice.js";
import {ask} from "../parts/request.js";
import {dataTable} from "../parts/table.js";
import {pretty} from "./requests.js";

const NOTICES = [
    "TEAM_APPLY", "TEAM_INVITE", "TEAM_JOIN", "TEAM_DISMISS", "TEAM_QUIT", "TEAM_KICK", "TEAM_APPLY_ACCEPT",
    "TEAM_INVITE_ACCEPT", "TEAM_APPLY_REJECT", "TEAM_INVITE_REJECT", "TEAM_UPDATE", "TEAM_MEMBER_UPDATE", "TEAM_ADD_ADMIN",
    "TEAM_ROLE_UPDATE",
];

const SOON = 1500; // milliseconds after which the first attempt is looked at

export function copiesView(page) {
    const {t, number, duration} = page;
    const target = targetCard(page);
    const count = h("p", {class: "muted"});
    const table = dataTable({
        caption: t("tab copies"),
        empty: [h("p", {}, t("no delivery so far")), h("p", {}, t("no delivery hint"))],
        key: message => message.number,
        columns: [
            {label: "#", class: "number narrow", cell: message => h("button", {type: "button", class: "link", onclick: () => openMessage(page, message), "aria-label": `${t("message")} ${message.number}`}, number(message.number))},
            {label: t("conversation"), class: "narrow", cell: message => shown(message.key, {most: 40})},
            {label: t("kind"), class: "narrow", cell: message => shown([message.event.convType, message.event.msgType].filter(Boolean).join(" · "), {most: 50})},
            {label: t("text"), class: "line", cell: message => h("span", {class: "truncate"}, shown(message.event.body ?? "", {most: 100}))},
            {label: t("attempts"), cell: message => h("span", {class: "chips"}, message.attempts.map(attemptTag))},
            {label: t("again"), class: "narrow", cell: message => h("button", {type: "button", class: "small", "aria-label": `${t("send again")}: ${message.number}`, onclick: () => sendAgain(page, message)}, t("send again"))},
        ],
    });

    return {
        element: h(
            "section",
            {class: "stack"},
            h("div", {class: "cards wide"}, target.element, messageCard(page)),
            count,
            table.element,
        ),
        async refresh() {
            const [copy, {waiting, messages}] = await Promise.all([ask("GET", "copy"), ask("GET", "messages")]);
            target.show(copy);
            table.show(messages);
            count.textContent = t("waiting copies", {n: number(waiting), shown: number(messages.length)});
        },
    };

    function attemptTag(each) {
        const name = each.duplicate > 0 ? t("duplicate n", {n: each.duplicate}) : t("attempt n", {n: each.attempt});
        const answer = each.status === null ? each.reason.split(":")[0] : `HTTP ${each.status}`;
        return h("span", {class: `tag ${each.status === 200 ? "good" : "bad"}`, title: each.reason}, `${name}: `, shown(answer, {most: 40}), ` · ${duration(each.took)}`);
    }
}

function targetCard(page) {
    const {t} = page;
    const state = h("span", {class: "pill"}, t("not copied"));
    const stop = h("button", {type: "button", hidden: true, onclick: () => page.press("DELETE", "copy")}, t("stop copying"));
    const set = form({
        label: t("target of copies"),
        fields: [
            {name: "url", label: t("address of receiver"), required: true, type: "url", value: "http://127.0.0.1:8000/", class: "wide"},
            {name: "mode", label: t("mode"), type: "select", options: [["normal", t("mode normal")], ["high-guarantee", t("mode high")]]},
        ],
        action: t("copy to it"),
        extra: [stop],
        submit: async values => {
            await page.act("PUT", "copy", values);
            notify(t("copied from now"));
        },
    });
    const now = h("p", {class: "muted"});
    let last = "";
    return {
        element: h("div", {class: "card"}, h("header", {}, h("h2", {}, t("target of copies")), state), now, set),
        show(copy) {
            const text = JSON.stringify(copy);
            if (text === last) return;
            last = text;
            state.className = copy === null ? "pill" : "pill good";
            state.textContent = t(copy === null ? "not copied" : "copying");
            stop.hidden = copy === null;
            if (copy === null) fill(now, t("copies hint"));
            else fill(now, shown(copy.url ?? t("a receiver in Python")), ` (${t(copy.mode === "normal" ? "mode normal" : "mode high")})`);
        },
    };
}

// A message by hand: said by an account, pushed over REST, or a notification to a group.

function messageCard(page) {
    const {t} = page;
    const sent = async (path, body) => {
        const {message_id: id} = await page.act("POST", path, body);
        notify(t(page.levels?.copied ? "message sent" : "message sent, no copy", {id}));
        if (page.levels?.copied) setTimeout(() => lookAt(id), SOON);
    };
    /** Say it if the first attempt to deliver the copy of a message has failed. */
    const lookAt = async id => {
        const {messages} = (await page.press("GET", "messages")) ?? {messages: []};
        const first = messages.find(each => each.message_id === id)?.attempts.at(0);
        if (first && first.status !== 200) warn(t("copy refused", {id, answer: first.status === null ? first.reason : `HTTP ${first.status}`}));
    };
    const several = text => text.split(/[\s,，]+/u).filter(each => each !== "");
    const forms = {
        say: form({
            label: t("say"),
            fields: [
                {name: "sender", label: t("from account"), required: true, value: "1001"},
                {name: "to", label: t("to account or group"), required: true, value: "1002"},
                {name: "text", label: t("text"), type: "textarea", value: t("hello")},
            ],
            action: t("say"),
            submit: values => sent("say", values),
        }),
        push: form({
            label: t("push"),
            fields: [
                {name: "to", label: t("to accounts or group"), required: true, value: "1001", hint: t("several accounts")},
                {name: "text", label: t("text"), type: "textarea", value: t("hello")},
            ],
            action: t("push"),
            submit: ({to, text}) => sent("push", {to: several(to).length > 1 ? several(to) : to.trim(), text}),
        }),
        notify: form({
            label: t("notify"),
            fields: [
                {name: "group_id", label: t("group"), required: true},
                {name: "notice", label: t("notice"), type: "select", options: NOTICES.map(each => [each, each]), value: "TEAM_MEMBER_UPDATE"},
                {name: "members", label: t("concerned accounts"), hint: t("several accounts")},
            ],
            action: t("notify"),
            submit: ({group_id, notice, members}) => sent("notify", {group_id, notice, ...(several(members).length > 0 && {members: several(members)})}),
        }),
    };
    const buttons = Object.keys(forms).map(kind => h("button", {type: "button", class: "small", "aria-pressed": "false", "data-kind": kind, onclick: () => choose(kind)}, t(`kind ${kind}`)));
    const card = h("div", {class: "card"}, h("header", {}, h("h2", {}, t("send a message")), h("span", {class: "button-row", role: "group", "aria-label": t("kind")}, buttons)), Object.values(forms));

    function choose(kind) {
        for (const [name, element] of Object.entries(forms)) element.hidden = name !== kind;
        for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
    }

    choose("say");
    return card;
}

async function sendAgain(page, message) {
    const done = await page.press("POST", "deliveries/again", {number: message.number});
    if (done !== undefined) notify(page.t("sent again", {n: message.number}));
}

function openMessage(page, message) {
    const {t, duration} = page;
    const table = dataTable({
        caption: t("attempts"),
        visible: true,
        empty: "",
        key: each => `${each.attempt} ${each.duplicate} ${each.at}`,
        columns: [
            {label: t("attempt"), class: "narrow", cell: each => (each.duplicate > 0 ? t("duplicate n", {n: each.duplicate}) : String(each.attempt))},
            {label: t("time"), class: "narrow", cell: each => (page.epoch === 0 ? "" : page.time(page.epoch + each.at * 1000))},
            {label: t("answer"), cell: each => h("span", {class: `tag ${each.status === 200 ? "good" : "bad"}`}, shown(each.status === null ? each.reason : `HTTP ${each.status}`, {most: 100}))},
            {label: t("latency"), class: "number narrow", cell: each => duration(each.took)},
            {label: t("faults"), cell: each => each.trouble.join(", ")},
        ],
    });
    table.show(message.attempts);
    const headers = Object.entries(message.attempts[0].headers).map(([name, value]) => `${name}: ${value}`).join("\n");
    openDialog({
        title: `${t("message")} ${page.number(message.number)}`,
        close: t("close"),
        body: [
            table.element,
            h("section", {}, h("h3", {}, t("headers of first attempt")), fill(h("pre", {tabindex: "0", "aria-label": t("headers of first attempt")}), shown(headers, {lines: true, tag: "code"}))),
            h("section", {}, h("h3", {}, t("body")), fill(h("pre", {tabindex: "0", "aria-label": t("body")}), shown(pretty(message.body), {lines: true, tag: "code"}))),
        ],
        actions: [h("button", {type: "button", onclick: () => sendAgain(page, message)}, t("send again"))],
    });
}
