"""BENCHMARKS.md against the results it is made from."""

from __future__ import annotations

from docs.make_pictures import HERE, THEMES
from tests.bench import matrix


def test_matrix_table_and_plots_show_the_results():
    rows = matrix.read(HERE / "benchmark.jsonl")
    assert len(rows) == len({row["name"] for row in rows}) > 40
    shown = matrix.PAGE.read_text().partition(matrix.BEGIN)[2].partition(matrix.END)[0]
    assert shown == matrix.tables(rows)
    for theme, colours in THEMES.items():
        assert (HERE / f"benchmark-{theme}.svg").read_text() == matrix.plot(colours, rows)
