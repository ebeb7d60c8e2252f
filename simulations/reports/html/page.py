"""The page of a report: its HTML, as a Jinja template, and its style. As texts, so that every bundle has them."""

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1b1f24; --quiet: #59616b; --rule: #d8dde3; --panel: #f5f7f9; --tint: #0072b2; --warn: #8a4b00;
  --c0: #0072b2; --c1: #c8500a; --c2: #00805f; --c3: #a8477e; --c4: #8d6a00; --c5: #5b54c4; --c7: #737a82;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --ink: #e8eaed; --quiet: #a3abb5; --rule: #363c43; --panel: #1d2125; --tint: #4aa8e0; --warn: #f2b25c;
    --c0: #56b4e9; --c1: #f28c4d; --c2: #35c498; --c3: #e69bc9; --c4: #eabd45; --c5: #a5a0ff; --c7: #949ba4;
  }
}
@media print {
  :root {
    color-scheme: light;
    --paper: #fff; --ink: #000; --quiet: #444; --rule: #bbb; --panel: #fff; --tint: #0072b2; --warn: #6b3a00;
    --c0: #0072b2; --c1: #c8500a; --c2: #00805f; --c3: #a8477e; --c4: #8d6a00; --c5: #5b54c4; --c7: #737a82;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem clamp(1rem, 4vw, 3rem) 4rem; max-width: 76rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
  -webkit-text-size-adjust: 100%;
}
h1 { margin: 0; font-size: clamp(1.6rem, 5vw, 2.3rem); line-height: 1.15; letter-spacing: -0.02em; text-wrap: balance; overflow-wrap: anywhere; }
h2 { margin: 3rem 0 1rem; padding-top: 0.9rem; border-top: 1px solid var(--rule); font-size: 1.3rem; letter-spacing: -0.01em; }
h3 { margin: 1.5rem 0 0.5rem; font-size: 1rem; }
p { margin: 0.6rem 0; max-width: 46rem; overflow-wrap: anywhere; }
.answer { font-size: 1.1rem; }
.terms { color: var(--quiet); }
.note, footer { color: var(--quiet); font-size: 0.85rem; line-height: 1.45; }
.state, .warning { color: var(--warn); }
.state { white-space: nowrap; font-weight: 600; }
.warning { padding-left: 0.8rem; border-left: 3px solid; }

.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 10.5rem), 1fr)); gap: 0.75rem; margin: 1.75rem 0 0; }
.tiles > div { padding: 0.8rem 1rem; border-radius: 0.5rem; background: var(--panel); border: 1px solid var(--rule); }
.tiles dt { color: var(--quiet); font-size: 0.85rem; }
.tiles dd { margin: 0; font-size: 1.65rem; line-height: 1.3; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles dd.note { font-size: 0.8rem; font-weight: 400; line-height: 1.35; }

.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem 2.5rem; }
figure { margin: 0; min-width: 0; }
figcaption h3 { margin: 0 0 0.4rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; fill: currentColor; stroke-linejoin: round; }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 1rem; margin: 0.8rem 0; padding: 0; list-style: none; font-size: 0.8rem; line-height: 1.35; }
.small b { display: block; margin-top: 0.3rem; overflow-wrap: anywhere; }
.small svg { background: var(--panel); border: 1px solid var(--rule); }

.scroll { overflow-x: auto; margin: 1.25rem 0 0; }
table { border-collapse: collapse; font-size: 0.88rem; line-height: 1.4; font-variant-numeric: tabular-nums; }
caption { padding-bottom: 0.35rem; text-align: left; font-weight: 600; font-size: 0.95rem; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }
th:first-child, td:first-child { padding-left: 0; }
thead th { color: var(--quiet); font-weight: 500; vertical-align: bottom; }
thead .n { white-space: normal; }
tbody th { font-weight: 500; white-space: nowrap; }
.n { text-align: right; white-space: nowrap; }
td[style] { background: color-mix(in srgb, var(--tint) calc(var(--shade) * 50%), transparent); }
caption.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.wide { min-width: min(100%, 46rem); }
.wide tbody th { white-space: normal; }
.wide td { min-width: 4rem; overflow-wrap: anywhere; }
small { display: block; max-width: 40rem; color: var(--quiet); font-size: 0.92em; font-weight: 400; }
.splits { display: flex; flex-wrap: wrap; gap: 0 3.5rem; }
.splits > div { min-width: 0; }
td { max-width: 46rem; }

.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 16rem), 1fr)); gap: 0.7rem 2rem; margin: 1.5rem 0; font-size: 0.9rem; }
.facts dt { color: var(--quiet); font-size: 0.82rem; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
details { margin: 1rem 0; }
summary { cursor: pointer; padding: 0.25rem 0; overflow-wrap: anywhere; }
summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--tint); outline-offset: 2px; }
.run { border-bottom: 1px solid var(--rule); margin: 0; padding: 0.4rem 0; }
img { max-width: 100%; height: auto; background: #fff; }
footer { margin-top: 3rem; padding-top: 0.75rem; border-top: 1px solid var(--rule); }
@media print {
  body { padding: 0; font-size: 0.85rem; }
  details::details-content { content-visibility: visible; }
  figure, tr, .tiles > div { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; }
  .scroll { overflow: visible; }
  .pictures { grid-template-columns: 1fr 1fr; }
  table { font-size: 0.68rem; }
  th, td { padding: 0.2rem 0.4rem; }
}
"""
"""CSS: colours for light, dark and paper."""

PAGE = """\
{% macro table(sheet, wide=false, entitled=false) %}
<div class="scroll" role="region" tabindex="0" aria-label="{{ sheet.caption }}">
<table{% if wide %} class="wide"{% endif %}>
<caption{% if entitled %} class="unseen"{% endif %}>{{ sheet.caption }}</caption>
<thead><tr>{% for name, numeric in sheet.columns %}<th scope="col"{% if numeric %} class="n"{% endif %}>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in sheet.rows %}
<tr>
{%- for cell in row -%}
{%- set numeric = sheet.columns[loop.index0][1] -%}
{%- if loop.first -%}
<th scope="row"{% if numeric %} class="n"{% endif %}>{{ cell.text }}{% if cell.note %}<small>{{ cell.note }}</small>{% endif %}</th>
{%- else -%}
<td{% if numeric %} class="n"{% endif %}{% if cell.shade %} style="--shade: {{ '%.2f' % cell.shade }}"{% endif %}>{{ cell.text }}</td>
{%- endif -%}
{%- endfor -%}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% if sheet.note %}<p class="note">{{ sheet.note }}</p>{% endif %}
{% endmacro %}

{% macro figure(picture) %}
<figure>
<figcaption><h3>{{ picture.title }}</h3></figcaption>
{{ picture.svg }}
{% if picture.note %}<p class="note">{{ picture.note }}</p>{% endif %}
</figure>
{% endmacro %}

{% macro headline(part) %}
<dl class="tiles">
{% for name, figure, note in part.tiles %}
<div><dt>{{ name }}</dt><dd>{{ figure }}</dd><dd class="note">{{ note }}</dd></div>
{% endfor %}
</dl>
{% endmacro %}

{% macro about(part) %}
<dl class="facts">
{% for name, fact in part.facts %}
<div><dt>{{ name }}</dt><dd>{{ fact }}</dd></div>
{% endfor %}
</dl>
{% if part.said %}
<h3>What was done with the data</h3>
<ul class="note">
{% for line in part.said %}
<li>{{ line }}</li>
{% endfor %}
</ul>
{% endif %}
{{ table(part.clients) }}
{% if part.notes %}
<ul class="note">
{% for note in part.notes %}
<li>{{ note }}</li>
{% endfor %}
</ul>
{% endif %}
{% if part.recalls %}
{{ table(part.recalls) }}
{% endif %}
{% if part.small %}
<details>
<summary>Each client's accuracy over the rounds</summary>
<ul class="small">
{% for picture in part.small %}
<li>{{ picture.svg }}<b>{{ picture.title }}</b> {{ picture.note }}</li>
{% endfor %}
</ul>
<p class="note">All on one scale; grey is the mean over clients.</p>
</details>
{% endif %}
{% if part.failures %}
{{ table(part.failures) }}
{% else %}
<p>No client failed, and no upload was refused.</p>
{% endif %}
{{ table(part.traffic) }}
{% if part.costs %}{{ table(part.costs) }}{% endif %}
{{ table(part.changed, wide=true) }}
<details>
<summary>Settings as by default ({{ part.unchanged.rows | length }})</summary>
{{ table(part.unchanged, wide=true, entitled=true) }}
</details>
{% endmacro %}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{{ title }}</title>
<style>
{% include "style" %}
</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
{% if parts | length == 1 %}
<p class="terms">{{ parts[0].title }} · {{ parts[0].name }}{% if parts[0].state %} <strong class="state">unfinished: {{ parts[0].state }}</strong>{% endif %}</p>
{% else %}
<p class="terms">{{ parts | length }} runs{% if terms %}: {{ terms }}{% endif %}</p>
{% endif %}
{% if unequal %}<p class="warning">{{ unequal }}</p>{% endif %}
</header>
<main>
{% if parts | length == 1 %}
{{ headline(parts[0]) }}
{% endif %}
{% if answer %}
<section>
<h2>Does federation help?</h2>
{% for sentence in answer.sentences %}
<p class="answer">{{ sentence }}</p>
{% endfor %}
{% if answer.picture %}
<div class="pictures">
{{ figure(answer.picture) }}
</div>
{% endif %}
{% for sheet in answer.sheets %}
{{ table(sheet) }}
{% endfor %}
{% for line in answer.left_out %}
<p class="note">{{ line }}</p>
{% endfor %}
</section>
{% endif %}
{% if comparison %}
<section>
<h2>Side by side</h2>
{{ table(comparison, entitled=true) }}
{% if doubts %}
<h3>What makes figures doubtful</h3>
<ul class="note">
{% for line in doubts %}
<li>{{ line }}</li>
{% endfor %}
</ul>
{% endif %}
</section>
{% endif %}
<section>
<h2>Accuracy and its cost</h2>
{% if pictures %}
<div class="pictures">
{% for picture in pictures %}
{{ figure(picture) }}
{% endfor %}
</div>
{% else %}
<p>No round was evaluated, so there is nothing to draw.</p>
{% endif %}
{% if pictures | length == 1 %}<p>No payload was sent, so there is no picture of its cost.</p>{% endif %}
</section>
{% if differing %}
<section>
<h2>What differs</h2>
{{ table(differing, entitled=true) }}
</section>
{% endif %}
{% if parts | length == 1 %}
<section>
<h2>The run</h2>
{{ about(parts[0]) }}
</section>
{% else %}
<section>
<h2>Run by run</h2>
{% for part in parts %}
<details class="run">
<summary><b>{{ part.name }}</b> {{ part.title }}{% if part.state %} <strong class="state">unfinished: {{ part.state }}</strong>{% endif %}</summary>
{{ headline(part) }}
{{ about(part) }}
</details>
{% endfor %}
</section>
{% endif %}
<section>
<h2>Who had which data</h2>
<div class="splits">
{% for part in splits %}
{% if part.why %}
<p>Not known any more. {{ part.why }}</p>
{% else %}
{% if part.sheet %}
<div>
{{ table(part.sheet) }}
</div>
{% else %}
<img src="{{ part.picture }}" alt="Training rows of each class, and rows of each kind, of every client: {{ part.title }}">
{% endif %}
{% endif %}
{% endfor %}
</div>
</section>
</main>
<footer><p>Bytes in powers of 1000: 1 kB = 1000 bytes. Payload is what an algorithm sends; on the wire comes what wraps it.</p></footer>
</body>
</html>
"""
"""HTML: what `simulations.reports.html.report.report_page` fills in; it includes the style by the name ``style``."""
