// Call tasks: the newest, with whether each may call now.

import {h, shown} from "../parts/dom.js";
import {ask} from "../parts/request.js";
import {dataTable} from "../parts/table.js";

export function tasksView(page) {
    const {t, number} = page;
    const count = h("p", {class: "muted"});
    const table = dataTable({
        caption: t("tab tasks"),
        empty: t("no task so far"),
        key: task => task.task_id,
        columns: [
            {label: t("identifier"), class: "narrow", cell: task => h("code", {}, shown(task.task_id, {most: 30}))},
            {label: t("name"), cell: task => [shown(task.name, {most: 80}), task.description && h("span", {class: "hint"}, shown(task.description, {most: 160}))]},
            {label: t("caller"), class: "narrow", cell: task => shown(task.caller, {most: 24})},
            {label: t("days"), class: "narrow", cell: task => `${task.first_day} – ${task.last_day}`},
            {label: t("concurrency"), class: "number narrow", cell: task => number(task.max_concurrent)},
            {label: t("no-call policies"), cell: task => (task.policies.length === 0 ? t("default policies") : shown(task.policies.join(", "), {most: 100}))},
            {label: t("may call now"), class: "narrow", cell: task => mayCall(page, task.may_call)},
        ],
    });
    return {
        element: h("section", {class: "stack"}, count, table.element),
        async refresh() {
            const {total, tasks} = await ask("GET", "tasks");
            table.show(tasks);
            count.textContent = t("shown", {shown: number(tasks.length), all: number(total)});
        },
    };
}

function mayCall({t}, answer) {
    if (answer === null) return h("span", {class: "tag"}, t("depends"));
    return h("span", {class: `tag ${answer ? "good" : "warn"}`}, t(answer ? "yes" : "no"));
}
