"""Maker of the pictures of runs by yield, each light and dark: `python -m docs.yield_pictures`, one minute.

yield-io: I/O for each new byte against space used, by `tests.bench.simulate_yields`. yield-segments: the segments of a
store after 20 nightly runs of the job on skewed updates, with their dead records by filters and by count.
Each store draws the secret of its filters, so that one making differs from another by a few records.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from docs.make_pictures import HERE, THEMES, WIDTH, Colours, Drawing
from lastkey.jobs.store.tables import open_state
from tests.bench.bench_yields import begun, run_job
from tests.bench.simulate_yields import DRAWS, RATIOS, SEED, broker, ours

Curve = Sequence[tuple[float, float]]  # space for each live byte, I/O for each new byte; rising by space
SHOWN = ("skewed", "uniform")
MIN_YIELD = 0.2
MOST_SPACE, LEAST_IO, MOST_IO = 1.5, 2.0, 50.0
DASHES = ("6 4", "2 3", "")  # dashes of the curves, in order


@dataclass(frozen=True)
class AgedSegment:
    """Segment of a generation, with its dead records."""

    base_offset: int
    records: int
    expected_dead: int  # by filters
    dead: int  # by count


def curves(keys: int = 100_000) -> dict[str, dict[str, Curve]]:
    """Return the curves, by their names, for each kind of updates."""
    out: dict[str, dict[str, Curve]] = {}
    for name in SHOWN:
        by_yield = [ours(DRAWS[name], keys, ratio, MIN_YIELD) for ratio in RATIOS]
        out[name] = {
            "the broker's rule, checked": [(space, io) for space, io in broker(DRAWS[name], keys).tolist()],
            "Kafka's cleaner": [(space, io) for space, io in broker(DRAWS[name], keys, kafka=True).tolist()],
            "by yield": sorted((found.space, found.io) for found in by_yield),
        }
    return out


def aged_segments(keys: int = 50_000, nights: int = 20) -> list[AgedSegment]:
    """Run the job night after night, and return the last generation's segments, the oldest first."""
    draw = DRAWS["skewed"](np.random.default_rng(SEED), keys)
    last, end = np.arange(keys), keys  # the offset of each key's last record
    with tempfile.TemporaryDirectory() as folder:
        store, given = Path(folder) / "store", {"compaction.schedule": "yield", "min.cleanable.dirty.ratio": 0.0}
        log, _, settings = begun(Path(folder), keys, 80, given)
        for night in range(1, nights + 1):
            new = draw()
            log.append(new)
            last[new] = np.arange(end, end + len(new))
            end += len(new)
            run_job(log, store, night, settings)
        _, manifests = open_state(str(store)).current()
        rows = [row for row in manifests["t", 0] if row.deduplicated_through >= 0 and row.records]
    live = [int(np.count_nonzero((last >= row.base_offset) & (last < row.next_offset))) for row in rows]
    return [AgedSegment(r.base_offset, r.records, r.superseded, r.records - n) for r, n in zip(rows, live, strict=True)]


def io_against_space(colours: Colours, simulated: Mapping[str, Mapping[str, Curve]]) -> str:
    """Draw a panel for each kind of updates."""
    d = Drawing(colours, "I/O for each new byte against space used: the broker's rule and runs by yield")
    wide, tall, top = 410.0, 260.0, 44.0
    for i, (name, of) in enumerate(simulated.items()):
        left = 46.0 + i * (wide + 60)
        d.text(left, top - 16, f"{name} updates", size=14)
        for io in (2, 5, 10, 20, 50):
            y = top + tall * (1 - _height(io))
            d.line(left, y, left + wide, y, dashed=io != LEAST_IO)
            d.text(left - 8, y + 4, str(io), size=11, faint=True, anchor="end")
        for tenth in range(10, round(10 * MOST_SPACE) + 1):
            d.text(
                left + wide * _along(tenth / 10),
                top + tall + 18,
                f"{tenth / 10:g}",
                size=11,
                faint=True,
                anchor="middle",
            )
        for n, (said, curve) in enumerate(of.items()):
            shown = [(left + wide * _along(s), top + tall * (1 - _height(io))) for s, io in curve if s <= MOST_SPACE]
            _polyline(d, shown, dash=DASHES[n])
            _polyline(d, [(left + wide - 190 + 12 * k, top + 14 + 18 * n) for k in range(3)], dash=DASHES[n])
            d.text(left + wide - 158, top + 18 + 18 * n, said, size=12)
    y = top + tall + 40
    d.text(46, y, "across: bytes stored for each live byte, the mean over 60 nights", size=12, faint=True)
    d.text(WIDTH - 12, y, "up: bytes read and written for each new byte", size=12, faint=True, anchor="end")
    return d.svg(int(y) + 14)


def segments_by_age(colours: Colours, segments: Sequence[AgedSegment]) -> str:
    """Draw the dead share of each segment, by filters and by count."""
    d = Drawing(colours, "Segments of a store by age, with their dead records by filters and by count")
    left, tall, top = 52.0, 190.0, 40.0
    step = (WIDTH - left - 12) / max(len(segments), 1)
    most = max(0.05, *(max(s.expected_dead, s.dead) / max(s.records, 1) for s in segments))
    for part in range(5):
        share = most * part / 4
        y = top + tall * (1 - part / 4)
        d.line(left, y, WIDTH - 12, y, dashed=part > 0)
        d.text(left - 8, y + 4, f"{100 * share:.0f} %", size=11, faint=True, anchor="end")
    for i, s in enumerate(segments):
        for at, dead, fill in ((0.08, s.expected_dead, colours.plain), (0.5, s.dead, colours.gone)):
            height = tall * dead / max(s.records, 1) / most
            d.box(left + (i + at) * step, top + tall - height, 0.42 * step, height, fill)
    d.text(left, top + tall + 18, f"oldest: offset {segments[0].base_offset:,}", size=11, faint=True)
    d.text(
        WIDTH - 12, top + tall + 18, f"newest: offset {segments[-1].base_offset:,}", size=11, faint=True, anchor="end"
    )
    expected, dead, records = (sum(getattr(s, n) for s in segments) for n in ("expected_dead", "dead", "records"))
    for x, fill, said in (
        (left, colours.plain, f"dead by filters: {expected:,} of {records:,} records"),
        (left + 330, colours.gone, f"dead by count: {dead:,}"),
    ):
        d.box(x, 12, 22, 14, fill)
        d.text(x + 30, 24, said, size=12)
    return d.svg(int(top + tall) + 32)


def _along(space: float) -> float:
    return (space - 1) / (MOST_SPACE - 1)


def _height(io: float) -> float:
    return math.log(min(max(io, LEAST_IO), MOST_IO) / LEAST_IO) / math.log(MOST_IO / LEAST_IO)


def _polyline(d: Drawing, points: Curve, *, dash: str) -> None:
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    colour = d.colours.faint if dash else d.colours.ink
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    d.parts.append(f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>')


def main() -> None:
    """Write all pictures."""
    of_io, of_age = curves(), aged_segments()
    for theme, colours in THEMES.items():
        (HERE / f"yield-io-{theme}.svg").write_text(io_against_space(colours, of_io), encoding="utf-8")
        (HERE / f"yield-segments-{theme}.svg").write_text(segments_by_age(colours, of_age), encoding="utf-8")


if __name__ == "__main__":
    main()
