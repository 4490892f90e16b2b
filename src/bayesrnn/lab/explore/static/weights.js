// The posterior of the weights: signal-to-noise, a picture per gate, and pruning.
import { chart, h, later, numbers, percent, picture, s, short, slider } from "/files/kit.js";

const GATES = { i: "input", f: "forget", g: "candidate", o: "output", r: "reset", z: "update", n: "candidate" };

export function mount(root, page) {
  const box = h("div", { class: "side" });
  root.append(box);
  page.runs.forEach((run, index) => {
    const own = h("div", {}, page.runs.length > 1 ? h("h3", { text: run.name }) : null);
    box.append(own);
    weights(own, page, run, index);
  });
}

function weights(box, page, { about }, run) {
  const what = about.posterior ? "|mean| / sigma" : "|weight|";
  const top = h("figure");
  const removed = h("p", { "aria-live": "polite" });
  const cost = h("p", { "aria-live": "polite" });
  const table = h("div");
  const gates = h("div", { class: "gates" });
  const matrix = h("select", { id: `matrix-${run}`, onchange: () => pictures() });
  const kind = h("select", { id: `kind-${run}`, onchange: () => pictures() },
    h("option", { value: "size", text: what }), about.posterior ? h("option", { value: "left", text: "what pruning leaves" }) : null);
  const share = slider({ label: "Prune", min: 0, max: 0.99, step: 0.01, value: 0.5, format: (v) => percent(v),
    change: () => { soon(); histogram(); } });
  let found;

  const histogram = () => {
    const { edges, shares, median } = found;
    const from = shares.findIndex((each) => each > 0);
    const to = shares.length - [...shares].reverse().findIndex((each) => each > 0);
    let gone = 0;
    const label = `Histogram of ${what}, median ${short(median)}.`;
    const drawn = chart({ into: top, label, xs: [edges[from], edges[to]], ys: [0, Math.max(...shares)], height: 220, across: `${what}, on a log scale`,
      xText: (at) => short(10 ** at), xTicks: [-4, -3, -2, -1, 0, 1, 2, 3, 4].filter((at) => at >= edges[from] && at <= edges[to]), yText: (at) => percent(at, at && at < 0.01 ? 1 : 0),
      draw: ({ x, y }) => shares.slice(from, to).map((each, k) => {
        gone += each;
        const left = about.posterior && gone <= share.value + 1e-9;
        return s("rect", { class: left ? "inner" : "fill", x: x(edges[from + k]) + 0.5, width: x(edges[from + k + 1]) - x(edges[from + k]) - 1, y: y(each), height: y(0) - y(each) });
      }) });
    top.replaceChildren(drawn.box, h("figcaption", { text: `${found.total.toLocaleString("en")} weights, median ${short(median)}. ${about.posterior
      ? "Far below 1 a weight is mostly noise. Pruning removes the lightly coloured bars first."
      : "This model has no posterior over weights, so there is no signal-to-noise, and nothing to prune by."}` }));
  };

  const pictures = () => page.ask(run, "picture", { matrix: Number(matrix.value), kind: kind.value, share: share.value }, (part) => {
    gates.replaceChildren(...part.gates.map((gate) => {
      const name = gate.gate ? `${GATES[gate.gate]} gate` : part.name;
      return h("figure", {}, picture(`${name} of ${part.name}: ${kind.selectedOptions[0].text}`, gate), h("figcaption", { text: name }));
    }));
  });

  const prune = () => page.ask(run, "prune", { share: share.value }, (part) => {
    if (part.tensors) {
      removed.textContent = `Pruning ${percent(share.value)} removes ${part.removed.toLocaleString("en")} weights.`;
      table.replaceChildren(numbers("Removed from each tensor", ["tensor", "removed", "of", "share"],
        part.tensors.map((t) => [t.name, t.removed.toLocaleString("en"), t.total.toLocaleString("en"), percent(t.removed / t.total)])));
      if (!about.score) cost.textContent = "This task cannot be scored quickly, so the cost is not shown; bayesrnn evaluate measures it.";
    } else if (part.unscored) cost.textContent = `The cost is not known: ${part.unscored}`;
    else cost.textContent = `${part.label[0].toUpperCase()}${part.label.slice(1)} on a sample: ${short(part.before)} with all weights, ${short(part.after)} after pruning.`;
  });
  const soon = later(150, () => { prune(); if (kind.value === "left") pictures(); });

  page.ask(run, "overview", {}, (part) => {
    found = part;
    matrix.replaceChildren(...part.matrices.map((each, k) => h("option", { value: k, text: `${each.name} (${each.shape.join(" × ")})` })));
    histogram();
  }).then((done) => {
    if (!done) return;
    if (about.posterior) prune();
    if (found.matrices.length) pictures();
  });
  box.append(top, ...(about.posterior ? [h("div", { class: "row" }, share.box), removed, cost, table] : []),
    h("div", { class: "row" }, h("label", {}, "Matrix ", matrix), h("label", {}, "Shows ", kind)), gates);
}
