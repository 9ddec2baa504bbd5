"""The protocol of jobs.store.table and of the wave's commit as a small machine, and every order of its steps.

Each actor is a row of steps; a state of the world is a value, and `reachable` walks through all of them: every order in
which the actors can take their steps, every answer lost, every request that arrives late, every crash. Invariants
are checked in each state: also the result of `rebuild-state` if the tables were lost just then, and that every offset
that was ever committed is still in a file. In some walks the tables are lost, at any moment, and `rebuild-state`
is an actor like the others: what it takes unasked must be what stood. `Rule` leaves out one of the protocol's rules at
a time: the walk finds what it is for.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.errors import ConflictError
from lastkey.jobs.store import table, writing
from lastkey.jobs.store.paths import CHECKPOINTS
from lastkey.jobs.store.tables import open_state
from tests.builders.stores import make_commit, run_id

pytestmark = pytest.mark.slow

Act = Callable[[], None]


class Rule(Enum):
    """Rule that the protocol could leave out."""

    NO_RETRY_INSIDE = "a stale version is refused, never replayed on the head"
    SEARCH = "after an error the versions above are searched for our own id"
    REMEMBER = "every id that was tried on this head counts as ours"
    COMPARE = "our partitions are where we planned on"
    PENDING = "what may still arrive is not called a conflict"
    MARK = "vacuum puts a version that names what it deletes"
    LOOK = "a run looks for marks since it began, on the head that it commits on"
    LOOK_BACK = "a rollback looks for all marks on record: what it brings back was made long ago"
    ONE_VERSION = "a reader takes all partitions from one version"
    GROW = "a rollback makes a new generation"
    COMMITTED = "a folder says that it was committed, and counts only then"
    ABOVE = "one above it that does not say so is a question"
    RANGES = "vacuum keeps what the current chain has not read"
    NOT_LOST = "a run begins nothing where the tables are lost"
    GOES_ON = "a run commits on no table that is older than what it has read"
    LOCK = "rebuild-state waits for a vacuum that is at work"
    QUIET = "no commit on the lost tables is under way when they are made again: the user ends runs first"
    ON_TOP = "what the user chooses comes back above all others"


ALL = frozenset(Rule)


@dataclass(frozen=True)
class Entry:
    """A version of the table."""

    actor: str
    attempt: int
    moves: tuple[tuple[int, str, str], ...] = ()  # partition, run before, run after
    gone: frozenset[str] = frozenset()  # folders that a vacuum names
    asked: frozenset[int] = frozenset()  # by a rebuild: partitions that it asked about


@dataclass(frozen=True)
class Made:
    """The folder of a run, of one partition: what its manifest says."""

    run: str
    partition: int
    number: int
    uses: str  # the run whose files it uses: itself, but for a rollback
    covers: frozenset[int]  # offsets; a chain has read what its last generation covers, since nothing expires here


@dataclass(frozen=True)
class Sent:
    """A commit that was sent and may still arrive."""

    version: int
    entry: Entry


@dataclass(frozen=True)
class Writer:
    """A run with one wave, or a rollback. `said`: nothing yet, done, conflict, or dead."""

    name: str
    partitions: tuple[int, ...]
    back_to: str = ""  # the run whose generation a rollback brings back
    step: str = "begin"
    began: int = -1
    planned: tuple[str, ...] = ()
    head: int = -1
    newest: int = -1  # version that was seen
    rebuilt: bool = False  # the table that it read last was rebuilt after a loss
    base: int = -1  # head of the last attempt
    attempt: int = 0
    said: str = ""

    def new(self, rules: frozenset[Rule]) -> str:
        """Return the run that is current after the commit."""
        return self.name if Rule.GROW in rules else self.back_to or self.name


@dataclass(frozen=True)
class Reader:
    """A restore of all partitions: it asks the table, and then takes files."""

    name: str = "r"
    step: str = "look"
    seen: tuple[tuple[int, str], ...] = ()  # run of each partition
    said: str = ""


@dataclass(frozen=True)
class Vacuum:
    """Deletes the folders that no current generation uses when it looks, and whose offsets the current one's chain has
    read; the grace is none.
    """

    name: str = "v"
    step: str = "look"
    head: int = -1
    attempt: int = 0
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Rebuild:
    """Finds the tables lost, and makes them again; the user answers its questions in every way. step: lose, for one
    before whose eyes that happens.
    """

    name: str = "z"
    step: str = "lose"
    counts: tuple[tuple[int, str, bool], ...] = ()  # partition, run, whether the user chose it
    attempt: int = 0
    said: str = ""


Actor = Writer | Vacuum | Reader | Rebuild


@dataclass(frozen=True)
class World:
    """State of the model."""

    log: tuple[Entry, ...]
    files: frozenset[str]
    made: frozenset[Made]
    said: frozenset[str]  # runs whose folder says that it was committed
    lost: frozenset[int]  # offsets that the archive does not hold any more
    sent: frozenset[Sent]
    actors: tuple[Actor, ...]
    faults: int  # lost answers and crashes that may still happen
    past: tuple[Entry, ...] = ()  # the table that was lost

    @property
    def is_lost(self) -> bool:
        """True if the table is lost."""
        return bool(self.past) and not self.log


def current(log: tuple[Entry, ...]) -> dict[int, str]:
    """Return the run of each partition's generation; "" before the first."""
    now: dict[int, str] = {}
    for entry in log:
        now |= {partition: after for partition, _, after in entry.moves}
    return now


def folder(world: World, run: str, partition: int) -> Made:
    """Return a run's folder; for "" one that covers nothing."""
    generations = (one for one in world.made if (one.run, one.partition) == (run, partition))
    return next(generations, Made("", partition, 0, "", frozenset()))


def write(world: World, w: Writer) -> World:
    """Write the folders of a run, with all that it reads, or of a rollback, with a manifest alone."""
    made = set(world.made)
    for partition, planned in zip(w.partitions, w.planned, strict=True):
        before, old = folder(world, planned, partition), folder(world, w.back_to, partition)
        more = next(n for n in range(1, 99) if n not in before.covers | world.lost)
        uses, covers = (old.uses, old.covers) if w.back_to else (w.name, before.covers | {more})
        made.add(Made(w.name, partition, before.number + 1, uses, covers))
    return replace(world, files=world.files | {w.name}, made=frozenset(made))


def used(world: World, runs: Collection[str]) -> set[str]:
    """Return the folders that generations need: their own, and those of the generations that they go back to."""
    return {*runs} | {one.uses for one in world.made if one.run in runs}


def rebuilt(world: World, partition: int, rules: frozenset[Rule]) -> str | None:
    """Return the run that counts if the tables are lost now; None: a question."""
    existing = candidates(world, partition)
    confirmed = [one for one in existing if one.run in world.said or Rule.COMMITTED not in rules]
    top = max(confirmed, key=lambda one: one.number, default=None)
    if top is None or (Rule.ABOVE in rules and any(one.number > top.number for one in existing)):
        return None
    return top.run if top.uses in world.files else None


def candidates(world: World, partition: int) -> list[Made]:
    """Return the folders of a partition that are there."""
    return [one for one in world.made if one.partition == partition and one.run in world.files]


def put(world: World, version: int, entry: Entry, rules: frozenset[Rule]) -> tuple[World, bool]:
    """Put a version if there is none: (the world, whether it was). Where the version below it is lost, it counts for
    nothing.
    """
    if version > len(world.log) and world.past:
        return world, False
    if version < len(world.log):
        if Rule.NO_RETRY_INSIDE in rules:
            return world, False
        version = len(world.log)  # an append with retries
    assert version == len(world.log)
    return replace(world, log=(*world.log, entry)), True


def steps(world: World, rules: frozenset[Rule]) -> Iterator[World]:
    """Yield every world that one step leads to."""
    for request in world.sent:  # late requests arrive, or never do
        left = replace(world, sent=world.sent - {request})
        yield put(left, request.version, request.entry, rules)[0] if request.version <= len(world.log) else left
        yield left
    for i, actor in enumerate(world.actors):
        for after, changed in taken(world, actor, rules):
            yield replace(after, actors=(*after.actors[:i], changed, *after.actors[i + 1 :]))
        if isinstance(actor, Reader):
            continue  # a reader may die unseen
        if world.faults and not getattr(actor, "said", "") and actor.step not in ("begin", "lose", "look", "done"):
            dead = replace(actor, step="done", **({} if isinstance(actor, Vacuum) else {"said": "dead"}))
            yield replace(world, faults=world.faults - 1, actors=(*world.actors[:i], dead, *world.actors[i + 1 :]))


def taken(world: World, actor: Actor, rules: frozenset[Rule]) -> Iterator[tuple[World, Actor]]:
    """Yield the worlds that an actor's next step may lead to."""
    if isinstance(actor, Writer):
        return writer(world, actor, rules)
    if isinstance(actor, Rebuild):
        return rebuild(world, actor, rules)
    return vacuum(world, actor, rules) if isinstance(actor, Vacuum) else reader(world, actor, rules)


def writer(world: World, w: Writer, rules: frozenset[Rule]) -> Iterator[tuple[World, Writer]]:
    """Take a writer's step: begin -> write -> read -> check -> put -> (search -> read ...) -> done."""
    now, end = current(world.log), len(world.log) - 1
    if w.step == "begin":
        planned = tuple(now.get(partition, "") for partition in w.partitions)
        existing = all(
            folder(world, planned, p).uses != w.back_to for p, planned in zip(w.partitions, planned, strict=True)
        )
        lost = world.is_lost and Rule.NOT_LOST in rules
        if not lost and (not w.back_to or (w.back_to in world.files and existing)):
            since = -1 if w.back_to and Rule.LOOK_BACK in rules else end
            yield world, replace(w, step="write", began=since, planned=planned, newest=end)
        else:
            yield world, replace(w, step="done", said="nothing")
    elif w.step == "write":
        yield write(world, w) if w.new(rules) == w.name else world, replace(w, step="read")
    elif w.step == "read":
        yield world, read(world, w, rules)
    elif w.step == "check":
        log = world.log if w.rebuilt == bool(world.past) else world.past
        at_head = current(log[: w.head + 1])
        if w.name not in w.planned and all(at_head.get(partition) == w.name for partition in w.partitions):
            yield world, replace(w, step="say")  # a rebuild took it for committed
            return
        moved = tuple(at_head.get(partition, "") for partition in w.partitions) != w.planned
        needs = used(world, {w.new(rules)})
        marked = any(needs & entry.gone for entry in log[w.began + 1 : w.head + 1])
        refused = (moved and Rule.COMPARE in rules) or (marked and Rule.LOOK in rules) or not needs <= world.files
        if not refused:
            healed = replace(world, said=world.said | {*w.planned} - {""})
            yield healed, replace(w, step="put", attempt=w.attempt + 1, base=w.head)
        for failing in (world,) if refused else (replace(world, faults=world.faults - 1),) if world.faults else ():
            made = w.attempt and found_by(w, world, rules)
            pending = w.attempt and end == w.base and Rule.PENDING in rules
            outcome = "unsure" if pending else "conflict"
            yield failing, replace(w, step="say") if made else replace(w, step="done", said=outcome)
    elif w.step == "put":
        moves = tuple((p, before, w.new(rules)) for p, before in zip(w.partitions, w.planned, strict=True))
        entry = Entry(w.name, w.attempt, moves)
        after, landed = put(world, w.head + 1, entry, rules)
        yield after, replace(w, step="say") if landed else replace(w, step="search")
        if world.faults:
            lost = replace(world, faults=world.faults - 1)
            yield replace(put(lost, w.head + 1, entry, rules)[0]), replace(w, step="search")  # made, the answer lost
            yield replace(lost, sent=lost.sent | {Sent(w.head + 1, entry)}), replace(w, step="search")  # late, or never
    elif w.step == "search":
        if found_by(w, world, rules):
            yield world, replace(w, step="say")
        elif w.attempt < 3:
            yield world, read(world, w, rules)
        else:
            yield world, replace(w, step="done", said="unsure")
    elif w.step == "say":
        yield replace(world, said=world.said | {w.new(rules)}), replace(w, step="done", said="done")


def read(world: World, w: Writer, rules: frozenset[Rule]) -> Writer:
    """Read the head."""
    end = len(world.log) - 1
    if end < w.newest and Rule.GOES_ON in rules:
        return replace(w, step="done", said="lost")
    return replace(w, step="check", head=end, newest=end, rebuilt=bool(world.past))


def found_by(w: Writer, world: World, rules: frozenset[Rule]) -> bool:
    """Return whether a commit of the writer's is in the log, as far as it looks."""
    mine = range(w.attempt + 1) if Rule.REMEMBER in rules else {w.attempt}
    return Rule.SEARCH in rules and any(e.actor == w.name and e.attempt in mine for e in world.log[w.base + 1 :])


def vacuum(world: World, v: Vacuum, rules: frozenset[Rule]) -> Iterator[tuple[World, Vacuum]]:
    """Take a vacuum's step: look -> mark -> delete; a commit between look and mark makes it look again."""
    if world.is_lost and v.step != "delete":
        yield world, replace(v, step="done")
    elif v.step == "look":
        now = current(world.log)
        unread = {
            one.run
            for one in world.made
            if one.covers - folder(world, now.get(one.partition, ""), one.partition).covers
        }
        kept = {*now.values()} | (unread if Rule.RANGES in rules else set())
        removed = world.files - used(world, kept)
        healed = replace(world, said=world.said | {*now.values()})
        yield healed, replace(v, step="mark" if Rule.MARK in rules else "delete", head=len(world.log) - 1, gone=removed)
    elif v.step == "mark":
        after, landed = put(world, v.head + 1, Entry(v.name, v.attempt, gone=v.gone), rules)
        yield after, replace(v, step="delete" if landed else "look")
    elif v.step == "delete":
        yield replace(world, files=world.files - v.gone), replace(v, step="done")


def reader(world: World, r: Reader, rules: frozenset[Rule]) -> Iterator[tuple[World, Reader]]:
    """Take a reader's step: look -> take -> done; without its rule it looks at one partition after the other."""
    now = tuple(sorted(current(world.log).items()))
    if r.step == "look" and world.is_lost:
        yield world, replace(r, step="done", said="nothing")
    elif r.step == "look":
        seen = now if Rule.ONE_VERSION in rules else (*r.seen, *now[len(r.seen) : len(r.seen) + 1])
        yield world, replace(r, step="take" if len(seen) >= len(now) else "look", seen=seen)
    elif r.step == "take":
        whole = used(world, {run for _, run in r.seen}) <= world.files
        yield world, replace(r, step="done", said="done" if whole else "gone")


def rebuild(world: World, r: Rebuild, rules: frozenset[Rule]) -> Iterator[tuple[World, Rebuild]]:
    """Take a rebuild's step: lose -> look -> write -> put -> (search -> put ...) -> say -> done."""
    if r.step == "lose":
        if not world.past:
            yield replace(world, past=world.log, log=()), replace(r, step="look")
    elif r.step == "look":
        busy = any(isinstance(actor, Vacuum) and actor.step in ("mark", "delete") for actor in world.actors)
        if world.is_lost and not (busy and Rule.LOCK in rules):
            for counts in answers(world, rules):
                yield world, replace(r, step="write", counts=counts)
    elif r.step == "write":
        made, counts = set(world.made), []
        for partition, run, chosen in r.counts:
            one, numbers = folder(world, run, partition), [one.number for one in candidates(world, partition)]
            is_top = one.number == max(numbers) and numbers.count(one.number) == 1
            if chosen and not is_top and Rule.ON_TOP in rules:
                made.add(Made(r.name, partition, max(numbers) + 1, one.uses, one.covers))
                counts.append((partition, r.name, chosen))
            else:
                counts.append((partition, run, chosen))
        files = world.files | {run for _, run, _ in counts if run == r.name}
        yield replace(world, files=files, made=frozenset(made)), replace(r, step="put", counts=tuple(counts))
    elif r.step == "put":
        if world.log:
            yield world, replace(r, step="done", said="conflict")
        elif not (has_pending_commits(world) and Rule.QUIET in rules):
            moves = tuple((partition, "", run) for partition, run, _ in r.counts)
            chosen_partitions = frozenset(partition for partition, _, chosen in r.counts if chosen)
            entry = Entry(r.name, r.attempt, moves, asked=chosen_partitions)
            tried = replace(r, step="search", attempt=r.attempt + 1)
            yield put(world, 0, entry, rules)[0], replace(r, step="say")
            if world.faults:
                lost = replace(world, faults=world.faults - 1)
                yield put(lost, 0, entry, rules)[0], tried  # made, the answer lost
                yield replace(lost, sent=lost.sent | {Sent(0, entry)}), tried  # late, or never
    elif r.step == "search":
        if any(entry.actor == r.name for entry in world.log):
            yield world, replace(r, step="say")
        else:
            yield world, replace(r, step="put") if r.attempt < 2 else replace(r, step="done", said="unsure")
    elif r.step == "say":
        yield replace(world, said=world.said | {run for _, run, _ in r.counts}), replace(r, step="done", said="done")


def answers(world: World, rules: frozenset[Rule]) -> Iterator[tuple[tuple[int, str, bool], ...]]:
    """Yield what counts: (partition, run, whether the user chose it); of a question every answer."""
    each = []
    for partition in sorted({one.partition for one in world.made}):
        sure, existing = rebuilt(world, partition, rules), candidates(world, partition)
        whole = [(partition, one.run, True) for one in existing if one.uses in world.files]
        each.append(whole if sure is None else [(partition, sure, False)])
    return itertools.product(*each)


def has_pending_commits(world: World) -> bool:
    """Return whether a commit on the lost table may still come."""
    rebuilds = {actor.name for actor in world.actors if isinstance(actor, Rebuild)}
    return any(request.entry.actor not in rebuilds for request in world.sent) or any(
        isinstance(actor, Writer) and actor.step in ("check", "put") and not actor.rebuilt for actor in world.actors
    )


def wrong(world: World, rules: frozenset[Rule]) -> str:
    """Return the fault of a world; "" if it has none."""
    for log in (world.past, world.log):
        now: dict[int, str] = {}
        for entry in log:
            for partition, before, after in entry.moves:
                if (problem := now.get(partition, "")) != before:
                    return f"{entry.actor} moved partition {partition} from {before!r}, but it was at {problem!r}"
                now[partition] = after
    if world.past and world.log:
        first, stood = world.log[0], current(world.past)
        if not any(isinstance(actor, Rebuild) and actor.name == first.actor for actor in world.actors):
            return f"{first.actor} started over where the tables were lost"
        for partition, _, run in first.moves:
            if partition not in first.asked and run != stood.get(partition):
                return f"{first.actor} took {run} for {stood.get(partition)}, unasked"
        if left := stood.keys() - {partition for partition, _, _ in first.moves}:
            return f"{first.actor} left out partitions {left}"
    now = current(world.log or world.past)
    if lost := used(world, {*now.values()}) - world.files:
        return f"files of {lost} are gone, and a generation names them"
    entries = (*world.past, *world.log)
    committed = {run for entry in entries for _, _, run in entry.moves}
    for partition, run in now.items():
        if (problem := rebuilt(world, partition, rules)) not in (run, None):
            return f"rebuild-state would take {problem} for {run}"
        mine = [one for one in world.made if one.partition == partition and one.run in committed]
        left = [one.covers for one in mine if {one.run, one.uses} <= world.files]
        if removed := frozenset[int]().union(*(one.covers for one in mine)).difference(*left):
            return f"offsets {set(removed)} of partition {partition} were committed, and are in no file"
    for actor in world.actors:
        if isinstance(actor, Reader) and actor.said == "done":
            ever = [current(log[: n + 1]) for log in (world.past, world.log) for n in range(len(log))]
            if dict(actor.seen) not in ever:
                return f"{actor.name} restored {dict(actor.seen)}, which never was"
        if isinstance(actor, Writer):
            made = sum(entry.actor == actor.name for entry in entries)
            if made > 1:
                return f"{actor.name} committed {made} times"
            if actor.said == "done" and actor.new(rules) not in committed:
                return f"{actor.name} said done, and is not in the log"
            if actor.said == "conflict" and any(entry.actor == actor.name for entry in world.log):
                return f"{actor.name} said conflict, and is in the log"
    return ""


def reachable(first: World, rules: frozenset[Rule]) -> tuple[int, str]:
    """Return the number of worlds, and what is wrong with the first bad one."""
    seen, todo = {first}, [first]
    while todo:
        world = todo.pop()
        if problem := wrong(world, rules):
            return len(seen), problem
        for after in steps(world, rules):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen), ""


def world(*actors: Actor, faults: int, lost: Collection[int] = ()) -> World:
    """Return a store with one generation of partition 0; for a rollback two generations of two partitions. lost:
    offsets that the archive has lost since.
    """
    log: tuple[Entry, ...] = (Entry("x", 0, ((0, "", "x"),)),)
    if any((isinstance(actor, Writer) and actor.back_to) or isinstance(actor, Reader) for actor in actors):
        log = (Entry("x", 0, ((0, "", "x"), (1, "", "x"))), Entry("y", 0, ((0, "x", "y"), (1, "x", "y"))))
    made = {
        Made(entry.actor, partition, n, entry.actor, frozenset(range(1, n + 1)))
        for n, entry in enumerate(log, 1)
        for partition, _, _ in entry.moves
    }
    runs = frozenset(entry.actor for entry in log)
    return World(log, runs, frozenset(made), runs, frozenset(lost), frozenset(), actors, faults)


SAME = (Writer("a", (0,)), Writer("b", (0,)))
APART = (Writer("a", (0,)), Writer("b", (1,)))
BACK = Writer("k", (0, 1), back_to="x")
FORWARD = Writer("f", (0, 1), back_to="y")
BOTH = Writer("a", (0, 1))
AGAIN = Rebuild("q", "look")
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
        pytest.param(world(BACK, BOTH, faults=2), id="rollback and driver"),
        pytest.param(world(BACK, replace(BACK, name="l"), faults=2), id="two rollbacks"),
        pytest.param(world(BACK, Vacuum(), faults=2), id="rollback and vacuum"),
        pytest.param(world(BACK, BOTH, Vacuum(), faults=1), id="rollback, driver and vacuum"),
        pytest.param(world(BACK, BOTH, Vacuum(), faults=1, lost={2}), id="rollback, driver with a gap and vacuum"),
        pytest.param(world(BACK, FORWARD, Vacuum(), faults=1), id="rollback, forward again and vacuum"),
        pytest.param(world(Reader(), BOTH, Vacuum(), faults=1), id="restore, driver and vacuum"),
        pytest.param(world(Reader(), BACK, Vacuum(), faults=1), id="restore, rollback and vacuum"),
        pytest.param(world(*SAME, Rebuild(), faults=1), id="same and rebuild"),
        pytest.param(world(Writer("a", (0,)), Rebuild(), AGAIN, faults=1), id="driver and two rebuilds"),
        pytest.param(world(BACK, Vacuum(), Rebuild(), faults=1), id="rollback, vacuum and rebuild"),
        pytest.param(world(BACK, BOTH, Rebuild(), faults=0), id="rollback, driver and rebuild"),
        pytest.param(world(Reader(), BOTH, Rebuild(), faults=1), id="restore, driver and rebuild"),
        pytest.param(world(BOTH, Vacuum(), Rebuild(), faults=1, lost={2}), id="driver with a gap, vacuum and rebuild"),
    ],
)
def test_no_interleaving_reaches_an_invalid_state(first: World) -> None:
    n, invalid = reachable(first, ALL)
    assert invalid == ""
    assert n > 50, "a walk that goes nowhere"


NEEDING = (  # the small ones first
    (BACK, Vacuum()),
    (BACK,),
    (Reader(), BOTH),
    (Writer("a", (0,)), Rebuild()),
    (Writer("b", (1,)), Rebuild()),
    SAME,
    APART,
    (BACK, Vacuum(), Rebuild()),
    (*SAME, Vacuum()),
)


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
        ({Rule.LOOK_BACK}, "are gone"),
        ({Rule.ONE_VERSION}, "which never was"),
        ({Rule.GROW}, "rebuild-state would take y for x"),
        ({Rule.COMMITTED}, "rebuild-state would take k for y"),
        ({Rule.ABOVE}, "rebuild-state would take y for k"),
        ({Rule.RANGES}, "are in no file"),
        ({Rule.NOT_LOST}, "started over"),
        ({Rule.GOES_ON}, "started over"),
        ({Rule.LOCK}, "are gone"),
        ({Rule.QUIET}, "moved partition"),
        ({Rule.ON_TOP}, "rebuild-state would take a for x"),
    ],
)
def test_removing_any_rule_reaches_an_invalid_state(left_out: set[Rule], expected: str) -> None:
    invalid = (reachable(world(*actors, faults=2), ALL - left_out)[1] for actors in NEEDING)
    assert any(expected in each for each in invalid)


# -- whether the product's steps are the model's


def model_steps(rival: Writer) -> set[tuple[str, ...]]:
    """Return every row of steps (check, put, search) of a run beside a rival, and the run's last word on each."""
    first = world(Writer("a", (0,)), rival, faults=2)
    ended: set[tuple[str, ...]] = set()
    seen, todo = {(first, ())}, [(first, ())]
    while todo:
        at, steps_so_far = todo.pop()
        before = at.actors[0]
        assert isinstance(before, Writer)
        if before.step == "done":
            ended.add((*steps_so_far, before.said))
            continue
        for after in steps(at, ALL):
            took = after.actors[0].step != before.step and before.step in ("check", "put", "search")
            now = (after, (*steps_so_far, before.step) if took else steps_so_far)
            if now not in seen:
                seen.add(now)
                todo.append(now)
    return ended


class Steps:
    """Steps of `jobs.store.table` for one commit. before: what happens before each put; after: behind it."""

    def __init__(self, patch: pytest.MonkeyPatch, before: Sequence[Act] = (), after: Sequence[Act] = ()) -> None:
        self.taken: list[str] = []
        self.before, self.after = list(before), list(after)
        real_commit, real_search = table._commit, table._search

        def commit(*given: Any) -> None:
            of_wave = given[0].name == CHECKPOINTS
            if of_wave:
                self.taken.append("put")
            if of_wave and self.before:
                self.before.pop(0)()
            real_commit(*given)
            if of_wave and self.after:
                self.after.pop(0)()

        def search(version: Any, now: Any, tried: Any) -> int | None:
            if version.name == CHECKPOINTS and self.taken[-1] == "put":  # else it belongs to the check
                self.taken.append("search")
            return real_search(version, now, tried)

        def swap(root: Any, name: str, schema: Any, plan: Any, at: Any = None) -> int:
            def checked(version: Any) -> Any:
                if name == CHECKPOINTS:
                    self.taken.append("check")
                return plan(version)

            return real_swap(root, name, schema, checked, at)

        real_swap = table.swap
        patch.setattr(table, "_commit", commit)
        patch.setattr(table, "_search", search)
        patch.setattr(table, "swap", swap)


def lose() -> None:
    raise OSError(errno.EIO, "the answer is lost")


@pytest.mark.parametrize("case", ["alone", "lost", "never made", "never made, then lost", "rival", "beaten"])
def test_product_performs_the_steps_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """A commit beside another's, by `writing.commit_wave`: each row of steps, and its end, is one of the walk's."""
    writing.commit_wave(open_state(str(tmp_path)), [make_commit(0, 1, run_id(1)), make_commit(1, 1, run_id(1, 1))])
    state = open_state(str(tmp_path))
    state.checkpoints()
    rival = 0 if case == "beaten" else 1

    def other() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(table, "_commit", real_commit)
            patch.setattr(table, "swap", real_swap)
            new = make_commit(rival, 2, run_id(2, 5), run_id(1, rival))
            writing.commit_wave(open_state(str(tmp_path)), [new])

    real_commit, real_swap = table._commit, table.swap
    before: dict[str, list[Act]] = {
        "never made": [lose], "never made, then lost": [lose], "rival": [other], "beaten": [other],
    }  # fmt: skip
    after: dict[str, list[Act]] = {"lost": [lose], "never made, then lost": [lose]}
    steps_taken = Steps(monkeypatch, before.get(case, ()), after.get(case, ()))
    try:
        writing.commit_wave(state, [make_commit(0, 2, run_id(2), run_id(1))])
        outcome = "done"
    except ConflictError:
        outcome = "conflict"
    assert (outcome == "conflict") == (case == "beaten")
    assert (*steps_taken.taken, outcome) in model_steps(Writer("b", (rival,)))


@pytest.mark.parametrize("how", ["moved", "emptied"])
def test_commit_after_lost_tables_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """As in `put`: the folder of an uncommitted run must not contain `committed`, because rebuild-state would accept it
    without --choose.
    """
    writing.commit_wave(open_state(str(tmp_path)), [make_commit(0, 1, run_id(1))])
    state, new = open_state(str(tmp_path)), make_commit(0, 2, run_id(2), run_id(1))
    folder = tmp_path / new.checkpoint.own_folder
    folder.mkdir(parents=True)
    state.checkpoints()

    def lose_tables() -> None:
        if how == "moved":
            (tmp_path / "state").rename(tmp_path / "moved")
        else:
            for path in (tmp_path / "state" / CHECKPOINTS / "_delta_log").iterdir():
                path.unlink()

    Steps(monkeypatch, before=[lose_tables])
    with pytest.raises(ConflictError, match="expected version 0, which was there, or a later one, found no table"):
        writing.commit_wave(state, [new])
    assert list(folder.iterdir()) == []
