// Elements, made of text only. Nothing here parses HTML, so that no text of a user can become part of the page.
//
//   h("button", {class: "primary", onclick: press}, "Send")    an element with attributes, listeners and children
//   svg("path", {d: "M0 0"})                                   the same for SVG
//   shown(text), shown(text, {most: 80})                       foreign text: control characters are made visible

const SVG = "http://www.w3.org/2000/svg";

const LONG = 1000; // characters of a text whose length is said where it is cut

// C0 and C1 controls, what changes the direction of text, what has no width, and line separators.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/gu;
const HIDDEN_OR_BREAK = new RegExp(`[\\n\\t]|${HIDDEN.source}`, "gu");

export function h(tag, attributes = {}, ...children) {
    return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
    return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
        if (value === null || value === undefined || value === false) continue;
        if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
        else element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
    return element;
}

/** Replace all children of an element. */
export function fill(element, ...children) {
    element.replaceChildren(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
    return element;
}

/**
 * Foreign text as an element of its own direction. `most` is the number of characters that are shown; `lines` keeps line
 * breaks and tabs as they are, for <pre>.
 */
export function shown(text, {most = Infinity, lines = false, tag = "bdi"} = {}) {
    const whole = String(text);
    const cut = whole.length > most;
    const part = cut ? whole.slice(0, most).replace(/[\ud800-\udbff]$/u, "") : whole;
    const nodes = [];
    let end = 0;
    for (const found of part.matchAll(lines ? HIDDEN : HIDDEN_OR_BREAK)) {
        if (found.index > end) nodes.push(part.slice(end, found.index));
        nodes.push(control(found[0].codePointAt(0)));
        end = found.index + found[0].length;
    }
    nodes.push(part.slice(end));
    if (cut) nodes.push(h("span", {class: "cut"}, whole.length > LONG ? `… (${whole.length.toLocaleString()})` : "…"));
    return h(tag, {}, nodes);
}

function control(code) {
    const name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    const picture = code < 0x20 ? String.fromCodePoint(0x2400 + code) : code === 0x7f ? "\u2421" : name;
    return h("span", {class: "control", title: name}, picture);
}

/** Call a function when nothing more was typed into a field for a quarter of a second. */
export function whenTyped(field, call) {
    let timer = 0;
    field.addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(call, 250);
    });
}

/** Call a function at most once per frame, however often it is asked for. */
export function perFrame(draw) {
    let asked = false;
    return () => {
        if (asked) return;
        asked = true;
        requestAnimationFrame(() => {
            asked = false;
            draw();
        });
    };
}
