// Captions: an image, its words shaded by doubt, and what single draws say.
import { h, later, level, numbers, percent, short, slider, wordBar, wordKey } from "/files/kit.js";

const THUMBNAILS = 12;

export function mount(root, page) {
  const levels = page.runs[0].about.levels;
  const list = h("select", { id: "image", onchange: () => choose(Number(list.value)) });
  const strip = h("div", { class: "thumbs" });
  const shown = h("figure", { class: "shown" });
  const draws = slider({ label: "Draws of the weights", min: 1, max: 64, value: 16, disabled: !page.runs.some((run) => run.about.random), change: () => soon() });
  const boxes = page.runs.map(() => h("div"));
  const pictures = new Map();
  let images = [];
  let chosen = 0;

  const picture = async (index) => {
    if (!images[index].picture) return null;
    if (!pictures.has(index)) {
      await page.ask(0, "picture", { index }, ({ jpeg }) => {
        const bytes = Uint8Array.from(atob(jpeg), (letter) => letter.charCodeAt(0));
        pictures.set(index, URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" })));
      });
    }
    return pictures.get(index) ?? null;
  };
  const choose = async (index) => {
    chosen = index;
    list.value = index;
    const source = await picture(index);
    const { name } = images[index];
    shown.replaceChildren(source ? h("img", { src: source, alt: `The image ${name}` }) : h("p", { class: "note", text: `${name}: only its features are here, not the picture.` }));
    describe();
  };
  const describe = async () => {
    for (const [run, { name, about }] of page.runs.entries()) {
      const said = h("div");
      const top = h("div");
      const done = await page.ask(run, "caption", { index: chosen, draws: draws.value }, (part) => {
        if (part.words) {
          const words = part.words.map((word) => ({ text: word.word, shade: level(word.entropy, levels.entropy), line: level(word.mutual_information, levels.mutual_information),
            label: `${word.word}: probability ${percent(word.probability)}, entropy ${short(word.entropy)}, epistemic ${short(word.mutual_information)} nats` }));
          const note = h("p", { class: "note", "aria-live": "polite", text: "Select a word for its numbers." });
          const bar = wordBar(`Caption, ${name}`, words, (i) => { bar.mark(i); note.textContent = words[i].label; });
          top.replaceChildren(page.runs.length > 1 ? h("h3", { text: name }) : "", bar.box, note,
            numbers("All numbers", ["word", "probability", "entropy", "epistemic"], part.words.map((word) => [word.word, percent(word.probability), short(word.entropy), short(word.mutual_information)])));
          boxes[run].replaceChildren(top, said);
        } else if (part.said) said.replaceChildren(h("h3", { text: "What single draws say" }), h("ol", {}, part.said.map((text) => h("li", { text }))));
      });
      if (!done) return;
      if (!about.random) said.replaceChildren(h("p", { class: "note", text: "This model has no noise, so all draws say the same." }));
    }
  };
  const soon = later(250, describe);

  root.append(h("div", { class: "row" }, h("label", {}, "Image ", list), draws.box), strip,
    h("div", { class: "side" }, shown, h("div", {}, boxes)),
    wordKey("entropy, how open the choice of the word was", levels.entropy, "epistemic part, on which draws disagree", levels.mutual_information));
  page.ask(0, "images", {}, (part) => { images = part.images; }).then(async (done) => {
    if (!done) return;
    list.replaceChildren(...images.map((image, k) => h("option", { value: k, text: image.name })));
    await choose(0);
    for (let k = 0; k < Math.min(THUMBNAILS, images.length); k++) {
      const source = await picture(k);
      if (source) strip.append(h("button", { type: "button", "aria-label": `Image ${k + 1}`, onclick: () => choose(k) }, h("img", { src: source, alt: "" })));
    }
  });
}
