// Forecasts: a fan chart whose origin can be dragged, sampled paths, and covariates that can be changed.
import { area, chart, h, later, line, numbers, percent, s, short, slider } from "/files/kit.js";

const RECENT = 4; // steps whose covariates can be changed

export function mount(root, page) {
  const first = page.runs[0].about;
  const fans = page.runs.map(() => h("figure", { class: "fan" }));
  const tables = page.runs.map(() => h("div"));
  const edits = new Map();
  const found = [];
  first.labels = first.labels.map((label) => label.replace(/( \d\d:\d\d):00$/, "$1"));
  const date = (step) => first.labels[step - first.first];
  const origin = slider({ label: "Forecast made at", min: first.origins[0], max: first.origins[1], value: Math.max(first.origins[0], first.origins[1] - 2 * first.horizon), format: date, change: () => moved() });
  const draws = slider({ label: "Draws of the weights", min: 1, max: 64, value: 32, disabled: !page.runs.some((run) => run.about.random), change: () => soon() });
  const width = slider({ label: "Interval", min: 0.5, max: 0.99, step: 0.01, value: 0.9, format: (v) => percent(v), change: () => soon() });
  const paths = h("input", { type: "checkbox", id: "paths", checked: true, onchange: () => show() });
  const covariates = h("div");
  const shown = Math.max(40, 8 * first.horizon); // steps in view
  let from = 0;
  const look = () => { // the view moves only when the origin comes near its edge
    const at = origin.value - first.first;
    const most = Math.max(0, first.values.length + first.horizon - shown);
    from = Math.min(most, Math.max(0, Math.min(at - 2 * first.horizon, Math.max(from, at + 2 * first.horizon - shown))));
  };

  const ask = async () => {
    for (const run of page.runs.keys()) {
      const asked = { origin: origin.value, draws: draws.value, level: width.value,
        edits: [...edits.values()].filter((edit) => edit.step <= origin.value) };
      const done = await page.ask(run, "fan", asked, (part) => { found[run] = { ...part, level: asked.level }; });
      if (!done) return;
    }
    show();
  };
  const soon = later(60, ask);
  const moved = () => { look(); show(); inputs(); soon(); };

  const show = () => page.runs.forEach(({ name, about }, run) => {
    const fan = found[run];
    if (!fan) return;
    fans[run].replaceChildren(page.runs.length > 1 ? h("h3", { text: name }) : "", draw(fans[run], about, fan), spread(fans[run], about, fan),
      h("figcaption", { text: `${about.name}. Black: the series. Blue: forecast with its ${percent(fan.level)} interval; orange: the part of it that comes from not knowing the weights (epistemic). Thin: sampled paths. Drag the dashed line, or use the slider. Below: standard deviation of the noise in the data (blue, aleatoric) and of the draws' means (orange, epistemic).` }));
    tables[run].replaceChildren(numbers("All numbers", ["date", "mean", "low", "high", "aleatoric sd", "epistemic sd"],
      fan.mean.map((mean, k) => [date(fan.origin + 1 + k), ...[mean, fan.low[k], fan.high[k], fan.aleatoric_std[k], fan.epistemic_std[k]].map(short)])));
  });

  const draw = (into, about, fan) => {
    const steps = fan.mean.map((_, k) => fan.origin + 1 + k);
    const own = fan.epistemic_std.map((sd, k) => [fan.mean[k] - fan.reach * sd, fan.mean[k] + fan.reach * sd]);
    const xs = [about.first + from, about.first + from + shown - 1];
    const known = pieces(about.values, from, from + shown);
    const all = [...known.flat().map(([, value]) => value), ...fan.low, ...fan.high, ...(paths.checked ? fan.paths.flat() : [])].filter(Number.isFinite);
    const pad = 0.05 * (Math.max(...all) - Math.min(...all));
    const mean = short(fan.mean.at(-1));
    const made = chart({ into, height: 320, xs, ys: [Math.min(...all) - pad, Math.max(...all) + pad], xText: (step) => date(step) ?? "",
      xTicks: labelled(xs, Math.floor(into.clientWidth / (7 * first.labels[0].length + 24))), label: `${about.name}: forecast made at ${date(fan.origin)} for ${about.horizon} steps, ending at ${mean}, ${percent(fan.level)} between ${short(fan.low.at(-1))} and ${short(fan.high.at(-1))}.`,
      draw: ({ x, y }) => [
        s("path", { class: "band", d: area(steps.map((t, k) => [x(t), y(fan.low[k])]), steps.map((t, k) => [x(t), y(fan.high[k])])) }),
        s("path", { class: "inner", d: area(steps.map((t, k) => [x(t), y(own[k][0])]), steps.map((t, k) => [x(t), y(own[k][1])])) }),
        ...(paths.checked ? fan.paths.map((path) => s("path", { class: "thin", d: line(steps.map((t, k) => [x(t), y(path[k])])) })) : []),
        s("path", { class: "main", d: line(steps.map((t, k) => [x(t), y(fan.mean[k])])) }),
        s("path", { class: "ink", d: known.map((part) => line(part.map(([k, v]) => [x(about.first + k), y(v)]))).join("") }),
        s("line", { class: "origin", x1: x(origin.value), x2: x(origin.value), y1: 8, y2: 286 }),
        s("rect", { class: "grip", x: x(origin.value) - 12, y: 0, width: 24, height: 290 })] });
    into.view = [made, xs];
    made.box.querySelector(".grip").addEventListener("pointerdown", (event) => { event.preventDefault(); dragging = into; });
    return made.box;
  };
  let dragging = null; // the figure whose origin is being dragged; its chart is drawn anew at every step
  const step = (event, { box, left, right, width: wide }, xs) => {
    const area = box.getBoundingClientRect();
    const place = ((event.clientX - area.left) / area.width) * wide;
    return Math.round(xs[0] + ((place - left) / (wide - left - right)) * (xs[1] - xs[0]));
  };
  addEventListener("pointermove", (event) => {
    if (!dragging) return;
    const to = Math.max(first.origins[0], Math.min(first.origins[1], step(event, ...dragging.view)));
    if (to !== origin.value) { origin.set(to); moved(); }
  });
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { dragging = null; });

  const inputs = () => {
    if (!first.covariates.length) return;
    const steps = Array.from({ length: RECENT }, (_, k) => origin.value - RECENT + 1 + k).filter((step) => step >= first.first);
    covariates.replaceChildren(h("h3", { text: "Covariates before the origin" }), h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Covariates" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col", text: "covariate" }), steps.map((step) => h("th", { scope: "col", text: date(step) })))),
      h("tbody", {}, first.covariates.map((covariate, c) => h("tr", {}, h("th", { scope: "row", text: covariate.name }), steps.map((step) => {
        const key = `${step}/${c + 1}`;
        const value = edits.get(key)?.value ?? covariate.values[step - first.first];
        return h("td", {}, h("input", { type: "number", step: "any", value: value === null ? "" : Number(value.toPrecision(6)), "aria-label": `${covariate.name} at ${date(step)}`,
          oninput: (event) => { const to = event.target.valueAsNumber; if (Number.isFinite(to)) edits.set(key, { step, column: c + 1, value: to }); else edits.delete(key); soon(); } }));
      })))))), h("button", { type: "button", text: "Undo changes", onclick: () => { edits.clear(); inputs(); soon(); } }));
  };

  root.append(h("div", { class: "row" }, origin.box, draws.box, width.box, h("label", {}, paths, " sampled paths")), ...fans.flatMap((fan, k) => [fan, tables[k]]), covariates);
  look();
  inputs();
  ask();
}

/** Both uncertainties, side by side for each step ahead. */
function spread(into, about, { aleatoric_std: noise, epistemic_std: own }) {
  const most = Math.max(...noise, ...own);
  return chart({ into, height: 130, xs: [0.4, noise.length + 0.6], ys: [0, 1.05 * most || 1], across: "steps ahead", xText: String,
    xTicks: noise.map((_, k) => k + 1).filter((step) => noise.length < 13 || step % Math.ceil(noise.length / 12) === 0),
    label: `Standard deviations at the last step: aleatoric ${short(noise.at(-1))}, epistemic ${short(own.at(-1))}.`,
    draw: ({ x, y }) => noise.flatMap((sd, k) => [s("rect", { class: "fill", x: x(k + 0.7), width: x(k + 1) - x(k + 0.7), y: y(sd), height: y(0) - y(sd) }),
      s("rect", { class: "own", x: x(k + 1), width: x(k + 1.3) - x(k + 1), y: y(own[k]), height: y(0) - y(own[k]) })]) }).box;
}

/** Places of so many labels. */
function labelled([low, high], count) {
  const step = Math.ceil((high - low) / Math.max(2, count));
  return Array.from({ length: Math.floor((high - low) / step) + 1 }, (_, k) => low + k * step).slice(0, -1);
}

/** Runs of known values. */
function pieces(values, from, to) {
  const parts = [[]];
  values.slice(0, to).forEach((value, k) => {
    if (k < from) return;
    if (value === null) parts.push([]);
    else parts.at(-1).push([k, value]);
  });
  return parts.filter((part) => part.length);
}
