// Digits: draw one, or take one of the test images.
import { bars, h, later, percent, riskChooser, short, slider } from "/files/kit.js";

export function mount(root, page) {
  const { side, samples } = page.runs[0].about;
  const grid = new Uint8Array(side * side);
  const canvas = h("canvas", { class: "pad", width: side, height: side, role: "img", "aria-label": "The digit. Draw with a pointer, or choose a test image below." });
  const context = canvas.getContext("2d");
  const label = h("p", { class: "note", "aria-live": "polite" });
  const draws = slider({ label: "Draws of the weights", min: 1, max: 64, value: 16, disabled: !page.runs.some((run) => run.about.random), change: () => soon() });
  const results = page.runs.map(() => h("div"));
  const choosers = [];
  let next = 0;
  let last = null;

  const paint = () => {
    const image = context.createImageData(side, side);
    grid.forEach((value, i) => image.data.set([255 - value, 255 - value, 255 - value, 255], 4 * i));
    context.putImageData(image, 0, 0);
  };
  const dab = (x, y) => {
    for (let row = Math.floor(y) - 2; row <= y + 2; row++) for (let column = Math.floor(x) - 2; column <= x + 2; column++) {
      if (row < 0 || column < 0 || row >= side || column >= side) continue;
      const far = Math.hypot(row + 0.5 - y, column + 0.5 - x);
      grid[row * side + column] = Math.max(grid[row * side + column], 255 * Math.max(0, Math.min(1, 1.9 - far)));
    }
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * side, ((event.clientY - box.top) / box.height) * side];
  };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); last = place(event); dab(...last); paint(); label.textContent = ""; });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    const to = place(event);
    const steps = Math.ceil(2 * Math.hypot(to[0] - last[0], to[1] - last[1])) || 1;
    for (let k = 1; k <= steps; k++) dab(last[0] + ((to[0] - last[0]) * k) / steps, last[1] + ((to[1] - last[1]) * k) / steps);
    last = to;
    paint();
    soon();
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { last = null; soon(); });

  const classify = async () => {
    for (const [run, { name, about }] of page.runs.entries()) {
      await page.ask(run, "classify", { pixels: [...grid], draws: draws.value }, (part) => {
        const best = part.probabilities.indexOf(Math.max(...part.probabilities));
        results[run].replaceChildren(page.runs.length > 1 ? h("h3", { text: name }) : "",
          h("p", { "aria-live": "polite", text: `A ${best}, with probability ${percent(part.probabilities[best], 1)}. Entropy ${short(part.entropy)} nats, of which epistemic ${short(part.mutual_information)}.` }),
          bars(about.random ? "Bar: average of the draws. Marks: single draws." : "Probability.",
            part.probabilities.map((value, digit) => ({ name: String(digit), value, dots: part.draws.map((draw) => draw[digit]), strong: digit === best })), { most: 1 }));
        choosers[run]?.judge(part.entropy);
        results[run].entropy = part.entropy;
      });
    }
  };
  const soon = later(120, classify);
  const sample = () => page.ask(0, "sample", { index: next }, (part) => {
    next = (next + 1) % samples;
    grid.set(part.pixels);
    label.textContent = `Test image ${next}, labelled ${part.label}.`;
    paint();
    soon();
  });
  const clear = () => { grid.fill(0); label.textContent = ""; paint(); soon(); };

  const risks = page.runs.map(() => h("div"));
  const measure = async (run) => {
    await page.ask(run, "risk", {}, ({ curve }) => {
      choosers[run] = riskChooser({ curve, noun: "images", name: "error rate", format: (v) => percent(v, 1), uncertainty: "entropy" });
      risks[run].replaceChildren(choosers[run].box);
      if (results[run].entropy !== undefined) choosers[run].judge(results[run].entropy);
    });
  };
  root.append(h("div", { class: "side" },
    h("div", {}, canvas, h("div", { class: "row" }, h("button", { type: "button", text: "Test image", onclick: sample }), h("button", { type: "button", text: "Clear", onclick: clear })), label, h("div", { class: "row" }, draws.box)),
    h("div", {}, page.runs.map((run, k) => [results[k], h("h3", { text: "Accept or reject" }), risks[k]]))));
  paint();
  sample().then(async () => { for (const run of page.runs.keys()) await measure(run); });
}
