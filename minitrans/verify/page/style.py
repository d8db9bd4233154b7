"""How the page looks: light and dark, wide and narrow, on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fcfcfa; --panel: #fff; --text: #1d1f24; --soft: #575c66; --rule: #dcdcd6; --band: #f3f3ee;
  --ink: #123f7d; --pass: #1b6a3d; --fail: #b3201a; --fail-paper: #fbecea; --hatch: #a3a5a9;
  --s0: #123f7d; --s1: #0d6e66; --s2: #a2470b;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "PingFang SC",
    "Microsoft YaHei", "Noto Sans CJK SC", sans-serif;
  --serif: Charter, "Bitstream Charter", "Iowan Old Style", Cambria, Georgia, "Liberation Serif", serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #15171b; --panel: #1a1d22; --text: #e7e6e2; --soft: #a7abb3; --rule: #34383f; --band: #1d2026;
    --ink: #9cc8ff; --pass: #79cf9c; --fail: #ff9489; --fail-paper: #35201f; --hatch: #5d626b;
    --s0: #9cc8ff; --s1: #6fd8c8; --s2: #f5b06a;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--text); font: 1rem/1.55 var(--sans); }
body > header, main, footer { max-width: 84rem; margin: 0 auto; padding: 0 clamp(1rem, 4vw, 3rem); }
h1, h2 { font-family: var(--serif); font-weight: 600; line-height: 1.15; text-wrap: balance; }
h1 { font-size: clamp(2rem, 5vw, 3rem); margin: 0 0 1rem; letter-spacing: -0.01em; }
h2 { font-size: clamp(1.5rem, 3.5vw, 2rem); margin: 0 0 .75rem; }
h3 { font-size: 1.05rem; margin: 0 0 .25rem; }
p { max-width: 68ch; margin: 0 0 1rem; text-wrap: pretty; }
a { color: var(--ink); text-underline-offset: .15em; text-decoration-thickness: 1px; }
small { display: block; color: var(--soft); font-size: .8125rem; line-height: 1.4; }
section { padding: 3.5rem 0 0; }
figure { margin: 0; min-width: 0; }
figcaption { color: var(--soft); font-size: .9rem; max-width: 62ch; }
:focus-visible { outline: 2px solid var(--ink); outline-offset: 2px; }

body > header { padding-top: clamp(2rem, 7vw, 5rem); }
.eyebrow { font: .875rem var(--mono); color: var(--soft); margin: 0 0 .5rem; }
.outcome { font-size: 1.15rem; font-weight: 600; max-width: none; }
.pass { color: var(--pass); }
.fail { color: var(--fail); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; padding: .75rem 0; margin: 1.5rem 0 0;
  border-block: 1px solid var(--rule); }

.scroll { overflow-x: auto; margin-bottom: 2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; line-height: 1.4; }
th, td { text-align: left; vertical-align: baseline; padding: .5rem 1.25rem .5rem 0; font-weight: 400;
  border-bottom: 1px solid var(--rule); }
thead th { font-size: .8125rem; color: var(--soft); border-bottom: 1px solid var(--text); white-space: nowrap; }
.chapter th { font: 600 1.15rem var(--serif); padding-top: 2rem; }
.chapter span { font: .8125rem var(--sans); color: var(--soft); margin-left: .5rem; }
th.id { font-family: var(--mono); font-size: .8125rem; white-space: nowrap; }
.claim, .ids, dd { overflow-wrap: anywhere; }
.claim { text-wrap: pretty; }
.measure { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.verdict { padding-right: 0; white-space: nowrap; }
td.verdict { font-weight: 600; font-size: .875rem; }
td.bad, td.bad small { color: var(--fail); font-weight: 700; }
tr.failed > * { background: var(--fail-paper); }
tr.failed > :first-child { box-shadow: -.75rem 0 var(--fail-paper); }
tr.failed > :last-child { box-shadow: .75rem 0 var(--fail-paper); }
tr:target > * { background: var(--band); }
.numbers { width: auto; }
.ids { font: .8125rem/1.6 var(--mono); color: var(--soft); }

svg { font: 12px var(--sans); fill: var(--text); }
svg.defs { position: absolute; }
svg.grid { display: block; max-width: 100%; height: auto; }
svg.chart { display: block; width: 100%; max-width: 54rem; height: auto; font-size: 12px; overflow: visible; }
svg .title { font-weight: 600; }
svg .row { text-anchor: end; }
svg .column { text-anchor: middle; }
.w, .may { fill: var(--ink); stroke: var(--rule); }
.may { fill-opacity: .6; }
.masked { stroke: var(--rule); }
.hatch { stroke: var(--hatch); stroke-width: 1.2; fill: none; }
.w:hover, .masked:hover, .may:hover { stroke: var(--s2); stroke-width: 2; }
.scroll svg.grid { max-width: none; }
.band { fill: var(--band); }
.dot { fill: var(--ink); }
.s0 { --s: var(--s0); } .s1 { --s: var(--s1); } .s2 { --s: var(--s2); }
.line, .tolerance { vector-effect: non-scaling-stroke; }
.line { fill: none; stroke: var(--s); stroke-width: 2; stroke-linejoin: round; }
.mark { fill: var(--s); stroke: var(--paper); stroke-width: 1; }
.tolerance { stroke: var(--s); stroke-width: 1.5; stroke-dasharray: 6 5; fill: none; }
.allowed, .series { fill: var(--s); }
.allowed { paint-order: stroke; stroke: var(--paper); stroke-width: 5; }
.series { font-weight: 600; }
.rule { stroke: var(--rule); fill: none; }

.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 16rem), 1fr)); gap: 1.5rem;
  margin: 1rem 0 2.5rem; }
.masks { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: 2rem; }
.masks figure { display: flex; flex-direction: column; }
.masks figcaption { order: 1; }
.masks svg { width: 11rem; margin: .5rem 0 1rem; }
.masks .title { font-weight: 400; fill: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: .5rem 2rem; font-size: .9rem; color: var(--soft); max-width: none; }
.legend span { display: inline-flex; align-items: center; gap: .5rem; }
.swatch { flex: none; overflow: visible; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: 0 0 1rem; }
dt { color: var(--soft); }
dd { margin: 0; }
details { border-top: 1px solid var(--rule); padding: .75rem 0; }
summary { cursor: pointer; font: 600 1.15rem var(--serif); padding: .25rem 0; }
details[open] > summary { margin-bottom: .75rem; }
footer { padding-block: 4rem 3rem; color: var(--soft); font-size: .875rem; }

@media (max-width: 44rem) {
  .cards, .cards tbody { display: block; }
  .cards thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .cards tr { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .25rem 1rem; padding: .75rem;
    margin: 0 -.75rem; border-bottom: 1px solid var(--rule); }
  .cards tr > *, .cards .chapter th { border: 0; padding: 0; }
  .cards tr.chapter { padding-top: 2.5rem; }
  .cards .chapter th, .cards .claim, .cards .ids { grid-column: 1 / -1; }
  .cards .id { grid-column: 1 / 3; }
  .cards .verdict, .sabotages .measure { grid-area: 1 / 3; text-align: right; }
  .cards tr.failed { background: var(--fail-paper); }
  .cards tr.failed > * { background: none; box-shadow: none; }
  .claims .measure { text-align: left; }
  .claims .measure::before { content: attr(data-label); display: block; font-size: .75rem; color: var(--soft); }
  .claims .measure:empty { display: none; }
  svg.chart { font-size: 18px; }
}
@media print {
  html { font-size: 9pt; }
  nav { display: none; }
  section { padding-top: 2rem; }
  tr, figure, svg { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; }
  .scroll svg.grid { max-width: 100%; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
"""
