"""Reference pages of the site, made from declarations at build time: no page of these is in the repository.

`pages()` returns path below docs -> Markdown. A link that begins with / is relative to docs.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from docs import data_source_options, json_fields, report_schemas, troubleshooting
from docs.command_examples import EXAMPLES, NOT_RUN
from docs.option_tables import EVERY, advanced_options_table, options_table, settings_table
from docs.tables import table
from lastkey.jobs.command import ending
from lastkey.jobs.command.functions import COMMANDS, Command
from lastkey.jobs.compact.needed import WHY
from lastkey.jobs.store import audits, paths, rows
from lastkey.udfs.audit.delivery import DELIVERIES
from lastkey.udfs.audit.entries import ENTRIES
from lastkey.udfs.audit.keys import AUDIT_KEYS
from lastkey.udfs.audit.tables import PAIRS
from lastkey.udfs.lookup.minutes import TIME_INDEX_ROWS

ROOT: Final = Path(__file__).resolve().parent.parent
_SOURCES: Final = ("jobs/store/rows.py", "jobs/store/audits.py")


def pages() -> dict[str, str]:
    """Return every generated page."""
    schemas = report_schemas.schemas()
    commands = {_path(name): command_page(name, command, schemas) for name, command in COMMANDS.items()}
    return commands | {
        "reference/commands/index.md": commands_page(),
        "reference/settings.md": settings_page(),
        "reference/json.md": json_page(),
        "reference/tables.md": tables_page(),
        "reference/errors.md": errors_page(),
        "reference/exit-codes.md": exit_codes_page(),
        "reference/metrics.md": metrics_page(),
        "reference/data-source-options.md": data_source_page(),
        "internals/tree.md": tree_page(),
    }


def _path(name: str) -> str:
    return f"reference/commands/{name.replace(' ', '-')}.md"


def commands_page() -> str:
    """Return the list of commands, and the options that each has."""
    listed = (
        (f"[{name}](/{_path(name)})", " ".join(command.doc.partition("\n\n")[0].split()))
        for name, command in COMMANDS.items()
    )
    return "\n\n".join(
        [
            "# Commands",
            "`lastkey [options of Spark] COMMAND ARGUMENTS`, or `./spark-submit.sh` in place of `lastkey` in a "
            "checkout. [The command line](/reference/command-line.md) has the rules that all commands share: paths, "
            "topics, engines, options of Spark.",
            table(("command", ""), listed),
            "## Options of every command",
            "`pack` reads no log: it takes no `--config`, and no option that names topics.",
            options_table(EVERY),
        ]
    )


def command_page(name: str, command: Command, schemas: Mapping[str, Any]) -> str:
    """Return the page of a command: usage, examples, options, details, fields of its report."""
    arguments = [value for value in command.values if value.argument]
    usage = " ".join(
        [f"lastkey {name}", *(f"{v.metavar}..." if v.kind.repeats else v.metavar for v in arguments), "[options]"]
    )
    first, _, details = command.doc.partition("\n\n")
    out = [f"# {name}", first, f"```\n{usage}\n```"]
    examples = "\n".join(f"./spark-submit.sh {line}" for line in (*EXAMPLES.get(name, ()), *NOT_RUN.get(name, ())))
    out += [f"```sh\n{examples}\n```"] if examples else []
    out += ["## Options", options_table(name)]
    advanced = advanced_options_table(name)
    out += ["### Advanced", advanced] if advanced else []
    out += ["[Options of every command](/reference/commands/index.md#options-of-every-command), such as `--topics` and "
            "`--json`, come in addition."]  # fmt: skip
    out += ["## Details", details] if details else []
    out += ["## Python", f"```python\n{_signature(name, command)}\n```"]
    out += ["## JSON", _json_page(name.partition(" ")[0], schemas)]
    return "\n\n".join(out)


def _signature(name: str, command: Command) -> str:
    """Return the call of a command's function: arguments by position, then keywords."""
    signature = inspect.signature(command.function)
    by_position = [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    keywords = [
        p.name if p.default is p.empty else f"{p.name}={p.default!r}"
        for p in signature.parameters.values()
        if p.kind is p.KEYWORD_ONLY
    ]
    audit = name.startswith("audit ")
    called = f'audit("{name[6:]}", ' if audit else f"{name.replace('-', '_')}("
    report = str(signature.return_annotation).rpartition(".")[2]
    call = f"lastkey.{called}{', '.join([*by_position, *keywords])}) -> {report}"
    return textwrap.fill(call, 100, break_long_words=False, break_on_hyphens=False, subsequent_indent="    ")


def _json_page(job: str, schemas: Mapping[str, Any]) -> str:
    """Return the table of the fields that a report has of its own."""
    if job not in schemas:
        return "The lines themselves; see [JSON reports](/reference/json.md)."
    meanings = json_fields.FIELDS.get(job, {})
    kinds = schemas[job].get("anyOf", [schemas[job]])
    own: dict[str, Any] = {}
    for kind in kinds:
        own |= {name: of for name, of in kind["properties"].items() if name not in json_fields.EVERY}
    own = {name: of for top, schema in own.items() for name, of in ((top, schema), *_inner(top, schema))}
    listed = [(f"`{name}`", _type(of), meanings.get(name, "")) for name, of in own.items()]
    listed += [(f"`{name}`", "", text) for name, text in meanings.items() if name not in own]
    intro = (
        f"Schema: [schemas/{job}.json](/../schemas/{job}.json). [Every report](/reference/json.md) has further fields."
    )
    return f"{intro}\n\n{table(('field', 'type', 'meaning'), listed)}"


def _inner(name: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of the entries of a list, with the list's name in front."""
    for kind in schema.get("anyOf", [schema]):
        items = kind.get("items", {})
        for entry in items.get("anyOf", [items]):
            yield from ((f"{name}.{field}", of) for field, of in entry.get("properties", {}).items())


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = (kind for one in schema["anyOf"] for kind in _type(one).split(" or "))
        return " or ".join(dict.fromkeys(filter(None, kinds)))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {inner}" if (inner := _type(schema.get("items", {}))) else "array"
    if isinstance(kinds := schema.get("type", ""), list):
        return " or ".join(kinds)
    return str(kinds)


def json_page() -> str:
    """Return the page about fields of every report, and about terms in reports."""
    every = ((f"`{name}`", text) for name, text in json_fields.EVERY.items())
    why = ((f"`{name}`", text) for name, text in WHY.items())
    held_back = ((f"`{name}`", text) for name, text in json_fields.HELD_BACK.items())
    return "\n\n".join(
        [
            "# JSON reports",
            "With `--json` a command prints one JSON object; `inspect` prints a line for each object. The page of a "
            "[command](/reference/commands/index.md) lists its own fields, and `schemas/` in the checkout has a JSON "
            "schema for each. A report has every partition, also those that the text leaves out.",
            table(("field", "meaning"), every),
            'An error that ends a job is `{"error": {"kind", "exit_code", "message", "hint", "path", '
            '"position", "expected", "found"}}`; [Errors](/reference/errors.md) lists the kinds.',
            "## archive_needed_because",
            "Kinds of reasons of `compact` and `archive-needed`, the worst first. A partition appears under its first "
            "reason; `archive-needed` lists all of them under `because`. `anchor` is no reason to keep the archive as "
            "a whole.",
            table(("kind", "the archive is needed because"), why),
            "## held_back",
            "Rules that hold a partition back, of `compact` and `verify`. The text has a line `not due:` or "
            "`held back:` for each.",
            table(("rule", "meaning"), held_back),
        ]
    )


def settings_page() -> str:
    """Return the page of all settings."""
    return "\n\n".join(
        [
            "# Settings",
            "A settings file is TOML; every command takes one with `--config FILE`, and `--set NAME=VALUE` overrides a "
            "setting for one run. Names are Kafka's; quote them, because they contain dots. An unknown name fails and "
            "suggests the nearest one.",
            '```toml\n[defaults]\n"delete.retention.ms" = 172800000\n\n[topics."orders-*"]      # a glob; an exact '
            'name wins, then the later glob\n"cleanup.policy" = "compact"\n\n'
            '[job]\n"task.memory.bytes" = 2147483648\n```',
            "Start with [conf/topics.example.toml](/../conf/topics.example.toml), or let "
            "[policies](/reference/commands/policies.md) write the file. [conf/cleaner.toml](/../conf/cleaner.toml) "
            "has every setting at its default, with unit and range. A table `[made]`, which `policies` writes, tells "
            "which state of the cluster the file shows; it sets nothing.",
            "## Settings that change the result",
            '`[defaults]`, and `[topics."GLOB"]` for some topics:',
            settings_table("defaults"),
            "## Settings that change only speed and memory",
            "`[job]`:",
            settings_table("job"),
        ]
    )


def tables_page() -> str:
    """Return the page of the tables of a store and of audits."""
    kinds: dict[str, pa.Schema] = {
        paths.CHECKPOINTS: rows.checkpoint_schema(),
        paths.STATES: rows.arrow_schema(rows.PartitionState),
        paths.RUNS: rows.run_schema(),
        paths.TIME_INDEX: TIME_INDEX_ROWS,
        paths.AUDIT_READS: rows.arrow_schema(audits.AuditRead),
        paths.AUDIT_ENTRIES: ENTRIES,
        paths.AUDIT_KEYS: AUDIT_KEYS,
        paths.AUDIT_DELIVERIES: DELIVERIES,
        paths.AUDIT_PAIRS: PAIRS,
    }
    comments = _comments()
    out = [
        "# Tables of a store",
        "Delta tables below `STORE/state`. [The store](/../jobs/store/STORE.md#tables) explains what each is for, and "
        'which one decides. Read them with `spark.read.format("delta").load("STORE/state/cleaner_runs")`. '
        "[Audits](/reference/audits.md) explains the tables `audit_*`.",
    ]
    for name, schema in kinds.items():
        listed = ((f"`{f.name}`", f"`{_short(f.type)}`", comments.get(rows.field_name(f.name), "")) for f in schema)
        out += [f"## {name}", table(("column", "type", "meaning"), listed)]
    return "\n\n".join(out)


def _short(kind: pa.DataType) -> str:
    """Return a type as text; of a list of structs, the names of the fields."""
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        return f"list of ({', '.join(field.name for field in kind.value_type)})"
    return str(kind).replace("int64", "long").replace("int32", "int")


def _comments() -> dict[str, str]:
    """Return field -> comment on its line, of the dataclasses that declare the columns."""
    found: dict[str, str] = {}
    for source in _SOURCES:
        for token in tokenize.generate_tokens(StringIO((ROOT / source).read_text(encoding="utf-8")).readline):
            field = re.match(r"    (\w+): ", token.line)
            if token.type == tokenize.COMMENT and field:
                found.setdefault(field[1], token.string.lstrip("# "))
    return found


def errors_page() -> str:
    """Return the page of problems and errors with their remedies."""
    notes = ((message, text) for message, text in troubleshooting.NOTES.items())
    return "\n\n".join(
        [
            "# Errors and problems",
            "An error names the path, the position, what was expected and what was found. "
            "[A partition is uncleanable](/how-to/uncleanable.md) explains how to proceed.",
            "## Problems in data",
            "The partition keeps its generation, the other partitions are processed, and the exit code is 3. The "
            "message names the partition, `uncleanable` and the kind, which JSON has as `kind`.",
            troubleshooting.problems(),
            "## Errors that end a job",
            "With `--json` the kind is `error.kind`.",
            troubleshooting.stops(),
            "## Notes and other messages",
            table(("message", "cause, and what to do"), notes),
        ]
    )


def exit_codes_page() -> str:
    """Return the page of exit codes."""
    listed = (
        (str(code), f"`{name}`" if name else "", text) for code, (name, text) in troubleshooting.EXIT_CODES.items()
    )
    outcomes = ((f"`{name}`", text) for name, text in json_fields.OUTCOMES.items())
    return "\n\n".join(
        [
            "# Exit codes",
            table(("code", "name", "meaning"), listed),
            "The last line of a report says how the run ended. In `runs` the same is the outcome:",
            table(("outcome", "meaning"), outcomes),
        ]
    )


def metrics_page() -> str:
    """Return the page of metrics and notifications."""
    listed = ((f"`{name}`", text) for name, text in ending.FAMILIES.items())
    return "\n\n".join(
        [
            "# Metrics and notifications",
            "`--metrics-file FILE` of `compact`, `verify`, `reindex`, `restore`, `erase` and `vacuum` writes metrics "
            "at the end of a run, however it ends. The text follows OpenMetrics and Prometheus' own format. The file "
            "is replaced atomically, as node_exporter's textfile collector requires; give each job a file of its own "
            "whose name ends with `.prom`. A file that does not begin with `# TYPE lastkey_` is never replaced (exit "
            "code 2). `runs --format openmetrics` prints the metrics of the newest `compact`, `rollback` and `vacuum` "
            "from the store.",
            table(("metric", ""), listed),
            "Labels: `command`, and `archive` and `store` as they were typed. All metrics are gauges of the last run. "
            f"`{ending.LAST_SUCCESS}` keeps its value after a failure, and is absent until a run succeeds. The "
            "lag comes from names and sizes of files: a segment that is cleaned in part counts as a whole, so an "
            "active segment always counts; offsets count up to the high watermark, or else to the base offset of the "
            "last segment. Bytes and records are those of partitions with a new generation; other jobs count what they "
            "have.",
            "`--notify URL` posts a summary as JSON, at most 64 KiB: `command archive store exit_code error host "
            "version started_ms ended_ms figures problems notes` (up to 20 lines of the last two). It waits at most 10 "
            "s, follows no redirect, and uses the proxy of `http_proxy` or `https_proxy`. Messages show only scheme, "
            "host and port of the URL. A failure to write or post is a note on stderr and does not change the exit "
            "code. A wrong command line is neither written nor posted.",
            "[examples/monitoring](/../examples/monitoring/README.md) has alert rules and a dashboard.",
        ]
    )


def data_source_page() -> str:
    """Return the page of the options of the data sources."""
    listed = ((name_in_code(names), default, text) for names, (default, text) in data_source_options.TEXTS.items())
    return "\n\n".join(
        [
            "# Options of the data sources",
            "Options of `kafka_log`, `kafka_log_batches` and `kafka_log_index`; names are not case sensitive. An "
            "unknown option, value or topic fails and suggests the nearest one. [Read an archive with Spark]"
            "(/reference/data-source.md) explains what they do together.",
            table(("option", "default", ""), listed),
        ]
    )


def tree_page() -> str:
    """Return the map of the tree: every package and module with the first line of its docstring."""
    out = ["# The tree", "Every package and module, with the first line of its docstring."]
    for room in ("logformat", "udfs", "jobs"):
        files = sorted(
            (ROOT / room).rglob("*.py"), key=lambda path: (path.parent, path.name != "__init__.py", path.name)
        )
        listed = ((f"`{path.relative_to(ROOT)}`".replace("/__init__.py", "/"), _first_line(path)) for path in files)
        out += [f"## {room}", table(("", ""), (cells for cells in listed if cells[1]))]
    return "\n\n".join(out)


def _first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def name_in_code(names: str) -> str:
    """Return names with commas between as code."""
    return ", ".join(f"`{name}`" for name in names.split(", "))
