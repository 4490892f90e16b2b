// Forecasts: a fan chart whose origin can be dragged, sampled paths, covariates that can be changed, a backtest.
import { area, chart, h, later, line, numbers, percent, s, short, slider } from "/files/kit.js";

const RECENT = 4; // steps before the origin whose covariates can be changed

export function mount(root, page) {
  const first = page.runs[0].about;
  const horizon = first.horizon;
  const data = page.runs.map((run) => tidy(run.about.shown)); // the chosen series of every run
  const fans = page.runs.map(() => h("figure", { class: "fan" }));
  const tables = page.runs.map(() => h("div"));
  const edits = new Map();
  const found = [];
  const date = (step) => data[0].labels[step - data[0].first];
  const origin = slider({ label: "Forecast made at", min: 0, max: 1, value: 0, format: (step) => date(step) ?? "", change: () => moved() });
  const width = slider({ label: "Interval", min: 0.5, max: 0.99, step: 0.01, value: 0.9, format: (v) => percent(v), change: () => soon() });
  const paths = h("input", { type: "checkbox", id: "paths", checked: true, onchange: () => show() });
  const covariates = h("div");
  const shown = Math.max(24, Math.min(5 * horizon, 3 * horizon + 60)); // steps in view
  let series = 0;
  let from = 0;
  const look = () => { // the view moves only when the origin comes near its edge
    const at = origin.value - data[0].first;
    const most = Math.max(0, data[0].values.length + horizon - shown);
    const room = Math.min(2 * horizon, shown - horizon - 1);
    from = Math.min(most, Math.max(0, Math.min(at - room, Math.max(from, at + Math.min(2 * horizon, horizon + 12) - shown))));
  };
  const placed = () => { // the slider for the origins of the chosen series
    const [low, high] = data[0].origins;
    origin.range.min = low;
    origin.range.max = high;
    origin.set(Math.max(low, high - 2 * horizon));
    from = 0;
  };

  const ask = async () => {
    for (const run of page.runs.keys()) {
      const asked = { series, origin: origin.value, level: width.value,
        edits: [...edits.values()].filter((edit) => edit.step <= origin.value + (data[0].covariates[edit.column - 1].ahead ? horizon : 0)) };
      const done = await page.ask(run, "fan", asked, (part) => { found[run] = { ...part, level: asked.level }; });
      if (!done) return;
    }
    show();
  };
  const soon = later(60, ask);
  const moved = () => { look(); show(); inputs(); soon(); };

  const choice = h("select", { id: "series", onchange: async () => {
    const to = Number(choice.value);
    for (const run of page.runs.keys()) {
      if (!await page.ask(run, "series", { series: to }, (part) => { data[run] = tidy(part.shown); })) return;
    }
    series = to;
    found.length = 0;
    edits.clear();
    placed();
    look();
    inputs();
    ask();
  } }, first.names.map((name, k) => h("option", { value: k, text: name })));

  const show = () => page.runs.forEach(({ name }, run) => {
    const fan = found[run];
    if (!fan || fan.series !== series) return;
    const title = first.names[series];
    fans[run].replaceChildren(page.runs.length > 1 ? h("h3", { text: name }) : "", draw(fans[run], title, data[run], fan), spread(fans[run], fan),
      h("figcaption", { text: `${title}. Long line: the observed series. Blue: forecast with its ${percent(fan.level)} interval; orange: the part of it that comes from not knowing the weights (epistemic). Thin: sampled paths. Drag the dashed line, or use the slider. Below: standard deviation of the noise in the data (blue, aleatoric) and of the draws' means (orange, epistemic).` }));
    tables[run].replaceChildren(numbers("All numbers", ["date", "mean", "low", "high", "aleatoric sd", "epistemic sd"],
      fan.mean.map((mean, k) => [date(fan.origin + 1 + k), ...[mean, fan.low[k], fan.high[k], fan.aleatoric_std[k], fan.epistemic_std[k]].map(short)])));
  });

  const draw = (into, title, about, fan) => {
    const steps = fan.mean.map((_, k) => fan.origin + 1 + k);
    const own = fan.epistemic_std.map((sd, k) => [fan.mean[k] - fan.reach * sd, fan.mean[k] + fan.reach * sd]);
    const xs = [about.first + from, about.first + from + shown - 1];
    const known = pieces(about.values, from, from + shown);
    const all = [...known.flat().map(([, value]) => value), ...fan.low, ...fan.high, ...(paths.checked ? fan.paths.flat() : [])].filter(Number.isFinite);
    const pad = 0.05 * (Math.max(...all) - Math.min(...all)) || 1;
    const made = chart({ into, height: 320, xs, ys: [Math.min(...all) - pad, Math.max(...all) + pad], xText: (step) => date(step) ?? "",
      xTicks: labelled(xs, into.clientWidth, about.labels), label: `${title}: forecast made at ${date(fan.origin)} for ${horizon} steps, ending at ${short(fan.mean.at(-1))}, ${percent(fan.level)} between ${short(fan.low.at(-1))} and ${short(fan.high.at(-1))}.`,
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
    const to = Math.max(data[0].origins[0], Math.min(data[0].origins[1], step(event, ...dragging.view)));
    if (to !== origin.value) { origin.set(to); moved(); }
  });
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { dragging = null; });

  const cells = (title, list, steps) => h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": title }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col", text: "covariate" }), steps.map((at) => h("th", { scope: "col", text: date(at) })))),
    h("tbody", {}, list.map(([covariate, c]) => h("tr", {}, h("th", { scope: "row", text: covariate.name }), steps.map((at) => {
      const key = `${at}/${c + 1}`;
      const value = edits.get(key)?.value ?? covariate.values[at - data[0].first];
      return h("td", {}, h("input", { type: "number", step: "any", value: value === null || value === undefined ? "" : Number(value.toPrecision(6)), "aria-label": `${covariate.name} at ${date(at)}`,
        oninput: (event) => { const to = event.target.valueAsNumber; if (Number.isFinite(to)) edits.set(key, { step: at, column: c + 1, value: to }); else edits.delete(key); soon(); } }));
    }))))));
  const inputs = () => {
    const all = data[0].covariates.map((covariate, c) => [covariate, c]);
    if (!all.length) { covariates.replaceChildren(); return; }
    const ahead = all.filter(([covariate]) => covariate.ahead);
    const before = Array.from({ length: RECENT }, (_, k) => origin.value - RECENT + 1 + k).filter((at) => at >= data[0].first);
    const after = Array.from({ length: horizon }, (_, k) => origin.value + 1 + k);
    covariates.replaceChildren(h("h3", { text: "Covariates before the origin" }), cells("Covariates before the origin", all, before),
      ...(ahead.length ? [h("h3", { text: "Known ahead: after the origin" }), h("p", { class: "note", text: "Beyond the end of the data: the last season again." }), cells("Covariates after the origin", ahead, after)] : []),
      h("button", { type: "button", text: "Undo changes", onclick: () => { edits.clear(); inputs(); soon(); } }));
  };

  const walks = page.runs.map(() => h("div"));
  const walk = h("button", { type: "button", text: "Backtest", onclick: async () => {
    walk.disabled = true;
    for (const [run, { name }] of page.runs.entries()) {
      const done = await page.ask(run, "walk", {}, (part) => {
        walks[run].replaceChildren(page.runs.length > 1 ? h("h3", { text: name }) : "");
        calibration(walks[run], part);
      });
      if (!done) break;
    }
    walk.disabled = false;
  } });

  root.append(h("div", { class: "row" }, first.names.length > 1 ? h("div", {}, h("label", { for: "series", text: "Series " }), choice) : null,
    origin.box, width.box, h("label", {}, paths, " sampled paths")),
  ...fans.flatMap((fan, k) => [fan, tables[k]]), covariates,
  h("h3", { text: "Calibration and worst series" }), h("p", { class: "note", text: first.note }), walk, ...walks);
  placed();
  look();
  inputs();
  ask();
}

/** Labels without the seconds. */
function tidy(shown) {
  return { ...shown, labels: shown.labels.map((label) => label.replace(/( \d\d:\d\d):00$/, "$1")) };
}

/** Both uncertainties, side by side for each step ahead. */
function spread(into, { aleatoric_std: noise, epistemic_std: own }) {
  const most = Math.max(...noise, ...own);
  return chart({ into, height: 130, xs: [0.4, noise.length + 0.6], ys: [0, 1.05 * most || 1], across: "steps ahead", xText: String,
    xTicks: steps(noise.length), label: `Standard deviations at the last step: aleatoric ${short(noise.at(-1))}, epistemic ${short(own.at(-1))}.`,
    draw: ({ x, y }) => noise.flatMap((sd, k) => [s("rect", { class: "fill", x: x(k + 0.7), width: x(k + 1) - x(k + 0.7), y: y(sd), height: y(0) - y(sd) }),
      s("rect", { class: "own", x: x(k + 1), width: x(k + 1.3) - x(k + 1), y: y(own[k]), height: y(0) - y(own[k]) })]) }).box;
}

/** What a backtest showed. */
function calibration(into, { rows, crps, edges, pit, coverage, times, aleatoric, epistemic, relative, worst }) {
  const told = (text) => h("figcaption", { text });
  const put = (make, text) => {
    const figure = h("figure");
    into.append(figure);
    figure.append(make(figure), told(text));
  };
  const heights = pit.map((share, k) => share / (edges[k + 1] - edges[k]));
  put((figure) => chart({ into: figure, height: 170, xs: [0, 1], ys: [0, 1.1 * Math.max(1, ...heights)], xTicks: edges, across: "P(forecast ≤ value)",
    label: `Where ${rows} values fell in their forecasts: densities from ${short(Math.min(...heights))} to ${short(Math.max(...heights))}.`,
    draw: ({ x, y }) => [...heights.map((top, k) => s("rect", { class: "fill", x: x(edges[k]) + 1, width: x(edges[k + 1]) - x(edges[k]) - 2, y: y(top), height: y(0) - y(top) })),
      s("line", { class: "mark", x1: x(0), x2: x(1), y1: y(1), y2: y(1) })] }).box,
  `Where ${rows} values fell in their forecasts. All bars at the orange line: calibrated. A hill: too unsure; a valley: too sure.`);
  const count = crps.length;
  put((figure) => chart({ into: figure, height: 190, xs: [1, Math.max(2, count)], ys: [0, 1], yText: (at) => percent(at), xText: String, xTicks: steps(count), across: "steps ahead",
    label: coverage.map(({ level, shares }) => `${level}% intervals cover ${percent(mean(shares), 1)}`).join("; "),
    draw: ({ x, y }) => coverage.flatMap(({ level, shares }, k) => [s("line", { class: "aim", x1: x(1), x2: x(Math.max(2, count)), y1: y(level / 100), y2: y(level / 100) }),
      s("path", { class: k ? "other" : "main", d: line(shares.map((share, i) => [x(i + 1), y(share)])) })]) }).box,
  `Coverage by steps ahead: ${coverage.map(({ level, shares }, k) => `${level}% intervals (${k ? "orange" : "blue"}) cover ${percent(mean(shares), 1)}`).join(", ")}. Dashed: ideal. CRPS: ${short(crps[0])} one step ahead, ${short(crps.at(-1))} at step ${count}.`);
  put((figure) => chart({ into: figure, height: 170, xs: [0, Math.max(1, times.length - 1)], ys: [0, 1.05 * Math.max(...aleatoric, ...epistemic) || 1], xText: (k) => times[k] ?? "",
    xTicks: labelled([0, times.length - 1], figure.clientWidth, times), label: `Both standard deviations from ${times[0]} to ${times.at(-1)}.`,
    draw: ({ x, y }) => [s("path", { class: "main", d: line(aleatoric.map((v, k) => [x(k), y(v)])) }), s("path", { class: "other", d: line(epistemic.map((v, k) => [x(k), y(v)])) })] }).box,
  `Standard deviations over time${relative ? ", each series divided by its mean absolute value" : ""}: noise in the data (blue, aleatoric) and the model's own doubt (orange, epistemic).`);
  for (const { name, labels, values, median, low, high, crps: score } of worst) {
    const all = [...values, ...low, ...high].filter(Number.isFinite);
    put((figure) => chart({ into: figure, height: 170, xs: [0, Math.max(1, labels.length - 1)], ys: [Math.min(...all), Math.max(...all)], xText: (k) => labels[k] ?? "",
      xTicks: labelled([0, labels.length - 1], figure.clientWidth, labels), label: `${name}: observed values and forecasts, CRPS ${short(score)}.`,
      draw: ({ x, y }) => [s("path", { class: "band", d: area(low.map((v, k) => [x(k), y(v)]), high.map((v, k) => [x(k), y(v)])) }),
        s("path", { class: "main", d: line(median.map((v, k) => [x(k), y(v)])) }),
        s("path", { class: "ink", d: pieces(values, 0, values.length).map((part) => line(part.map(([k, v]) => [x(k), y(v)]))).join("") })] }).box,
    `${name}: observed values, and medians with ${coverage.at(-1).level}% intervals (blue); CRPS ${short(score)}.${worst.length > 1 ? " Among the largest errors, relative to the size of the series." : ""}`);
  }
}

const mean = (values) => values.filter(Number.isFinite).reduce((total, value, _, all) => total + value / all.length, 0);

/** Numbers of steps for an axis. */
function steps(count) {
  return Array.from({ length: count }, (_, k) => k + 1).filter((step) => count < 13 || step % Math.ceil(count / 12) === 0);
}

/** Places of as many labels as fit. */
function labelled([low, high], pixels, labels) {
  const count = Math.max(2, Math.floor(pixels / (7 * labels[0].length + 24)));
  const step = Math.max(1, Math.ceil((high - low) / count));
  return Array.from({ length: count }, (_, k) => low + Math.floor(step / 2) + k * step).filter((at) => at <= high);
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
