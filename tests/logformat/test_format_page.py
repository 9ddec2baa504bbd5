"""FORMAT.md and layout.py agree: every table of the page is the dtype whose name precedes it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from lastkey.logformat import layout

PAGE = (Path(layout.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")
DTYPES = {name: value for name, value in vars(layout).items() if isinstance(value, np.dtype)}
FIELD = re.compile(r"^\| (\d+) \| ([iu]\d+) \| `(\w+)` \|", re.MULTILINE)


@pytest.mark.parametrize("name", DTYPES)
def test_every_field_is_on_the_page(name):
    for field in DTYPES[name].names:
        assert f"`{field}`" in PAGE


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "BATCH"])
def test_tables_of_the_page_equal_the_layout(name):
    """The first table after the dtype's name, field by field: position, type, order."""
    start = PAGE.index(f"`{name}`")
    table = re.search(r"\| at \| type \|.*?(?=\n\n)", PAGE[start:], re.DOTALL)
    assert table is not None
    dtype = DTYPES[name]
    kinds = {name: field[0] for name, field in dtype.fields.items()}
    assert [(int(at), kind, field) for at, kind, field in FIELD.findall(table.group())] == [
        (layout.field_offset(dtype, field), f"{kinds[field].kind}{8 * kinds[field].itemsize}", field)
        for field in dtype.names
    ]


def test_page_has_masks_and_sizes_of_the_layout():
    for mask in ("CODEC", "TIMESTAMP_TYPE", "TRANSACTIONAL", "CONTROL", "DELETE_HORIZON"):
        assert f"0x{getattr(layout, mask + '_MASK'):02x}" in PAGE
    for i, codec in enumerate(layout.CODEC_NAMES):
        assert f"{i} {codec}" in PAGE
    assert f"{layout.BATCH_OVERHEAD} bytes" in PAGE
    assert f"{layout.END_TXN_MARKER_SIZE} bytes" in PAGE
