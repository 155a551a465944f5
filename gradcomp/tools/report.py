"""A page on training runs: one HTML file without any reference to another one."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

from gradcomp.tools.report_charts import (
    COLOURS,
    errors_chart,
    losses_chart,
    tensor_errors_chart,
    tests_chart,
    times_chart,
)
from gradcomp.tools.run_folder import RunFolder
from gradcomp.tools.run_names import names_of, spec_of
from gradcomp.tools.run_progress import (
    bytes_of_step,
    last_step,
    seconds_of_step,
    times_fewer_bytes,
)

__all__ = ["report_page"]

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>gradcomp: $title</title>
<style>
:root { color-scheme: light dark; --ink: #1b1b1b; --ground: #ffffff; --grid: #dddddd;
  --mark: #fff3d6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --ground: #161616; --grid: #3a3a3a; --mark: #4a3b14; }
}
body { color: var(--ink); background: var(--ground); font: 15px/1.45 system-ui, sans-serif;
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
svg { width: 100%; height: auto; } svg text { font-family: system-ui, sans-serif; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--grid);
  vertical-align: top; overflow-wrap: anywhere; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
/* On a narrow screen charts keep the size of their letters, and scroll. */
@media (max-width: 50rem) { .wide svg { min-width: 50rem; } th, td.number { overflow-wrap: normal; } }
tr.differs td { background: var(--mark); }
.key { display: inline-block; width: 1.4em; height: .3em; margin-right: .5em;
  vertical-align: middle; }
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")

_NO_PROFILE = (
    "No run has a profile. With <code>stats: {profile: FOLDER}</code> in its configuration each rank "
    "writes one; give the folder, too, if it is not the run's own."
)


def report_page(runs: Sequence[RunFolder]) -> str:
    """The page: results, curves, the time of a step, errors and settings of one or several runs.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    parts = [_section("Results", _results(runs))]
    for heading, chart in (
        ("Training loss", losses_chart(runs)),
        ("Test accuracy", tests_chart(runs, "accuracy", "test accuracy")),
        ("Test loss", tests_chart(runs, "test_bits", "cross-entropy in the test, bits")),
        ("Where a step's time goes", times_chart(runs) or f"<p>{_NO_PROFILE}</p>"),
        ("Error of the averages", errors_chart(runs)),
        *(_tensor_errors(run, name, runs) for run, name in zip(runs, names_of(runs), strict=True)),
    ):
        if chart is not None:
            parts.append(_section(heading, chart))
    if any(run.settings for run in runs):
        parts.append(_section("Settings", _settings(runs)))
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    return _PAGE.substitute(title=escape(title), body="\n".join(parts))


def _section(heading: str, content: str) -> str:
    return f'<section>\n<h2>{escape(heading)}</h2>\n<div class="wide">{content}</div>\n</section>'


def _tensor_errors(run: RunFolder, name: str, runs: Sequence[RunFolder]) -> tuple[str, str | None]:
    of_run = f", {name}" if len(runs) > 1 else ""
    return f"Error by tensor and step{of_run}", tensor_errors_chart(run)


def _results(runs: Sequence[RunFolder]) -> str:
    """A row for each run, which also explains the colours of curves; without columns that no run fills."""
    specs = [spec_of(run) for run in runs]
    # A label may be the spec already.
    with_specs = any(spec not in (None, run.label) for spec, run in zip(specs, runs, strict=True))
    rows = [_numbers(run) for run in runs]
    filled = [name for name in rows[0] if any(row[name] != _NONE for row in rows)]
    lines = [_row(("run", *(["compression"] if with_specs else []), *filled), "th")]
    for index, (run, row) in enumerate(zip(runs, rows, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        key = f'<span class="key" style="background:{colour}"></span>'
        spec = f"<td>{escape(specs[index] or _NONE)}</td>" if with_specs else ""
        numbers = "".join(f'<td class="number">{escape(row[name])}</td>' for name in filled)
        lines.append(f"<tr><td>{key}{escape(run.label)}</td>{spec}{numbers}</tr>")
    note = (
        "<p>Bytes are those that a rank hands to the engine, a mean over the steps, and times fewer than "
        "those of its gradients in float32; time is a median, "
        "of whole steps in training, of exchanges in a profile alone.</p>"
    )
    return f"<table>{''.join(lines)}</table>{note}"


_NONE = "-"
"""The text of a number that a run does not have."""


def _numbers(run: RunFolder) -> dict[str, str]:
    """The numbers of a run's row, by column."""
    last = run.epochs[-1] if run.epochs else {}
    sent, seconds = bytes_of_step(run), seconds_of_step(run)
    return {
        "ranks": str(run.facts.get("world_size", _NONE)),
        "steps": f"{last_step(run):,}",
        "accuracy": _number(last.get("accuracy"), ".4f"),
        "test bits": _number(last.get("test_bits"), ".4f"),
        "kB a step": _number(None if sent is None else sent / 1e3, ",.1f"),
        "times fewer": _number(times_fewer_bytes(run), ",.1f"),
        "ms a step": _number(None if seconds is None else seconds * 1e3, ",.1f"),
    }


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None else format(value, form)


def _settings(runs: Sequence[RunFolder]) -> str:
    """Settings side by side; rows with values that differ are marked."""
    settings = [run.settings for run in runs]
    keys = list(dict.fromkeys(key for settings_of_run in settings for key in settings_of_run))
    rows = [_row(("setting", *names_of(runs)), "th")]
    for key in keys:
        values = [settings_of_run.get(key, "") for settings_of_run in settings]
        known = {
            value
            for value, settings_of_run in zip(values, settings, strict=True)
            if settings_of_run
        }
        rows.append(_row((key, *values), "td", differs=len(known) > 1))
    return f"<table>{''.join(rows)}</table>"


def _row(cells: Sequence[str], tag: str, *, differs: bool = False) -> str:
    inside = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f'<tr class="differs">{inside}</tr>' if differs else f"<tr>{inside}</tr>"
