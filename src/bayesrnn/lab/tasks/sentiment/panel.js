// Film reviews: the distribution of the rating, and whether to trust it.
import { area, chart, h, later, line, riskChooser, s, short, slider } from "/files/kit.js";

export function mount(root, page) {
  const first = page.runs[0].about;
  const text = h("textarea", { id: "review", rows: 5, maxlength: 20000, oninput: () => soon() });
  text.value = first.example;
  const draws = slider({ label: "Draws of the weights", min: 1, max: 64, value: 16, disabled: !page.runs.some((run) => run.about.random), change: () => soon() });
  const boxes = page.runs.map(() => ({ figure: h("figure"), said: h("p", { "aria-live": "polite" }), risk: h("div"), chooser: null, epistemic: null }));
  root.append(h("label", { for: "review", text: "Review" }), text, h("div", { class: "row" }, draws.box),
    h("div", { class: "side" }, page.runs.map((run, k) => h("div", {}, page.runs.length > 1 ? h("h3", { text: run.name }) : null,
      boxes[k].said, boxes[k].figure, h("h3", { text: "Accept or reject" }), boxes[k].risk))));

  const rate = async () => {
    for (const [run, { about }] of page.runs.entries()) {
      const box = boxes[run];
      await page.ask(run, "rate", { text: text.value, draws: draws.value }, (part) => {
        box.said.textContent = `Rating ${part.mean.toFixed(2)}, 90% interval ${part.low.toFixed(2)} to ${part.high.toFixed(2)}. Noise ${short(part.noise)}, epistemic ${short(part.epistemic)} (standard deviations). ${part.unknown} unknown words${part.read < part.words ? `; only the first ${part.read} words are read` : ""}.`;
        box.figure.replaceChildren(density(box.figure, part, about.random), h("figcaption", { text: about.random ? "Thin: the density by each draw. Thick: their average. Shaded: the 90% interval. Ratings are from 0 to 1." : "The density of the rating, from 0 to 1. Shaded: the 90% interval." }));
        box.epistemic = part.epistemic;
        box.chooser?.judge(part.epistemic);
      });
    }
  };
  const soon = later(300, rate);
  const measure = (run) => page.ask(run, "risk", {}, ({ curve }) => {
    const box = boxes[run];
    box.chooser = riskChooser({ curve, noun: "pieces of reviews", name: "error (RMSE)", format: (v) => v.toFixed(3), uncertainty: "epistemic standard deviation" });
    box.risk.replaceChildren(box.chooser.box);
    if (box.epistemic !== null) box.chooser.judge(box.epistemic);
  });
  rate().then(async () => { for (const run of page.runs.keys()) await measure(run); });
}

function density(into, { ratings, noise, mean, low, high }, random) {
  const at = Array.from({ length: 141 }, (_, k) => -0.2 + k * 0.01);
  const normal = (x, m) => Math.exp(-(((x - m) / noise) ** 2) / 2) / (noise * Math.sqrt(2 * Math.PI));
  const each = ratings.slice(0, 24).map((m) => at.map((x) => normal(x, m)));
  const average = at.map((x) => ratings.reduce((sum, m) => sum + normal(x, m), 0) / ratings.length);
  const inside = at.map((x, k) => [x, average[k]]).filter(([x]) => x >= low && x <= high);
  return chart({ into, label: `Density of the rating: mean ${mean.toFixed(2)}, 90% between ${low.toFixed(2)} and ${high.toFixed(2)}.`, xs: [-0.2, 1.2],
    ys: [0, 1.1 * Math.max(...average, ...(random ? each.flat() : []))], height: 220, across: "rating", xText: (v) => v.toFixed(1),
    draw: ({ x, y }) => [
      inside.length ? s("path", { class: "band", d: area(inside.map(([v]) => [x(v), y(0)]), inside.map(([v, p]) => [x(v), y(p)])) }) : "",
      ...(random ? each.map((one) => s("path", { class: "thin", d: line(one.map((p, k) => [x(at[k]), y(p)])) })) : []),
      s("path", { class: "main", d: line(average.map((p, k) => [x(at[k]), y(p)])) })] }).box;
}
