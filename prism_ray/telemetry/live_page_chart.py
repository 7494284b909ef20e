"""A chart of the live page as SVG, drawn on the server. Pure; colours are the style sheet's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from markupsafe import Markup, escape

from prism_ray.telemetry.live_page_view import Chart, Span
from prism_ray.telemetry.live_page_words import seconds

WIDTH, HEIGHT = 600, 120
TOP, BOTTOM = 20, 116
"""Where the highest value and zero lie."""
TICKS = 5

NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


def svg(chart: Chart) -> Markup:
    """Each line as steps over time, broken where nothing was counted; newest at the right.

    As wide as there is room for; words are beside the drawing, so that they keep their size.
    """
    top_s = nice_top_s(max((v for s in chart.spans for v in s.values if v), default=0.0))
    lines = Markup("").join(
        Markup('<path class="line line{}" d="{}"/>').format(number, _path(chart, number, top_s))
        for number in reversed(range(len(chart.lines)))
    )
    return Markup(
        '<div class="plot"><svg viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" '
        'aria-label="{title}: {caption}">'
        '<path class="grid" d="M0 {top}H{w}M0 {mid}H{w}M0 {bottom}H{w}{ticks}"/>'
        '<path class="area" d="{area}"/>{lines}</svg>'
        '<span class="above">{top_s}</span><span class="half">{mid_s}</span>'
        '<span class="begin">{span} ago</span><span class="end">now</span></div>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        title=escape(chart.title),
        caption=escape(chart.caption),
        top=TOP,
        mid=(TOP + BOTTOM) // 2,
        bottom=BOTTOM,
        ticks="".join(f"M{WIDTH * n // TICKS} {BOTTOM - 4}V{BOTTOM}" for n in range(1, TICKS)),
        area=_area(chart, top_s),
        lines=lines,
        top_s=seconds(top_s),
        mid_s=seconds(top_s / 2),
        span=seconds(chart.span_s),
    )


def nice_top_s(most_s: float) -> float:
    """The least round number that is not below ``most_s``; 1 ms if there is nothing to draw."""
    if most_s <= 0.001:
        return 0.001
    unit = 0.001
    while unit * NICE[-1] < most_s:
        unit *= 10
    return next(unit * step for step in NICE if unit * step >= most_s or step == NICE[-1])


def _area(chart: Chart, top_s: float) -> str:
    """What lies below the first line."""
    parts = []
    for run in _runs(chart.spans, 0):
        right, left = (
            _x(run[-1][0].end_age_s, chart.span_s),
            _x(run[0][0].begin_age_s, chart.span_s),
        )
        parts.append(f"{_steps(run, chart.span_s, top_s)}L{right:.1f} {BOTTOM}H{left:.1f}Z")
    return "".join(parts)


def _path(chart: Chart, number: int, top_s: float) -> str:
    return "".join(_steps(run, chart.span_s, top_s) for run in _runs(chart.spans, number))


def _steps(run: list[tuple[Span, float]], span_s: float, top_s: float) -> str:
    parts = []
    for place, (span, value_s) in enumerate(run):
        y = BOTTOM - (BOTTOM - TOP) * min(1.0, value_s / top_s)
        begin, end = _x(span.begin_age_s, span_s), _x(span.end_age_s, span_s)
        parts.append(f"{'L' if place else 'M'}{begin:.1f} {y:.1f}H{end:.1f}")
    return "".join(parts)


def _runs(spans: tuple[Span, ...], number: int) -> Iterator[list[tuple[Span, float]]]:
    """Neighbouring steps that have a value."""
    for counted, group in groupby(spans, key=lambda span: span.values[number] is not None):
        if counted:
            yield [(span, span.values[number] or 0.0) for span in group]


def _x(age_s: float, span_s: float) -> float:
    return WIDTH * (1 - min(1.0, max(0.0, age_s / span_s)))
