// Language models: a text shaded by surprise, and what the model expected in the place of a word.
import { bars, h, later, level, numbers, percent, short, slider, wordBar, wordKey } from "/files/kit.js";

const END = "<eos>";

export function mount(root, page) {
  const first = page.runs[0].about;
  const random = page.runs.some((run) => run.about.random);
  const text = h("textarea", { id: "text", rows: 3, maxlength: 10000, spellcheck: false, oninput: () => typed() });
  const draws = slider({ label: "Draws of the weights", min: 1, max: 64, value: 16, disabled: !random, change: () => typed() });
  const texts = h("div");
  const chosen = h("div", { class: "side" });
  const title = h("h3", { id: "chosen", "aria-live": "polite" });
  let place = null;
  let rows = [];

  text.value = first.example;
  root.append(h("label", { for: "text", text: "Text" }), text, h("div", { class: "row" }, draws.box), texts,
    wordKey("surprise of the word", first.levels.surprisal, "epistemic part, on which draws disagree", first.levels.mutual_information),
    title, chosen);

  const score = async () => {
    const asked = { text: text.value, draws: draws.value };
    const made = page.runs.map(() => []);
    for (const [run] of page.runs.entries()) {
      const done = await page.ask(run, "words", asked, (part) => made[run].push(...part.words));
      if (!done) return;
    }
    rows = made;
    texts.replaceChildren(...page.runs.map((run, k) => shaded(run, rows[k], k)));
    const words = rows[0].length;
    page.say(`${words} words scored.`);
    if (place !== null && place > words) place = null;
    if (place === null && words) place = rows[0].reduce((best, word, i) => (word.surprisal > rows[0][best].surprisal ? i : best), 0);
    if (words) expected(place);
  };
  const typed = later(350, score);

  const bar = [];
  const shaded = (run, words, k) => {
    const levels = run.about.levels;
    const shown = words.map((word) => ({
      text: word.word === END ? "¶" : word.word, end: word.word === END, unknown: !word.known,
      shade: level(word.surprisal, levels.surprisal), line: level(word.mutual_information, levels.mutual_information),
      label: `${word.word === END ? "end of line" : word.word}: surprise ${short(word.surprisal)}, epistemic ${short(word.mutual_information)} nats${word.known ? "" : ", not in the vocabulary"}`,
    }));
    shown.push({ text: "…", shade: 0, line: 0, label: "next word" });
    bar[k] = wordBar(`Words, ${run.name}`, shown, (i) => expected(i));
    const total = words.reduce((sum, word) => sum + word.surprisal, 0);
    return h("div", {}, page.runs.length > 1 ? h("h3", { text: run.name }) : null, bar[k].box,
      h("p", { class: "note", text: words.length ? `Perplexity ${short(Math.exp(total / words.length))} on these ${words.length} words. Words in italics are not in the vocabulary of ${run.about.words.toLocaleString("en")} words.` : "Type some words." }),
      numbers("All numbers", ["word", "surprise", "entropy", "epistemic"], words.map((word) => [word.word, ...[word.surprisal, word.entropy, word.mutual_information].map(short)])));
  };

  const expected = async (i) => {
    place = i;
    bar.forEach((each) => each.mark(i));
    const word = rows[0][i]?.word;
    title.textContent = word === undefined ? "Expected next" : `Expected in the place of “${word === END ? "end of line" : word}”`;
    const boxes = page.runs.map(() => h("div"));
    for (const [run, { name, about }] of page.runs.entries()) {
      const done = await page.ask(run, "place", { text: text.value, draws: draws.value, place: i }, (part) => {
        const caption = about.random ? `Bar: average of ${part.draws.length} draws. Marks: single draws. Line: mean weights.` : "Probability.";
        const most = Math.max(0, ...part.draws.flat().map((one) => one.p));
        const each = part.draws.slice(0, 12).map((likeliest, k) => h("li", {}, bars(`Draw ${k + 1}`, likeliest.map((one) => ({ name: one.word, value: one.p })), { most, format: (v) => percent(v, v < 0.1 ? 1 : 0) })));
        boxes[run].replaceChildren(page.runs.length > 1 ? h("h4", { text: name }) : "",
          bars(caption, part.rows.map((row) => ({ name: row.word, value: row.average, dots: row.draws, mark: about.random ? row.mean : undefined, strong: row.came }))),
          each.length ? h("h4", { text: `The likeliest words of single draws${part.draws.length > 12 ? ", the first 12" : ""}` }) : "",
          each.length ? h("ul", { class: "cards" }, each) : "");
      });
      if (!done) return;
    }
    chosen.replaceChildren(...boxes);
  };

  score();
}
