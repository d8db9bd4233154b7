"use strict";
/* Translates while a text is typed; what an answer holds becomes text, never markup. */

const [TRANSLATE, DRAW] = [200, 600]; // milliseconds without a key
const [text, pair, translation, fault, figures] = ["text", "pair", "translation", "fault", "figures"].map((id) =>
  document.getElementById(id),
);
let asked = null, translating = 0, drawing = 0;

async function translate() {
  const [source, target] = pair.value.split(" ");
  const question = { q: text.value, source, target };
  try {
    const answer = await fetch("translate", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question),
      signal: asked.signal,
    });
    const found = await answer.json();
    fault.textContent = answer.ok ? "" : found.error;
    if (answer.ok) translation.textContent = found.translatedText;
    if (answer.ok) drawing = setTimeout(draw, DRAW - TRANSLATE, question);
  } catch (error) {
    if (error.name !== "AbortError") fault.textContent = `The server does not answer: ${error.message}`;
  }
}

/* A new frame takes the old one's place when it is there: nothing flickers, and Back does not go through them all. */
function draw(question) {
  const frame = document.createElement("iframe");
  frame.title = "How the translation comes about";
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.src = `explain?${new URLSearchParams(question)}`;
  if (!figures.firstChild) figures.append(frame);
  else {
    frame.style.cssText = "position: absolute; visibility: hidden";
    frame.onload = () => {
      frame.style.cssText = "";
      figures.replaceChildren(frame);
    };
    figures.append(frame);
  }
}

function changed() {
  asked?.abort(); // the server drops what it has not begun
  asked = new AbortController();
  clearTimeout(translating);
  clearTimeout(drawing);
  if (text.value.trim()) translating = setTimeout(translate, TRANSLATE);
  else for (const part of [translation, fault, figures]) part.replaceChildren();
}

text.addEventListener("input", changed);
pair.addEventListener("change", changed);
changed(); // a browser may have kept a text
