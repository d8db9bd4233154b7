"use strict";
/* Translates while a text is typed; what an answer holds becomes text, never markup. */

const [TRANSLATE, DRAW] = [200, 600]; // milliseconds without a key
const EXAMPLES = {
  en: ["Good morning. How are you?", "I would like a cup of tea.", "She has lived here for 12 years."],
  zh: ["早上好。你好吗？", "我想喝一杯茶。", "她在这里住了12年。"],
};
const ids = ["text", "pair", "translation", "doubt", "fault", "figures", "examples"];
const [text, pair, translation, doubt, fault, figures, examples] = ids.map((id) => document.getElementById(id));
const empty = (...parts) => parts.forEach((part) => part.replaceChildren());
let asked = null, translating = 0, drawing = 0;

function fail(message) {
  empty(translation, doubt, figures);
  fault.textContent = message;
}

async function translate() {
  const n = [...text.value].length;
  if (n > text.dataset.limit) return fail(`The text has ${n} characters; at most ${text.dataset.limit} are translated at once.`);
  const [source, target] = pair.value.split("\t");
  const question = { q: text.value, source, target };
  try {
    const address = new URL("translate", location.origin + location.pathname); // fetch refuses one with a password
    const answer = await fetch(address, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...question, unsure: true }),
      signal: asked.signal,
    });
    const isJson = answer.headers.get("Content-Type")?.includes("json"); // unlike a 503, or what a proxy answers
    if (!isJson) return fail(`The server did not translate this (status ${answer.status}).`);
    const found = await answer.json();
    if (!answer.ok) return fail(found.error ?? `The server did not translate this (status ${answer.status}).`);
    empty(fault);
    translation.textContent = found.translatedText;
    const unknown = found.unknown.length ? ` Not in the training data: ${found.unknown.join(", ")}.` : "";
    doubt.textContent = found.unsure ? `Unsure: this translation may be wrong.${unknown}` : "";
    if (/[\p{L}\p{N}](?![\ufe0f\u20e3])/u.test(question.q)) drawing = setTimeout(draw, DRAW - TRANSLATE, question);
    else empty(figures); // a text whose only letters or digits are in emoji stays as it is
  } catch (error) {
    if (error.name !== "AbortError") fail(`The server is not answering: ${error.message}`);
  }
}

/* A new frame takes the old one's place when it has loaded: nothing flickers, and Back does not go through them all. */
function draw(question) {
  const frame = document.createElement("iframe");
  frame.title = "How the translation comes about";
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  let q = question.q.trim();
  // Whole sentences of at most 750 characters: one is up to nine bytes in an address, of which proxies take 8 KB.
  if (q.length > 750) q = q.slice(0, 750).replace(/(.*([.!?…।۔؟։።]["'”’»)]*(?=\s)|[。！？\n][”」』]*)).*$/s, "$1");
  frame.src = `explain?${new URLSearchParams({ ...question, q })}`;
  if (!figures.firstChild) figures.append(frame);
  else {
    frame.style.cssText = "position: absolute; inset: 0 auto auto 0; visibility: hidden";
    frame.onload = () => {
      frame.style.cssText = "";
      while (figures.firstChild !== frame) figures.firstChild.remove(); // a frame that is moved loads anew
    };
    figures.append(frame);
  }
}

function changed() {
  asked?.abort(); // the server drops what it has not begun, and pages that nobody waits for
  while (figures.children.length > 1) figures.lastChild.remove();
  asked = new AbortController();
  clearTimeout(translating);
  clearTimeout(drawing);
  if (text.value.trim()) translating = setTimeout(translate, TRANSLATE);
  else empty(translation, doubt, fault, figures);
}

function offer() {
  [text.lang, translation.lang] = pair.value.replaceAll("_", "-").split("\t");
  examples.lastElementChild.lang = text.lang;
  const offered = EXAMPLES[text.lang.split("-")[0]] ?? [];
  examples.hidden = !offered.length;
  examples.lastElementChild.replaceChildren(...offered.map((example) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: example });
    button.addEventListener("click", () => {
      text.value = example;
      changed();
    });
    return button;
  }));
  changed();
}

text.addEventListener("input", changed);
pair.addEventListener("change", offer);
addEventListener("pageshow", offer); // only now has the browser restored a text that it kept
