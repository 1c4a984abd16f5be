// Forms: fields with labels, and a button that is busy until the work is done.
//
//   form({
//       fields: [{name: "text", label: "Text", type: "text", value: "", hint: "", required: true, options: [["a", "A"]]}],
//       action: "Send",
//       submit: async values => {},     // throws an Error: its message is shown beside the button
//   })
//
// Types: text, number, select (with options), textarea, and those of <input>.

import {h} from "./dom.js";

let made = 0;

export function form({fields, action, submit, extra = [], label = null, kind = "primary"}) {
    const inputs = new Map();
    const rows = fields.map(field => row(field, inputs));
    const problem = h("p", {class: "problem", role: "alert"});
    const button = h("button", {type: "submit", class: kind}, action);
    const element = h(
        "form",
        {"aria-label": label},
        h("div", {class: "fields"}, rows),
        h("div", {class: "actions"}, button, extra),
        problem,
    );
    element.addEventListener("submit", async event => {
        event.preventDefault();
        if (button.getAttribute("aria-busy") === "true") return;
        button.setAttribute("aria-busy", "true");
        problem.textContent = "";
        try {
            await submit(values(inputs));
        } catch (error) {
            problem.textContent = error.message;
        } finally {
            button.removeAttribute("aria-busy");
        }
    });
    return element;
}

function row({name, label, type = "text", value = "", hint = "", required = false, options = [], ...more}, inputs) {
    const id = `field-${++made}`;
    const described = hint === "" ? null : `${id}-hint`;
    const attributes = {id, name, required, "aria-describedby": described, autocomplete: "off", ...more};
    let input;
    if (type === "select") input = h("select", attributes, options.map(([key, text]) => h("option", {value: key}, text)));
    else if (type === "textarea") input = h("textarea", {rows: 3, ...attributes});
    else input = h("input", {type, step: type === "number" ? "any" : null, ...attributes});
    if (type !== "select" || value !== "") input.value = value;
    inputs.set(name, input);
    const text = h("label", {for: id}, label);
    const help = described === null ? null : h("small", {id: described, class: "hint"}, hint);
    return h("div", {class: `field ${type}`}, text, input, help);
}

function values(inputs) {
    const found = {};
    for (const [name, input] of inputs) {
        if (input.type === "number") found[name] = input.value === "" ? null : Number(input.value);
        else found[name] = input.value;
    }
    return found;
}
