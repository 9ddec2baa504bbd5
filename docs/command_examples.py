"""Examples of each command, for its reference page. `tests/test_docs.py` runs those of EXAMPLES, in this order."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final = {
    "compact": (
        "compact examples/archive --store work/store --config examples/topics.toml --dry-run",
        "compact examples/archive --store work/store --config examples/topics.toml",
        "compact examples/archive --store work/store --topics 'users*,orders' --cleanup-policy compact"
        " --sealed --dry-run",
        "compact examples/archive --store work/store --topics '*' --exclude '__*,clicks' --cleanup-policy compact"
        " --dry-run",
    ),
    "policies": ("policies examples/topics-described.txt --output work/policies.toml",),
    "archive-needed": (
        "archive-needed examples/archive --store work/store",
        "archive-needed examples/archive --store work/store --topics users --format paths",
    ),
    "verify": ("verify examples/archive", "verify --store work/store"),
    "reindex": (
        "reindex examples/archive --check",
        "reindex examples/archive --output work/indexes --topics 'users*' --partition 0-1",
    ),
    "convert": ("convert examples/archive --to v3 --output work/archive-v3",),
    "merge": ("merge examples/replicas --layout replicas --output work/merged", "verify work/merged"),
    "export": ("export examples/archive --format parquet --output work/parquet",),
    "restore": ("restore --store work/store --output work/restored", "verify work/restored"),
    "runs": ("runs --store work/store",),
    "rollback": ("rollback --store work/store --generation 1 --dry-run",),
    "rebuild-state": ("rebuild-state --store work/store --dry-run",),
    "erase": ("erase --store work/store --key user-000058 --hmac-key examples/topics.toml --dry-run",),
    "vacuum": ("vacuum --store work/store --dry-run",),
    "pack": ("pack work/lastkey.tar.gz --replace",),
    "lookup": (
        "lookup examples/archive --partition orders-0 --offset 100 --time 2026-11-21T02:30Z --time latest",
        "lookup examples/archive --sizing",
        "lookup examples/archive --store work/store --at 2026-11-21T02:30Z",
    ),
    "report": ("report examples/archive --config examples/topics.toml --output work/report.html",),
    "audit keys": ("audit keys examples/archive --audits work/audits",),
    "audit delivery": ("audit delivery examples/archive --deliveries examples/deliveries.csv --audits work/audits",),
    "audit mirror": ("audit mirror examples/archive examples/archive --audits work/audits",),
    "audit failover": (
        "audit failover examples/archive examples/archive --group shop --committed examples/committed.csv"
        " --audits work/audits",
    ),
    "inspect": (
        "inspect examples/archive/orders-0 --print data --offset ..2",
        "inspect examples/archive --topics users --json --print mismatches",
    ),
}
NOT_RUN: Final = {  # they need a broker: tests/kafka/test_replay.py runs its own
    "replay": (
        "replay examples/archive --bootstrap-server localhost:9092",
        "replay examples/archive --topics orders --bootstrap-server localhost:9092 --rename '(.*)=restored.\\1'",
    ),
    "export": (
        "export --store work/store --format ndjson --output work/lines",
        "export examples/archive --topics users --format delta --latest --output work/latest",
    ),
}
