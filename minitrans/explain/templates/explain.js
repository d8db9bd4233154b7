"use strict";
/* Draws the figures from the numbers in #data. What a text holds becomes text nodes and attributes, never markup. */

const page = JSON.parse(document.getElementById("data").textContent);
const KINDS = { encoder: "Encoder self-attention", decoder: "Decoder self-attention", cross: "Cross-attention" };
const MEAN = page.heads; // stands for the average, after the heads
const LEVELS = 32; // shades of a small map
const PACE = 900; // milliseconds a step

/* What is shown of `sentence` and its `weights`. */
const state = { step: 0, kind: "cross", layer: page.layers.length - 1, head: MEAN, query: null };
let sentence, weights, playing = null, drawnFor = 0; // the last: a width

const main = document.querySelector("main");
const byId = (id) => document.getElementById(id);

// -- elements -------------------------------------------------------------------------------------------------------

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children); // strings become text nodes
  return node;
}

const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const text = (x, y, content, attributes = {}) => svg("text", { x, y, ...attributes }, content);
const titled = (node, title) => (node.append(svg("title", {}, title)), node);

/* Puts an `svg` of this size into the panel `id`; `left` and `top` are the room for labels, at negative coordinates. */
function picture(id, label, { width, height, left = 0, top = 0 }, ...children) {
  const size = { width: Math.ceil(width + left), height: Math.ceil(height + top) };
  const viewBox = [-left, -top, size.width, size.height].join(" ");
  const drawn = svg("svg", { ...size, viewBox, role: "group", "aria-label": label }, ...children);
  byId(id).querySelector(".picture").replaceChildren(drawn);
  return drawn;
}

const roomIn = (id) => byId(id).querySelector(".picture").clientWidth - 6;

const pen = document.createElement("canvas").getContext("2d");
pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
const widthOf = (label) => pen.measureText(label).width;
const widest = (labels) => Math.max(0, ...labels.map(widthOf));
const short = (label) => ([...label].length > 14 ? `${[...label].slice(0, 13).join("")}…` : label);

// -- numbers and names ----------------------------------------------------------------------------------------------

const percent = (p) => (p < 0.0005 ? "< 0.1%" : `${(100 * p).toFixed(1)}%`);
const decimal = (x) => Number(x).toFixed(3).replace("-", "−");
const tiny = (x) => (x === 0 ? "0" : Number(x).toExponential(1).replace("-", "−"));
const mapName = (layer, head) => `layer ${page.layers[layer]}, ${head === MEAN ? "average of the heads" : `head ${head + 1}`}`;

function label(piece) {
  if (piece === sentence.target[0]) return "BOS";
  if (piece === sentence.source.at(-1)) return "EOS";
  return piece.replaceAll("\u2581", "␣").replace(/^[\ue000-\ue02f]$/, "(empty copy)");
}

const read = () => sentence.target.slice(0, sentence.steps.length).map(label);
const source = () => sentence.source.map(label);
const padded = () => [...source(), ...Array(sentence.padded).fill("PAD")];
const queriesOf = (kind) => (kind === "encoder" ? source() : read());
const keysOf = (kind) => (kind === "decoder" ? read() : padded());
const forbids = (kind, q, k) => (kind === "decoder" ? k > q : k >= sentence.source.length);
const whyNot = (kind) => (kind === "decoder" ? "masked (in the future)" : "masked (padding)");

/* float32 (layers, heads, queries, keys) in base64 -> [layer][head][query], each a row; the average after the heads. */
function unpack(packed, queries, keys) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const all = new Float32Array(bytes.buffer);
  return page.layers.map((_, layer) => {
    const heads = Array.from({ length: page.heads }, (_, head) =>
      Array.from({ length: queries }, (_, q) => {
        const first = ((layer * page.heads + head) * queries + q) * keys;
        return all.subarray(first, first + keys);
      }));
    const mean = heads[0].map((row, q) => row.map((_, k) => heads.reduce((sum, h) => sum + h[q][k], 0) / heads.length));
    return [...heads, mean];
  });
}

// -- step by step ---------------------------------------------------------------------------------------------------

function drawGrowing() {
  const { steps, target } = sentence, { step } = state, { top_pieces: likeliest, taken_logp } = steps[step];
  const next = label(target[step + 1]);
  const room = Math.max(240, Math.min(roomIn("growing"), 720));
  const looked = weights.cross.at(-1)[MEAN][step];
  const parts = [];
  let y = 12;
  const line = (title, labels, weightOf, mark) => {
    parts.push(text(0, y, title, { class: "title" }));
    let x = 0;
    y += 8;
    labels.forEach((piece, i) => {
      const width = widthOf(piece) + 14;
      if (x > 0 && x + width > room) [x, y] = [0, y + 36];
      parts.push(svg("rect", { x: x + 1, y, width, height: 24, rx: 4, class: i === mark ? "chip next" : "chip" }));
      parts.push(text(x + 8, y + 16, piece));
      if (weightOf) {
        const bar = svg("rect", { x: x + 1, y: y + 26, width: width * weightOf(i), height: 4, class: "bar" });
        parts.push(titled(bar, `${piece}: ${decimal(weightOf(i))}`));
      }
      x += width + 5;
    });
    y += 54;
  };
  line("Source", source(), (i) => looked[i]);
  line("Read so far, and the piece taken now", [...read().slice(0, step + 1), next], null, step + 1);
  y -= 6;
  parts.push(text(0, y, `The ${likeliest.length} likeliest next pieces`, { class: "title" }));
  const pieces = likeliest.map(([piece]) => short(label(piece)));
  const taken = likeliest.findIndex(([piece]) => piece === target[step + 1]); // of two that look alike, the likelier
  const left = widest(pieces) + 10, scale = Math.max(40, room - left - 110);
  likeliest.forEach(([, logP], i) => {
    const p = Math.exp(logP);
    y += 24;
    parts.push(text(0, y, pieces[i], { class: "piece" }));
    parts.push(svg("rect", { x: left, y: y - 11, width: Math.max(1, p * scale), height: 14, class: "bar" }));
    const note = i === taken ? " ✓ taken" : "";
    parts.push(text(left + p * scale + 6, y, percent(p) + note, { "font-weight": note ? 600 : 400 }));
  });
  picture("growing", `Step ${step + 1}: ${next} taken`, { width: room, height: y + 10 }, ...parts);
  byId("step").value = step + 1;
  byId("now").textContent = `${step + 1} of ${steps.length}: ${next}, ${percent(Math.exp(taken_logp))}`;
}

// -- where the heads look -------------------------------------------------------------------------------------------

/* One path for each shade, so that a page of maps stays light. */
function smallMap(kind, rows, cell) {
  const keys = keysOf(kind).length;
  const shades = Array(LEVELS + 1).fill("");
  let hatched = "";
  rows.forEach((row, q) => {
    for (let k = 0; k < keys; k += 1) {
      const square = `M${(k * cell).toFixed(2)} ${(q * cell).toFixed(2)}h${cell.toFixed(2)}v${cell.toFixed(2)}h${(-cell).toFixed(2)}z`;
      if (forbids(kind, q, k)) hatched += square;
      else shades[Math.min(LEVELS, Math.round(row[k] * LEVELS))] += square;
    }
  });
  const paths = shades.map((d, level) => level && d && svg("path", { d, class: "w", "fill-opacity": level / LEVELS }));
  return svg("g", { class: "small" }, ...paths.filter(Boolean), svg("path", { d: hatched, fill: "url(#hatch)" }));
}

function drawGrid(kind) {
  const columns = page.heads + 1, left = 22, gap = 7;
  const side = Math.max(44, Math.min(96, (roomIn(kind) - left) / columns - gap));
  const [rows, keys] = [queriesOf(kind).length, keysOf(kind).length];
  const cell = side / Math.max(rows, keys), [width, height] = [keys * cell, rows * cell];
  const parts = [];
  for (let head = 0; head < columns; head += 1) {
    const x = head * (side + gap) + width / 2;
    parts.push(text(x, -6, head === MEAN ? "mean" : `${head + 1}`, { class: "column" }));
  }
  page.layers.forEach((number, layer) => {
    const y = layer * (height + gap);
    parts.push(text(-8, y + height / 2 + 4, `${number}`, { class: "row" }));
    for (let head = 0; head < columns; head += 1) {
      const name = `${KINDS[kind]}, ${mapName(layer, head)}`;
      const map = svg("g", {
        class: "pick", tabindex: 0, role: "button", "aria-label": name, "data-head": head,
        transform: `translate(${head * (side + gap)} ${y})`,
      });
      map.append(svg("title", {}, name), smallMap(kind, weights[kind][layer][head], cell));
      map.append(svg("rect", { width, height, class: "frame", "pointer-events": "all" }));
      map.addEventListener("click", () => choose(kind, layer, head));
      map.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose(kind, layer, head);
      });
      parts.push(map);
    }
  });
  const size = { width: columns * (side + gap), height: page.layers.length * (height + gap), left, top: 20 };
  picture(kind, `${KINDS[kind]}: layers by heads`, size, ...parts);
}

function choose(kind, layer, head) {
  Object.assign(state, { kind, layer, head });
  drawChosen();
  drawRows();
}

function drawChosen() {
  const name = `${KINDS[state.kind]}, ${mapName(state.layer, state.head)}`;
  byId("chosen").textContent = name;
  for (const map of document.querySelectorAll(".pick")) {
    map.setAttribute("aria-pressed", map.getAttribute("aria-label") === name);
  }
  drawMap();
  drawLines();
}

/* Labels above the columns, rising to the right, and how much room they take above and to the right. */
function columnLabels(labels, cell) {
  const angle = Math.PI * 55 / 180, shown = labels.map(short);
  const parts = shown.map((piece, k) =>
    svg("text", { transform: `translate(${(k + 0.5) * cell + 4} -6) rotate(-55)` }, piece));
  const ends = shown.map((piece, k) => (k + 0.5) * cell + widthOf(piece) * Math.cos(angle) + 12);
  return { parts, top: widest(shown) * Math.sin(angle) + 16, width: Math.max(labels.length * cell + 2, ...ends) };
}

function square(kind, q, k, weight, cell, name) {
  const at = { x: k * cell, y: q * cell, width: cell, height: cell };
  return titled(forbids(kind, q, k)
    ? svg("rect", { ...at, class: "masked", fill: "url(#hatch)" })
    : svg("rect", { ...at, class: "w", "fill-opacity": weight.toFixed(4) }), name);
}

function drawMap() {
  const { kind, layer, head } = state, rows = weights[kind][layer][head];
  const queries = queriesOf(kind), keys = keysOf(kind);
  const left = widest(queries.map(short)) + 12;
  const cell = Math.max(16, Math.min(36, (roomIn("map") - left - 24) / keys.length));
  const above = columnLabels(keys, cell);
  const cells = svg("g", { class: "cells" });
  const parts = queries.map((query, q) => text(-7, (q + 0.5) * cell + 4, short(query), { class: "row" }));
  const marker = svg("rect", { class: "now", x: 0, width: keys.length * cell, height: cell, "pointer-events": "none" });
  queries.forEach((query, q) => keys.forEach((key, k) => {
    const value = forbids(kind, q, k) ? whyNot(kind) : decimal(rows[q][k]);
    const name = `${query} → ${key}: ${value}`;
    const rect = square(kind, q, k, rows[q][k], cell, name);
    fill(rect, { "data-q": q, "data-k": k, tabindex: q + k ? -1 : 0, role: "img", "aria-label": name }, []);
    const show = () => point(q, name);
    rect.addEventListener("pointerenter", show);
    rect.addEventListener("focus", show);
    cells.append(rect);
  }));
  cells.addEventListener("keydown", moveInMap);
  const size = { width: above.width, height: queries.length * cell + 2, left, top: above.top };
  picture("map", byId("chosen").textContent, size, ...above.parts, ...parts, cells, marker);
  byId("weight").textContent = "";
}

/* While a cell has the focus, arrow keys move from cell to cell, not from step to step. */
function moveInMap(event) {
  const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  const [q, k] = [+event.target.dataset.q + by[0], +event.target.dataset.k + by[1]];
  const next = event.currentTarget.querySelector(`[data-q="${q}"][data-k="${k}"]`);
  if (!next) return;
  event.target.setAttribute("tabindex", -1);
  next.setAttribute("tabindex", 0);
  next.focus();
}

function point(q, name) {
  byId("weight").textContent = name;
  if (state.query !== q) drawLines(q);
}

/* Also marks a row of the map: the one pointed at, or else this step's, but the encoder has no steps. */
function drawLines(query = null) {
  state.query = query;
  const { kind, layer, head } = state, rows = weights[kind][layer][head];
  const lit = query ?? (kind === "encoder" ? null : state.step);
  const marker = byId("map").querySelector(".now");
  marker.setAttribute("visibility", lit === null ? "hidden" : "visible");
  marker.setAttribute("y", (lit ?? 0) * marker.getAttribute("height"));
  const queries = queriesOf(kind).map(short), keys = keysOf(kind).map(short);
  const pitch = 24, height = Math.max(queries.length, keys.length) * pitch;
  const [left, right] = [widest(queries) + 10, widest(keys) + 10];
  const span = Math.max(80, Math.min(roomIn("lines"), 460) - left - right);
  const middle = (i, n) => (i + 0.5 + (height / pitch - n) / 2) * pitch;
  const threads = [];
  queries.forEach((query, q) => keys.forEach((key, k) => {
    if (forbids(kind, q, k) || rows[q][k] < 0.005) return;
    const [a, b] = [middle(q, queries.length), middle(k, keys.length)];
    const d = `M0 ${a}C${span / 2} ${a} ${span / 2} ${b} ${span} ${b}`;
    const thread = svg("path", { d, class: q === lit ? "thread lit" : "thread", "stroke-width": (rows[q][k] * 12).toFixed(2) });
    threads.push(titled(thread, `${query} → ${key}: ${decimal(rows[q][k])}`));
  }));
  threads.sort((a, b) => a.classList.contains("lit") - b.classList.contains("lit")); // those on top
  const parts = [
    ...queries.map((query, q) =>
      text(-6, middle(q, queries.length) + 4, query, { class: "row", "font-weight": q === lit ? 700 : 400 })),
    ...keys.map((key, k) =>
      text(span + 6, middle(k, keys.length) + 4, key, k < sentence.source.length || kind === "decoder" ? {} : { class: "weak" })),
  ];
  picture("lines", "Lines between pieces", { width: span + right, height, left }, ...threads, ...parts);
}

// -- from the cache -------------------------------------------------------------------------------------------------

function drawSlots() {
  const { steps } = sentence, { n_keys_read: n, n_keys_held_before: held, source_kept: kept } = steps[state.step];
  const columns = padded(), left = 62;
  const cell = Math.max(9, Math.min(22, (roomIn("slots") - left) / Math.max(steps.length, columns.length)));
  const parts = [], titles = [];
  let y = 0;
  const slot = (i, className, title) =>
    parts.push(titled(svg("rect", { x: i * cell, y, width: cell - 1, height: cell - 1, class: className,
      ...(className === "masked" ? { fill: "url(#hatch)" } : {}) }), title));
  for (let layer = 1; layer <= page.layers.at(-1); layer += 1) {
    y += 14;
    titles.push(`Layer ${layer}: ${held} cached + ${n - held} added = ${n} read; source: ${columns.length}`);
    parts.push(text(-left, y, titles.at(-1)));
    y += 6;
    parts.push(text(-8, y + cell / 2 + 3, "target", { class: "row weak" }));
    read().forEach((piece, t) => slot(t, t < held ? "held" : t < n ? "added" : "free",
      `${piece}: ${t < held ? "read from the cache" : t < n ? "added at this step" : "still empty"}`));
    y += cell + 2;
    parts.push(text(-8, y + cell / 2 + 3, "source", { class: "row weak" }));
    columns.forEach((piece, k) =>
      slot(k, forbids("cross", 0, k) ? "masked" : "source", `${piece}: computed before the first step`));
    y += cell + 8;
  }
  const width = Math.max(cell * Math.max(steps.length, columns.length), widest(titles) + 4 - left);
  picture("slots", "Keys and values in the cache", { width, height: y, left }, ...parts);
  byId("held").textContent =
    `Each square is the key and value of one piece, in all heads: light if read from the cache, outlined if added at this `
    + `step, dashed if still empty, hatched if padding. Those of the source are ${kept ? "bit for bit" : "NOT"} what they were at first.`;
}

/* The decoder's rows in the chosen layer and head, even if those were chosen in the encoder, which has no steps. */
function drawRows() {
  const { layer, head, step } = state, { logit_difference: logits, weight_difference: worst } = sentence.steps[step];
  const names = ["the cache", "full pass"], left = widest(names) + 14;
  const most = Math.max(read().length, padded().length);
  const cell = Math.max(16, Math.min(30, (roomIn("rows") - left - 24) / most));
  const parts = [], differences = [];
  let y = 0, width = 230;
  for (const kind of ["decoder", "cross"]) {
    const keys = keysOf(kind), above = columnLabels(keys, cell);
    const rows = [weights.cached[kind], weights[kind]].map((of) => of[layer][head][step]);
    differences.push(Math.max(...rows[0].map((weight, k) => Math.abs(weight - rows[1][k]))));
    y += 14;
    parts.push(text(-left, y, KINDS[kind], { class: "title" }));
    y += above.top;
    const group = svg("g", { transform: `translate(0 ${y})` }, ...above.parts);
    rows.forEach((row, i) => {
      group.append(text(-7, (i + 0.5) * cell + 4, names[i], { class: "row" }));
      keys.forEach((key, k) => {
        if (kind === "decoder" && i === 0 && k > step) { // the cache has no such key
          group.append(titled(svg("rect", { x: k * cell, y: 0, width: cell, height: cell, class: "free" }), `${key}: not there yet`));
          return;
        }
        const hidden = forbids(kind, step, k);
        const cellOf = square(kind, step, k, row[k], cell, `${key}, ${names[i]}: ${hidden ? whyNot(kind) : row[k]}`);
        cellOf.setAttribute("y", i * cell);
        group.append(cellOf);
      });
    });
    parts.push(group);
    y += 2 * cell + 12;
    width = Math.max(width, above.width);
  }
  picture("rows", "The same row from the cache and from the full pass", { width, height: y, left }, ...parts);
  const all = sentence.steps.map((each) => Math.max(each.logit_difference, each.weight_difference));
  byId("differences").textContent =
    `Step ${step + 1}, ${mapName(layer, head)}. Largest difference in these rows: ${tiny(Math.max(...differences))}; at this `
    + `step, over all layers and heads: ${tiny(worst)}; over the logits: ${tiny(logits)}; over all steps, weights and logits: `
    + `${tiny(Math.max(...all))}.`;
}

// -- what each head is worth ----------------------------------------------------------------------------------------

function drawWorth(kind) {
  const { log_prob: base, without } = sentence, left = 54;
  const largest = Math.max(1e-9, ...Object.values(without).flat(2).map((value) => Math.abs(value - base)));
  const note = (value) => `${decimal(value)} (${value < base ? "" : "+"}${decimal(value - base)})`;
  const beside = widest(without[kind].flat().map(note)) + 10;
  const room = Math.max(120, Math.min(roomIn(`worth-${kind}`), 420) - left - beside);
  const parts = [];
  let y = 0;
  without[kind].forEach((heads, layer) => {
    y += 20;
    parts.push(text(-left, y - 6, `Layer ${layer + 1}`, { class: "title" }));
    heads.forEach((value, head) => {
      const fall = base - value, width = Math.max(0.5, Math.abs(fall) / largest * room);
      const look = fall < 0 ? { class: "masked", fill: "url(#hatch)" } : { class: "bar" };
      const bar = svg("rect", { x: 0, y: y + 2, width, height: 12, ...look });
      parts.push(text(-6, y + 12, `head ${head + 1}`, { class: "row" }));
      parts.push(titled(bar, `${layer + 1}.${head + 1}: ${decimal(value)}, ${decimal(Math.abs(fall))} ${fall < 0 ? "higher" : "lower"}`));
      parts.push(text(width + 6, y + 12, note(value)));
      y += 18;
    });
  });
  parts.push(svg("path", { d: `M0 4V${y}`, class: "axis" }));
  picture(`worth-${kind}`, `${KINDS[kind]}: log-probability without each head`, { width: room + beside, height: y + 2, left }, ...parts);
}

// -- saving ---------------------------------------------------------------------------------------------------------

const KEPT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "font-family",
  "font-size", "font-weight", "text-anchor", "visibility"];

/* A copy that looks the same outside the page: the style sheet's rules become attributes. */
function standalone(drawn) {
  const copy = drawn.cloneNode(true);
  const originals = [drawn, ...drawn.querySelectorAll("*")], copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, i) => {
    const style = getComputedStyle(original), inherited = i ? getComputedStyle(original.parentNode) : null;
    for (const name of KEPT) {
      const value = style.getPropertyValue(name);
      if (!inherited || value !== inherited.getPropertyValue(name)) copies[i].setAttribute(name, value);
    }
    for (const name of ["class", "tabindex", "role"]) copies[i].removeAttribute(name);
  });
  const hatch = byId("hatch").cloneNode(true), line = getComputedStyle(byId("hatch").firstElementChild);
  hatch.firstElementChild.removeAttribute("class");
  fill(hatch.firstElementChild, { stroke: line.stroke, "stroke-width": line.strokeWidth, fill: "none" }, []);
  const [x, y, width, height] = drawn.getAttribute("viewBox").split(" ");
  const paper = svg("rect", { x, y, width, height, fill: getComputedStyle(document.body).backgroundColor, stroke: "none" });
  copy.prepend(svg("defs", {}, hatch), paper);
  return new XMLSerializer().serializeToString(copy);
}

function download(blob, name) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function saveSvg(id) {
  const drawn = byId(id).querySelector("svg");
  download(new Blob([standalone(drawn)], { type: "image/svg+xml" }), `minitrans-${id}.svg`);
}

async function savePng(id) {
  const drawn = byId(id).querySelector("svg"), scale = 2;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(drawn))}`;
  await image.decode();
  const canvas = html("canvas", { width: drawn.getAttribute("width") * scale, height: drawn.getAttribute("height") * scale });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(blob, `minitrans-${id}.png`));
}

for (const panel of document.querySelectorAll(".panel")) {
  const name = panel.querySelector("h3").textContent;
  const button = (format, save) => {
    const made = html("button", { type: "button", "aria-label": `Save “${name}” as ${format}` }, format);
    made.addEventListener("click", () => save(panel.id));
    return made;
  };
  panel.append(html("div", { class: "save" }, button("SVG", saveSvg), button("PNG", savePng)));
}

// -- what happens ---------------------------------------------------------------------------------------------------

function goTo(step) {
  state.step = Math.max(0, Math.min(step, sentence.steps.length - 1));
  drawGrowing();
  drawSlots();
  drawRows();
  drawLines();
}

function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = "Play";
}

function play() {
  const last = () => state.step === sentence.steps.length - 1;
  if (last()) goTo(0);
  byId("play").textContent = "Pause";
  playing = setInterval(() => {
    goTo(state.step + 1);
    if (last()) stop();
  }, PACE);
}

function drawAll() {
  drawnFor = main.clientWidth;
  for (const kind of Object.keys(KINDS)) {
    drawGrid(kind);
    drawWorth(kind);
  }
  drawChosen();
  goTo(state.step);
}

function showSentence(number) {
  stop();
  state.step = 0;
  sentence = page.sentences[number];
  const { full, cached } = sentence, [s, t] = [sentence.source.length, sentence.steps.length];
  weights = { encoder: unpack(full.encoder, s, s), decoder: unpack(full.decoder, t, t), cross: unpack(full.cross, t, s) };
  weights.cached = { decoder: unpack(cached.decoder, t, t), cross: unpack(cached.cross, t, s) };
  byId("text").textContent = sentence.text;
  byId("translation").textContent = sentence.translation;
  const unknown = sentence.unknown.length ? `: not in the training data: ${sentence.unknown.join(", ")}` : "";
  byId("doubt").textContent = sentence.unsure ? `unsure${unknown}` : "";
  byId("forbidden").textContent = tiny(sentence.forbidden);
  byId("log-prob").textContent = decimal(sentence.log_prob);
  byId("step").max = t;
  drawAll();
}

const byHand = (to) => () => (stop(), goTo(to()));
byId("step").addEventListener("input", byHand(() => byId("step").value - 1));
byId("back").addEventListener("click", byHand(() => state.step - 1));
byId("forward").addEventListener("click", byHand(() => state.step + 1));
byId("play").addEventListener("click", () => (playing ? stop() : play()));
byId("sentence").addEventListener("change", () => showSentence(byId("sentence").selectedIndex));
byId("map").addEventListener("pointerleave", () => drawLines());
document.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input, select, .picture")) return;
  event.preventDefault();
  stop();
  goTo(state.step + by);
});
new ResizeObserver(() => main.clientWidth !== drawnFor && drawAll()).observe(main);

page.sentences.forEach((each) => byId("sentence").append(html("option", {}, each.text)));
byId("choice").hidden = page.sentences.length < 2;
showSentence(0);
byId("step").max = Math.max(...page.sentences.map(({ steps }) => steps.length));
addEventListener("pageshow", () => {
  const kept = byId("step").value - 1; // only now does a browser restore what was chosen before
  showSentence(byId("sentence").selectedIndex);
  goTo(kept);
});
