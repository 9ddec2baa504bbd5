"""Declarations of options: a field of a dataclass states name, type, check, default, help and group of an option.

    @declared
    class VacuumOptions(TopicOptions):
        store: Value[Location, str] = option(LOCATION, "The store to clean up.", kw_only=False)
        dry_run: Flag = option(FLAG, "List what would be deleted; delete nothing.", default=False)

From it follow the command line (`click_options`), the Python function (`lastkey.jobs.api`), the reference page and the
man page (`docs.option_tables`, `docs.man_page`). A value is checked and converted where it is assigned. So the command
line and a program are refused the same values with the same words. Settings of a settings file are declared likewise
(`setting`). `Value[GIVEN, HELD]` is a descriptor: type checkers take GIVEN as the type of the argument and HELD as the
type of the attribute.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar, dataclass_transform, overload

from lastkey.jobs.errors import BAD_SETTING, UsageError

Given = TypeVar("Given")
Held = TypeVar("Held")
T = TypeVar("T")
Group = Literal["General", "Output", "Engine"]
GROUPS: Final[tuple[Group, ...]] = ("General", "Output", "Engine")  # in the order of the help
REQUIRED: Final = dataclasses.MISSING
_PLACES: Final = itertools.count()  # order of declarations in the source


@dataclass(frozen=True)
class ValueKind(Generic[Given, Held]):
    """Kind of values: how a given value is checked, and how the command line shows, reads and completes it."""

    check: Callable[[Value[Any, Any], object], Held]  # raises UsageError for a value, TypeError for a type
    metavar: str = ""
    allowed: str = ""  # values that it takes, for messages and pages
    from_text: Callable[[Value[Any, Any], str], object] = lambda _, text: text  # the typed word as a given value
    choices: tuple[str, ...] = ()
    completes: Literal["", "file", "dir"] = ""
    repeats: bool = False
    is_flag: bool = False


class Value(Generic[Given, Held]):
    """Declared option: a descriptor that checks what is assigned to it."""

    name = ""  # name of the field

    def __init__(self, kind: ValueKind[Given, Held], help: str, **declared: Any) -> None:  # noqa: A002 - click's name
        self.kind, self.help = kind, help
        self.default: Any = declared.get("default", REQUIRED)
        self.kw_only: bool = declared.get("kw_only", True)
        self.group: Group = declared.get("group", "General")
        self.rare: bool = declared.get("rare", False)
        self.note: str = declared.get("note", "")
        self.argument: bool = declared.get("argument", False)
        self.negative: bool = declared.get("negative", False)
        self.common: bool = declared.get("common", False)
        self.on_command_line: bool = declared.get("on_command_line", True)
        self.required: bool = declared.get("required", self.default is REQUIRED)
        self.metavar: str = declared.get("metavar") or kind.metavar
        self.place = next(_PLACES)
        self._flag: str = declared.get("flag", "")
        self._shown: str | None = declared.get("shown")

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, options: None, owner: type) -> Value[Given, Held]: ...
    @overload
    def __get__(self, options: object, owner: type) -> Held: ...
    def __get__(self, options: object | None, owner: type) -> Any:
        """Return the value; of the class: the declaration."""
        return self if options is None else options.__dict__[self.name]

    def __set__(self, options: object, value: Given) -> None:
        options.__dict__[self.name] = self.kind.check(self, value)

    @property
    def flag(self) -> str:
        """The long option, which messages name."""
        return self._flag or f"--{self.name.replace('_', '-')}"

    @property
    def shown_default(self) -> str:
        """The default as the help shows it; "" if the help shows none."""
        if self._shown is not None:
            return self._shown
        return "" if self.default in (REQUIRED, None, False, (), "") else str(self.default)

    def wrong(self, expected: str, found: object) -> UsageError:
        """Return the error for a value that the option does not take."""
        return UsageError(message=f"{self.flag}: expected {expected}, found {found}")

    def wrong_type(self, expected: str, found: object) -> Exception:
        """Return the error for a value of a type that the option does not take."""
        return TypeError(f"{self.name}: expected {expected}, found {found!r}")


class Setting(Value[Given, Held]):
    """Declared setting of a settings file."""

    @property
    def flag(self) -> str:
        """The name of the setting."""
        return self._flag or self.name.replace("_", ".")

    def wrong(self, expected: str, found: object) -> UsageError:
        """Return the error for a value that the setting does not take. Its reader knows the file and the table."""
        return BAD_SETTING(path="settings", table="a value", setting=self.flag, expected=expected, found=found)

    def wrong_type(self, expected: str, found: object) -> Exception:
        """Return the error for a value of another type: a file may hold any."""
        return self.wrong(expected, repr(found))


def option(
    kind: ValueKind[Given, Held],
    help: str,  # noqa: A002 - click's name
    *,
    default: Any = REQUIRED,
    kw_only: bool = True,
    **declared: Any,
) -> Value[Given, Held]:
    """Declare an option.

    help: one line. kw_only: False for an argument that programs give by position too. Others: group; rare: only
    --help-all lists it; flag: its name, if not that of the field; metavar; shown: the default as the help shows it;
    negative: a switch with a --no- form; common: an option of every command, which only the help of the program lists;
    on_command_line: False for programs alone; note: Markdown that the reference page has in addition.
    """
    return Value(kind, help, default=default, kw_only=kw_only, **declared)


def argument(
    kind: ValueKind[Given, Held],
    help: str,  # noqa: A002 - click's name
    *,
    default: Any = REQUIRED,
    kw_only: bool = False,
    **declared: Any,
) -> Value[Given, Held]:
    """Declare an argument of the command line. Write kw_only=False, for type checkers."""
    return Value(kind, help, default=default, kw_only=kw_only, argument=True, **declared)


def setting(
    kind: ValueKind[Given, Held],
    help: str,  # noqa: A002 - as of options
    *,
    default: Any,
    kw_only: bool = True,
    **declared: Any,
) -> Value[Given, Held]:
    """Declare a setting.

    help: one sentence, for the page; note: further text for conf/cleaner.toml; metavar: the unit; flag: its name, if
    not that of the field with dots.
    """
    return Setting(kind, help, default=default, kw_only=kw_only, **declared)


# No frozen_default: mypy would give inherited fields the type of the argument. Instances are frozen nevertheless
@dataclass_transform(kw_only_default=True, field_specifiers=(option, argument, setting))
def declared(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of a class with declared options or settings."""
    values = {name: value for name, value in vars(cls).items() if isinstance(value, Value)}
    for name, value in values.items():
        setattr(cls, name, dataclasses.field(default=value.default, kw_only=value.kw_only))
    declared_class = dataclass(frozen=True)(cls)
    for name, value in values.items():
        setattr(declared_class, name, value)
    return declared_class


def declared_values(options: type) -> list[Value[Any, Any]]:
    """Return the declared options of a class: arguments and required options first, then in the order of the source."""
    values_by_name: dict[str, Value[Any, Any]] = {}
    for cls in options.__mro__:
        values_by_name |= {
            name: v for name, v in vars(cls).items() if isinstance(v, Value) and name not in values_by_name
        }
    return sorted(values_by_name.values(), key=lambda v: (not v.argument, not v.required, v.place))
