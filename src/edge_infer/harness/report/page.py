"""One self-contained HTML page: tables and plots inside, nothing fetched."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from edge_infer.harness.report.collect import Loaded, current
from edge_infer.harness.report.plots import plots
from edge_infer.harness.report.tables import facts, tables

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>edge-infer results</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; vertical-align: top; }
th { background: #f3f3f3; }
img { max-width: 100%; }
dt { font-weight: 600; }
.note { color: #a00; }
</style>
</head>
<body>
<h1>Results</h1>
<ul>
{%- for one in artifacts %}
<li><a href="#{{ one.name }}">{{ one.name }}</a></li>
{%- endfor %}
</ul>
{%- for one in artifacts %}
<section id="{{ one.name }}">
<h2>{{ one.name }}</h2>
<dl>
{%- for name, text in one.facts %}
<dt>{{ name }}</dt><dd>{{ text }}</dd>
{%- endfor %}
</dl>
{%- for table in one.tables %}
<h3>{{ table.name }}</h3>
<table>
<tr>{% for column in table.columns %}<th>{{ column }}</th>{% endfor %}</tr>
{%- for row in table.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</table>
{%- for note in table.notes %}
<p class="note">{{ note }}</p>
{%- endfor %}
{%- endfor %}
{%- for name, data in one.plots %}
<p><img alt="{{ name }}" src="data:image/png;base64,{{ data }}"></p>
{%- endfor %}
</section>
{%- endfor %}
{%- if retracted %}
<h2>Retracted</h2>
<ul>
{%- for name, mark in retracted %}
<li>{{ name }}: {{ mark.reason }}
{%- if mark.successor %} Replaced by {{ mark.successor }}.{% endif %}</li>
{%- endfor %}
</ul>
{%- endif %}
</body>
</html>
"""


def report_page(loaded: Sequence[Loaded]) -> str:
    """The page. Raises UnsupportedError where matplotlib is not installed."""
    import jinja2

    artifacts = [
        {
            "name": one.name,
            "facts": facts(one.artifact),
            "tables": tables(one.artifact),
            "plots": [
                (name, base64.b64encode(image).decode())
                for name, image in plots(one.artifact).items()
            ],
        }
        for one in current(loaded)
    ]
    retracted = [(one.name, one.artifact.retracted) for one in loaded if one.artifact.retracted]
    # What stands in an artifact may come from anywhere: everything is escaped.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_PAGE).render(artifacts=artifacts, retracted=retracted)
