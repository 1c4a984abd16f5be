// Faults of requests and of copies: ready-made ones, one's own, the plan with its counts; and outages.

import {h, shown} from "../parts/dom.js";
import {form} from "../parts/form.js";
import {notify} from "../parts/notice.js";
import {ask} from "../parts/request.js";
import {dataTable} from "../parts/table.js";

const OPERATIONS = [
    "CreateGroup", "ModifyGroup", "DeleteGroup", "SearchPublicGroups", "QueryGroupDetail", "JoinGroup", "InviteJoinGroup",
    "DeleteGroupMember", "LogoutGroup", "SetMemberRole", "CreateCallTask",
];

const READY = {
    "429": {kind: "status", status: 429, retry_after: 2},
    "503": {kind: "status", status: 503},
    "limit": {kind: "throttle", per_second: 5, retry_after: 1},
    "latency": {kind: "latency", seconds: 2},
    "slow body": {kind: "slow_body", seconds: 2},
    "reset before": {kind: "reset_before"},
    "reset after": {kind: "reset_after"},
    "cut short": {kind: "cut_short", keep: 0.5},
    "invalid json": {kind: "invalid_json"},
    "duplicate fields": {kind: "duplicate_fields"},
    "code": {kind: "code", code: "999999"},
};

const READY_COPIES = {
    "delay": {kind: "delay", seconds: 2},
    "duplicate": {kind: "duplicate", extra: 1},
    "overtaken": {kind: "overtaken", by: 1},
    "tamper": {kind: "tamper"},
    "stale": {kind: "stale", seconds: 3600},
};

const HOW_OFTEN = {
    "next": {times: 1},
    "always": {},
    "every tenth": {every: 10},
    "tenth at random": {probability: 0.1},
};

export function faultsView(page) {
    const {t} = page;
    const requests = planCard(page, {path: "faults", title: t("faults of requests"), ready: READY, operations: true, example: '{"effect": {"kind": "latency", "seconds": 0.05, "sigma": 0.5}}'});
    const copies = planCard(page, {path: "copy-faults", title: t("faults of copies"), ready: READY_COPIES, operations: false, example: '{"effect": {"kind": "tamper"}, "match": {"convType": "TEAM"}}'});
    const outage = outageCard(page);
    return {
        element: h("section", {class: "stack"}, h("div", {class: "cards wide"}, requests.element, h("div", {class: "stack"}, copies.element, outage.element))),
        refresh: () => Promise.all([requests.refresh(), copies.refresh()]),
        onLevels: outage.onLevels,
        onLost: () => outage.onLevels({listening: null}),
    };
}

function planCard(page, {path, title, ready, operations, example}) {
    const {t, number} = page;
    const often = h("select", {id: `${path}-often`}, Object.keys(HOW_OFTEN).map(each => h("option", {value: each}, t(`often ${each}`))));
    const which = operations && h("select", {id: `${path}-operation`}, h("option", {value: ""}, t("every operation")), OPERATIONS.map(each => h("option", {value: each}, each)));
    const buttons = Object.entries(ready).map(([name, effect]) => h("button", {type: "button", class: "small", "data-ready": name, onclick: () => arm(name, effect)}, t(`ready ${name}`)));
    const clear = h("button", {type: "button", class: "small danger", hidden: true, onclick: () => page.press("DELETE", path)}, t("remove all"));
    const own = form({
        label: t("a fault of your own"),
        kind: "",
        fields: [{name: "fault", label: t("a fault of your own"), type: "textarea", value: example, spellcheck: "false"}],
        action: t("add"),
        submit: async ({fault}) => {
            await page.act("POST", path, fault); // as it is written: the emulator says what is wrong with it
            notify(t("fault added"));
        },
    });
    const table = dataTable({
        caption: t("plan"),
        visible: true,
        empty: t("no fault"),
        key: row => row.number,
        columns: [
            {label: "#", class: "number narrow", cell: row => String(row.number)},
            {label: t("effect"), cell: row => effectText(row.fault)},
            {label: t("happened"), class: "number narrow", cell: row => t("n of m", {n: number(row.happened), m: number(row.matched)})},
            {label: t("remove"), class: "narrow", cell: row => h("button", {type: "button", class: "small", "aria-label": `${t("remove")}: ${row.number}`, onclick: () => page.press("DELETE", `${path}/${row.number}`)}, t("remove"))},
        ],
    });

    async function arm(name, effect) {
        const operation = which && which.value !== "" ? {operation: which.value} : {};
        const done = await page.press("POST", path, {effect, ...HOW_OFTEN[often.value], ...operation});
        if (done !== undefined) notify(t("fault armed", {name: t(`ready ${name}`)}));
    }

    return {
        element: h(
            "div",
            {class: "card", id: `card-${path}`},
            h("header", {}, h("h2", {}, title), clear),
            h(
                "div",
                {class: "fields"},
                h("div", {class: "field"}, h("label", {for: `${path}-often`}, t("how often")), often),
                which && h("div", {class: "field"}, h("label", {for: `${path}-operation`}, t("operation")), which),
            ),
            h("div", {class: "button-row", role: "group", "aria-label": t("ready-made")}, buttons),
            table.element,
            h("details", {}, h("summary", {}, t("a fault of your own")), own),
        ),
        async refresh() {
            const [faults, counts] = await Promise.all([ask("GET", path), ask("GET", `${path}/counts`)]);
            table.show(faults.map((fault, at) => ({number: at + 1, fault, ...(counts[at] ?? {matched: 0, happened: 0})})));
            clear.hidden = faults.length === 0;
        },
    };
}

function effectText(fault) {
    const {effect: {kind, ...fields}, ...selection} = fault;
    const text = values => Object.entries(values).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${name === kind ? "" : `${name} `}${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
    return [h("strong", {}, kind), " ", shown(text(fields), {most: 120}), h("span", {class: "hint"}, shown(text(selection), {most: 200}))];
}

function outageCard(page) {
    const {t} = page;
    const state = h("span", {class: "pill good"}, t("port open"));
    const end = h("button", {type: "button", onclick: () => page.press("DELETE", "outage")}, t("end outage"));
    const begin = form({
        label: t("outage"),
        fields: [{name: "seconds", label: t("seconds"), type: "number", value: "30", min: "0", required: true}],
        action: t("begin outage"),
        kind: "danger",
        extra: [end],
        submit: async ({seconds}) => {
            await ask("POST", "outage", {seconds});
            notify(t("outage begun"));
        },
    });
    return {
        element: h("div", {class: "card", id: "card-outage"}, h("header", {}, h("h2", {}, t("outage")), state), h("p", {class: "muted"}, t("outage hint")), begin),
        onLevels({listening}) {
            state.className = listening ? "pill good" : "pill bad";
            state.textContent = t(listening === null ? "port away" : listening ? "port open" : "port closed");
        },
    };
}
