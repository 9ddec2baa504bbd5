"""Plans of tests, by the names of the fields of all their parts."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from lastkey.udfs.compact.plan import CleanPolicy, LastGeneration, PartitionInput, PartitionPlan, RunContext

T = TypeVar("T")
_PARTS: Final = {"input": PartitionInput, "policy": CleanPolicy, "run": RunContext}
_GENERATION: Final = {f"known_{f.name}": f.name for f in fields(LastGeneration)}  # known_gaps is generation.gaps


def changed(of: T, **values: Any) -> T:
    """Return a plan with other values of its parts' fields; anything else as `replace` does."""
    if not isinstance(of, PartitionPlan):
        return replace(of, **values)  # type: ignore[type-var]
    return replace(of, **{name: replace(getattr(of, name), **of_part) for name, of_part in _by_part(values).items()})


def made_plan(given: PartitionInput | None = None, **values: Any) -> PartitionPlan:
    """Return a plan. given: its input, whose fields `values` may change."""
    parts = _by_part(values)
    of_input = parts.pop("input", {})
    made = PartitionInput(**of_input) if given is None else replace(given, **of_input)
    return PartitionPlan(made, CleanPolicy(**parts["policy"]), RunContext(**parts["run"]))


def _by_part(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    generation = {_GENERATION[name]: value for name, value in values.items() if name in _GENERATION}
    values = {name: value for name, value in values.items() if name not in _GENERATION}
    if generation:
        values["generation"] = LastGeneration(**generation)
    parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        [part] = [part for part, kind in _PARTS.items() if name in {f.name for f in fields(kind)}]
        parts.setdefault(part, {})[name] = value
    return parts
