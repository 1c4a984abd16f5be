// A small chart of the last seconds, drawn with SVG: areas and lines over time.
//
//   const rate = chart({label: "Requests per second", series: [{name: "answered", class: "good"}], number});
//   rate.push([12]);       // one value for each series, at each moment
//   rate.set([[12], [14]]);   // all moments at once, spread over the whole width; null: no value
//   rate.element
//
//   const all = charts([{label, series, moments: points => points.map(each => [each.sent])}], number);
//   all.element; all.draw(points, ["0 s", "12 s"])     several, side by side, with the ends of their time axis
//
// Screen readers get the label with the last values. The colours are those of the classes, in page.css.

import {fill, h, perFrame, svg} from "./dom.js";

const WIDTH = 600;
const HEIGHT = 120;
const KEPT = 120; // moments that are pushed one by one

export function chart({label, series, number}) {
    let width = KEPT; // moments over the whole width
    const values = series.map(() => []);
    const shapes = series.map(each => ({
        area: svg("path", {class: `area ${each.class}`}),
        line: svg("path", {class: `line ${each.class}`}),
    }));
    const top = h("span", {class: "top", "aria-hidden": "true"});
    const picture = svg(
        "svg",
        {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img"},
        svg("line", {class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2}),
        shapes.map(shape => [shape.area, shape.line]),
    );
    const legend = h(
        "ul",
        {class: "legend"},
        series.map(each => h("li", {class: each.class}, h("span", {class: "swatch", "aria-hidden": "true"}), each.name, " ", h("output"))),
    );
    const ends = h("div", {class: "ends", "aria-hidden": "true"});
    const element = h("figure", {class: "chart"}, h("figcaption", {}, label, legend), h("div", {class: "plot"}, top, picture, ends));
    const draw = perFrame(render);

    function render() {
        const highest = round(Math.max(1, ...values.flat().filter(value => value !== null)));
        top.textContent = number(highest);
        const x = at => (WIDTH * (at + width - values[0].length)) / Math.max(1, width - 1);
        const y = value => HEIGHT - 2 - ((HEIGHT - 8) * value) / highest;
        series.forEach((each, at) => {
            const known = values[at].map((value, n) => [n, value]).filter(([, value]) => value !== null);
            const line = known
                .map(([n, value], each) => `${each === 0 || known[each - 1][0] < n - 1 ? "M" : "L"}${x(n).toFixed(1)} ${y(value).toFixed(1)}`)
                .join("");
            const flat = at > 0 && values[at].every(value => value === 0 || value === null);
            const whole = !flat && line !== "" && !line.includes("M", 1);
            shapes[at].line.setAttribute("d", flat ? "" : line);
            shapes[at].area.setAttribute("d", whole ? `${line}L${x(known.at(-1)[0]).toFixed(1)} ${HEIGHT}L${x(known[0][0]).toFixed(1)} ${HEIGHT}Z` : "");
            legend.children[at].querySelector("output").textContent = text(values[at]);
        });
        const last = series.map((each, at) => `${each.name} ${text(values[at])}`).join(", ");
        picture.setAttribute("aria-label", `${label}: ${last}`);
    }

    function text(moments) {
        const last = moments.length === 0 ? 0 : moments.at(-1);
        return last === null ? "–" : number(last);
    }

    draw();
    return {
        element,
        set(given, [from, until]) {
            const moments = given.length === 1 ? [given[0], given[0]] : given;
            width = Math.max(2, moments.length);
            fill(ends, h("span", {}, from), h("span", {}, until));
            values.forEach((_, at) => (values[at] = moments.map(moment => moment[at])));
            draw();
        },
        push(moment) {
            moment.forEach((value, at) => {
                values[at].push(value);
                if (values[at].length > KEPT) values[at].shift();
            });
            draw();
        },
    };
}

export function charts(wanted, number) {
    const made = wanted.map(each => chart({...each, number}));
    return {
        element: h("div", {class: "cards wide charts"}, made.map(each => h("section", {class: "card"}, each.element))),
        draw: (points, ends) => made.forEach((each, at) => each.set(wanted[at].moments(points), ends)),
    };
}

/** The next number of the form 1, 2 or 5 times a power of ten. */
function round(value) {
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].map(each => each * power).find(each => each >= value);
}
