"""The protocol of jobs.store.table and of the wave's commit as a small machine, and every order of its steps.

Each actor is a row of steps; a state of the world is a value, and `reachable` walks through all of them: every order in
which the actors can take their steps, every answer lost, every request that arrives late, every crash. What must hold
is asked of each state. `Rule` leaves out one of the protocol's rules at a time: the walk finds what it is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import pytest


class Rule(Enum):
    """What the protocol could leave out."""

    NO_RETRY_INSIDE = "a stale version is refused, never replayed on the head"
    SEARCH = "after an error the versions above are searched for our own id"
    REMEMBER = "every id that was tried on this head counts as ours"
    COMPARE = "our partitions are where we planned on"
    PENDING = "what may still arrive is not called a conflict"
    MARK = "vacuum puts a version that names what it deletes"
    LOOK = "a run looks for marks since it began, on the head that it commits on"


ALL = frozenset(Rule)


@dataclass(frozen=True)
class Entry:
    """A version of the table."""

    actor: str
    attempt: int
    moves: tuple[tuple[int, str, str], ...] = ()  # partition, run before, run after
    gone: frozenset[str] = frozenset()  # folders that a vacuum names


@dataclass(frozen=True)
class Sent:
    """A commit that was sent and may still arrive."""

    version: int
    entry: Entry


@dataclass(frozen=True)
class Writer:
    """A run with one wave. `said`: nothing yet, done, conflict, or dead."""

    name: str
    partitions: tuple[int, ...]
    step: str = "begin"
    began: int = -1
    planned: tuple[str, ...] = ()
    head: int = -1
    base: int = -1  # head of the last attempt
    attempt: int = 0
    said: str = ""


@dataclass(frozen=True)
class Vacuum:
    """Deletes the folders of runs that are in no current generation when it looks; the grace is none."""

    name: str = "v"
    step: str = "look"
    head: int = -1
    attempt: int = 0
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True)
class World:
    """All that there is."""

    log: tuple[Entry, ...]
    files: frozenset[str]
    sent: frozenset[Sent]
    actors: tuple[Writer | Vacuum, ...]
    faults: int  # lost answers and crashes that may still happen


def current(log: tuple[Entry, ...]) -> dict[int, str]:
    """The run of each partition's generation; "" before the first."""
    now: dict[int, str] = {}
    for entry in log:
        now |= {partition: after for partition, _, after in entry.moves}
    return now


def put(world: World, version: int, entry: Entry, rules: frozenset[Rule]) -> tuple[World, bool]:
    """Put a version if there is none: (the world, whether it was)."""
    if version < len(world.log):
        if Rule.NO_RETRY_INSIDE in rules:
            return world, False
        version = len(world.log)  # what an append with retries does
    assert version == len(world.log)
    return replace(world, log=(*world.log, entry)), True


def steps(world: World, rules: frozenset[Rule]) -> Iterator[World]:
    """Every world that one step leads to."""
    for request in world.sent:  # late requests arrive, or never do
        left = replace(world, sent=world.sent - {request})
        yield put(left, request.version, request.entry, rules)[0] if request.version <= len(world.log) else left
        yield left
    for i, actor in enumerate(world.actors):
        for after, changed in (writer if isinstance(actor, Writer) else vacuum)(world, actor, rules):
            yield replace(after, actors=(*after.actors[:i], changed, *after.actors[i + 1 :]))
        if world.faults and not getattr(actor, "said", "") and actor.step not in ("begin", "look", "done"):
            dead = replace(actor, step="done", **({"said": "dead"} if isinstance(actor, Writer) else {}))
            yield replace(world, faults=world.faults - 1, actors=(*world.actors[:i], dead, *world.actors[i + 1 :]))


def writer(world: World, w: Writer, rules: frozenset[Rule]) -> Iterator[tuple[World, Writer]]:
    """begin -> write -> read -> check -> put -> (search -> read ...) -> done."""
    now, end = current(world.log), len(world.log) - 1
    if w.step == "begin":
        planned = tuple(now.get(partition, "") for partition in w.partitions)
        yield world, replace(w, step="write", began=end, planned=planned)
    elif w.step == "write":
        yield replace(world, files=world.files | {w.name}), replace(w, step="read")
    elif w.step == "read":
        yield world, replace(w, step="check", head=end)
    elif w.step == "check":
        at_head = current(world.log[: w.head + 1])
        moved = tuple(at_head.get(partition, "") for partition in w.partitions) != w.planned
        marked = any(w.name in entry.gone for entry in world.log[w.began + 1 : w.head + 1])
        refused = (moved and Rule.COMPARE in rules) or (marked and Rule.LOOK in rules) or w.name not in world.files
        if not refused:
            yield world, replace(w, step="put", attempt=w.attempt + 1, base=w.head)
        for failing in (world,) if refused else (replace(world, faults=world.faults - 1),) if world.faults else ():
            made = w.attempt and found_by(w, world, rules)
            pending = w.attempt and end == w.base and Rule.PENDING in rules
            yield failing, replace(w, step="done", said="done" if made else "unsure" if pending else "conflict")
    elif w.step == "put":
        moves = tuple((p, before, w.name) for p, before in zip(w.partitions, w.planned, strict=True))
        entry = Entry(w.name, w.attempt, moves)
        after, landed = put(world, w.head + 1, entry, rules)
        yield after, replace(w, step="done", said="done") if landed else replace(w, step="search")
        if world.faults:
            lost = replace(world, faults=world.faults - 1)
            yield replace(put(lost, w.head + 1, entry, rules)[0]), replace(w, step="search")  # made, the answer lost
            yield replace(lost, sent=lost.sent | {Sent(w.head + 1, entry)}), replace(w, step="search")  # late, or never
    elif w.step == "search":
        if found_by(w, world, rules):
            yield world, replace(w, step="done", said="done")
        elif w.attempt < 3:
            yield world, replace(w, step="check", head=end)
        else:
            yield world, replace(w, step="done", said="unsure")


def found_by(w: Writer, world: World, rules: frozenset[Rule]) -> bool:
    """Whether a commit of the writer's is in the log, as far as it looks."""
    mine = range(w.attempt + 1) if Rule.REMEMBER in rules else {w.attempt}
    return Rule.SEARCH in rules and any(e.actor == w.name and e.attempt in mine for e in world.log[w.base + 1 :])


def vacuum(world: World, v: Vacuum, rules: frozenset[Rule]) -> Iterator[tuple[World, Vacuum]]:
    """look -> mark -> delete; whoever is first between look and mark makes it look again."""
    if v.step == "look":
        gone = world.files - set(current(world.log).values())
        yield world, replace(v, step="mark" if Rule.MARK in rules else "delete", head=len(world.log) - 1, gone=gone)
    elif v.step == "mark":
        after, landed = put(world, v.head + 1, Entry(v.name, v.attempt, gone=v.gone), rules)
        yield after, replace(v, step="delete" if landed else "look")
    elif v.step == "delete":
        yield replace(world, files=world.files - v.gone), replace(v, step="done")


def wrong(world: World) -> str:
    """What is wrong with a world; "": nothing."""
    now: dict[int, str] = {}
    for entry in world.log:
        for partition, before, after in entry.moves:
            if now.get(partition, "") != before:
                return (
                    f"{entry.actor} moved partition {partition} from {before!r}, but it was at {now.get(partition)!r}"
                )
            now[partition] = after
    if lost := set(now.values()) - world.files:
        return f"files of {lost} are gone, and a generation names them"
    for actor in world.actors:
        if isinstance(actor, Writer):
            made = sum(entry.actor == actor.name for entry in world.log)
            if made > 1:
                return f"{actor.name} committed {made} times"
            if actor.said == "done" and not made:
                return f"{actor.name} said done, and is not in the log"
            if actor.said == "conflict" and made:
                return f"{actor.name} said conflict, and is in the log"
    return ""


def reachable(first: World, rules: frozenset[Rule]) -> tuple[int, str]:
    """How many worlds there are, and what is wrong with the first bad one."""
    seen, todo = {first}, [first]
    while todo:
        world = todo.pop()
        if found := wrong(world):
            return len(seen), found
        for after in steps(world, rules):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen), ""


def world(*actors: Writer | Vacuum, faults: int) -> World:
    """A store with one generation of partition 0."""
    return World((Entry("x", 0, ((0, "", "x"),)),), frozenset({"x"}), frozenset(), actors, faults)


SAME = (Writer("a", (0,)), Writer("b", (0,)))
APART = (Writer("a", (0,)), Writer("b", (1,)))
OVERLAP = (Writer("a", (0, 1)), Writer("b", (1, 2)))


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(world(*SAME, faults=3), id="same"),
        pytest.param(world(*APART, faults=3), id="apart"),
        pytest.param(world(*OVERLAP, faults=2), id="overlap"),
        pytest.param(world(*SAME, Vacuum(), faults=1), id="same and vacuum"),
        pytest.param(world(*SAME, Vacuum(), faults=2), id="same and vacuum, two faults", marks=pytest.mark.slow),
        pytest.param(world(*APART, Vacuum(), faults=1), id="apart and vacuum"),
        pytest.param(world(Writer("a", (0,)), Writer("b", (0, 1)), Writer("c", (1,)), faults=1), id="three"),
    ],
)
def test_no_bad_world_can_be_reached(first: World) -> None:
    n, found = reachable(first, ALL)
    assert found == ""
    assert n > 100, "a walk that goes nowhere"


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        ({Rule.COMPARE}, "moved partition"),
        ({Rule.NO_RETRY_INSIDE}, "moved partition"),
        ({Rule.SEARCH}, "and is in the log"),
        ({Rule.REMEMBER}, "and is in the log"),
        ({Rule.PENDING}, "said conflict, and is in the log"),
        ({Rule.MARK}, "are gone"),
        ({Rule.LOOK}, "are gone"),
    ],
)
def test_each_rule_is_needed(left_out: set[Rule], expected: str) -> None:
    found = [reachable(world(*actors, faults=2), ALL - left_out)[1] for actors in (SAME, APART, (*SAME, Vacuum()))]
    assert any(expected in each for each in found), found
