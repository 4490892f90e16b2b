// Elements, sliders and charts that panels share. Text never becomes HTML: it is only ever set as text.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}%`;
export const short = (value) => (value === null ? "–" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3))));
export const level = (value, levels) => levels.filter((at) => value >= at).length;

export function later(milliseconds, action) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(action, milliseconds); };
}

let names = 0;

/** A labelled range with its value beside the label; `change(value)` is called at every move. */
export function slider({ label, min, max, step = 1, value, format = String, change, disabled = false }) {
  const id = `slider-${++names}`;
  const shown = h("output", { for: id, text: format(value) });
  const range = h("input", { type: "range", id, min, max, step, value, disabled });
  const told = () => { shown.textContent = format(Number(range.value)); range.setAttribute("aria-valuetext", shown.textContent); };
  range.addEventListener("input", () => { told(); change(Number(range.value)); });
  told();
  const box = h("div", { class: "slider" }, h("span", {}, h("label", { for: id, text: label }), shown), range);
  return { box, range, get value() { return Number(range.value); }, set(to) { range.value = to; told(); } };
}

/** Words as buttons in one toolbar: the arrow keys move, Enter selects. Each has `text`, `shade`, `line`, `label`. */
export function wordBar(label, words, select) {
  const buttons = words.map((word, i) => h("button", {
    type: "button", class: `w s${word.shade} i${word.line}${word.unknown ? " unknown" : ""}`, tabindex: i ? -1 : 0,
    "aria-label": word.label, "aria-pressed": "false", title: word.label, text: word.text,
    onclick: () => press(i), onkeydown: (event) => move(event, i),
  }));
  const focus = (i) => {
    buttons.forEach((button, k) => { button.tabIndex = k === i ? 0 : -1; });
    buttons[i].focus();
  };
  const press = (i) => { mark(i); select(i); };
  const mark = (i) => buttons.forEach((button, k) => {
    button.setAttribute("aria-pressed", String(k === i));
    button.tabIndex = k === Math.max(i, 0) ? 0 : -1;
  });
  const move = (event, i) => {
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || !buttons[to]) return;
    event.preventDefault();
    focus(to);
  };
  const parts = buttons.flatMap((button, i) => (words[i].end ? [button, h("br")] : [button, " "]));
  return { box: h("div", { class: "text", role: "toolbar", "aria-label": label }, parts), mark };
}

/** What shades and lines below words mean. */
export function wordKey(shade, shades, line, lines) {
  const from = (levels) => ["0", ...levels].map((at) => `from ${at}`);
  const entry = (kind, k, text) => h("span", { class: `w ${kind}${k}`, text });
  return h("div", {},
    h("p", { class: "key" }, `Shade: ${shade}, nats `, from(shades).map((text, k) => entry("s", k, text))),
    h("p", { class: "key" }, `Line below: ${line}, nats `, from(lines).map((text, k) => entry("i", k, text))));
}

/** A table with a bar per row: `rows` of {name, value, dots, mark, strong}, values from 0 to `most`. */
export function bars(caption, rows, { most, format = (v) => percent(v, 1) } = {}) {
  const top = most ?? Math.max(1e-9, ...rows.flatMap((row) => [row.value, row.mark ?? 0, ...(row.dots ?? [])]));
  const x = (value) => 100 * Math.min(1, value / top);
  return h("table", { class: "bars" }, h("caption", { text: caption }), h("tbody", {}, rows.map((row) =>
    h("tr", { class: row.strong ? "came" : null },
      h("th", { scope: "row", text: row.name, title: row.name }),
      h("td", {}, s("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" },
        s("rect", { class: "fill", x: 0, y: 4, width: x(row.value), height: 12 }),
        (row.dots ?? []).map((dot) => s("rect", { class: "dot", x: x(dot) - 0.35, y: 1, width: 0.7, height: 18 })),
        row.mark === undefined ? null : s("line", { class: "mark", x1: x(row.mark), x2: x(row.mark), y1: 0, y2: 20, "vector-effect": "non-scaling-stroke" }))),
      h("td", { text: format(row.value) })))));
}

/** Round numbers between two values, for an axis. */
export function ticks(low, high, count = 4) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9 * step; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/** A chart with axes, as wide as `into`: `draw({x, y})` gives its contents; domains are [low, high]. */
export function chart({ into, label, xs, ys, height = 260, xText = short, yText = short, xTicks, across = "", draw }) {
  const [left, right, top, bottom] = [46, 18, 8, 34];
  const width = Math.max(280, into.clientWidth || 640); // in pixels, so that text keeps its size
  const x = (value) => left + ((value - xs[0]) / (xs[1] - xs[0] || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - ys[0]) / (ys[1] - ys[0] || 1)) * (height - top - bottom);
  const axes = [
    ticks(...ys).map((at) => [s("line", { class: "axis", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
      s("text", { x: left - 5, y: y(at) + 4, "text-anchor": "end" }, yText(at))]),
    (xTicks ?? ticks(...xs, width / 100)).map((at) => s("text", { x: x(at), y: height - bottom + 15, "text-anchor": "middle" }, xText(at))),
    s("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, across),
  ].flat(3);
  const box = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, axes, draw({ x, y }));
  return { box, x, y, left, right, width };
}

export const line = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
export const area = (low, high) => `${line(low)}${line([...high].reverse()).replace("M", "L")}Z`;

/** A table of numbers, folded away. */
export const numbers = (title, head, rows) => h("details", {}, h("summary", { text: title }),
  h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": title }, h("table", {},
    h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col", text })))),
    h("tbody", {}, rows.map(([first, ...rest]) => h("tr", {}, h("th", { scope: "row", text: first }), rest.map((text) => h("td", { text }))))))));

/** Bytes from 0 to 255, row by row, as a picture in the page's colours. */
export function picture(label, { rows, columns, data }) {
  const canvas = h("canvas", { width: columns, height: rows, role: "img", "aria-label": label });
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const [from, to] = dark ? [[22, 22, 22], [140, 205, 255]] : [[255, 255, 255], [0, 62, 115]];
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  bytes.forEach((byte, i) => {
    for (let k = 0; k < 3; k++) image.data[4 * i + k] = from[k] + ((to[k] - from[k]) * byte) / 255;
    image.data[4 * i + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Accept or reject at a chosen risk; `curve` has threshold, coverage and risk, rising in coverage. */
export function riskChooser({ curve, noun, name, format, uncertainty }) {
  const verdict = h("p", { "aria-live": "polite" });
  const told = h("p", { class: "note" });
  const figure = h("figure");
  const [low, high] = [Math.min(...curve.risk), Math.max(...curve.risk)];
  let asked = null;
  const show = () => {
    const k = curve.risk.findLastIndex((risk) => risk <= choice.value + 1e-9);
    const threshold = k < 0 ? -Infinity : curve.threshold[k];
    told.textContent = k < 0 ? `No part of the ${curve.count} validation ${noun} has so low a ${name}.`
      : `${percent(curve.coverage[k])} of ${curve.count} validation ${noun} are accepted; their ${name} is ${format(curve.risk[k])}.`;
    figure.replaceChildren(chart({ into: figure, height: 170, label: `${name} against the share accepted. ${told.textContent}`, xs: [0, 1], ys: [0, high || 1],
      xText: (at) => percent(at), yText: format, across: "share accepted, surest first",
      draw: ({ x, y }) => [s("path", { class: "main", d: line(curve.coverage.map((at, i) => [x(at), y(curve.risk[i])])) }),
        k < 0 ? null : s("circle", { cx: x(curve.coverage[k]), cy: y(curve.risk[k]), r: 5, class: "dot" })].filter(Boolean) }).box);
    if (asked === null) return;
    const yes = asked <= threshold;
    verdict.replaceChildren(h("span", { class: `verdict ${yes ? "accept" : "reject"}`, text: yes ? "Accepted" : "Rejected" }),
      ` at this risk: ${uncertainty} ${short(asked)}, and at most ${k < 0 ? "none" : short(threshold)} is accepted.`);
  };
  const choice = slider({ label: `Acceptable ${name}`, min: low, max: Math.max(high, low + 1e-6), step: (high - low) / 50 || 1e-6, value: low + (high - low) / 2, format, change: show });
  const box = h("div", {}, h("div", { class: "row" }, choice.box), verdict, figure, told);
  requestAnimationFrame(show);
  return { box, judge(value) { asked = value; show(); } };
}
