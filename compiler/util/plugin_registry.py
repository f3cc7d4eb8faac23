"""Classes by name: those of this project, those that installed packages add, and those of the user's own modules."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from compiler.util.references import is_reference, load_reference
from compiler.util.user_code_errors import guarded
from hw.errors import InputError, WorkError, shown

T = TypeVar("T")
_Result = TypeVar("_Result")


class Registry(Mapping[str, type[T]]):
    """Plug-ins of one kind by name. A class is imported when it is asked for, not before.

    Iteration gives the names of this project in the order of registration, then those of entry points by name.

    Parameters
    ----------
    what : str
        What the classes are, for error messages, such as "search method".
    group : str
        Group of entry points by which installed packages add names. A name of this project stays this project's.
    base : str
        `module:Class` that every class must be a subclass of.
    guard : str
        `module:function` that takes a plug-in's class and a title for messages, and returns a subclass of it whose
        failures are InputErrors that begin with the title.
    classes : dict of str to str
        `module:Class` of each class of this project, by name.
    """

    def __init__(self, what: str, group: str, base: str, guard: str, classes: Mapping[str, str]):
        self.what, self.group = what, group
        self._base, self._guard, self._classes = base, guard, dict(classes)

    def __iter__(self) -> Iterator[str]:
        yield from self._classes
        yield from sorted({each.name for each in self._entry_points()} - self._classes.keys())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in tuple(self)

    def __getitem__(self, name: str) -> type[T]:
        if name in self._classes:
            return _object(self._classes[name])
        found = [each for each in self._entry_points() if each.name == name]
        if not found:
            raise KeyError(name)
        return self._of_package(name, found)

    def resolve(self, given: object) -> type[T]:
        """The class that a user asked for.

        Parameters
        ----------
        given : str or class
            A name of this registry, `module:Class` of the user's own, or the class itself.

        Raises
        ------
        InputError
            There is no such class, it cannot be imported, or it is no subclass of the right base.
        """
        if isinstance(given, type):
            return self._guarded(given, f"{self.what} {given.__module__}:{given.__qualname__}")
        if isinstance(given, str) and given in self:
            return self[given]
        if not isinstance(given, str) or not is_reference(given):
            raise InputError(
                f"a {self.what} must be one of {', '.join(self)} or module:Class, not {shown(given)}"
            )
        return self._guarded(load_reference(given, "classes"), f"{self.what} {given}")

    def _entry_points(self) -> list[EntryPoint]:
        return list(entry_points(group=self.group))

    def _of_package(self, name: str, found: list[EntryPoint]) -> type[T]:
        values = sorted({each.value for each in found})
        if len(values) > 1:
            raise InputError(f"{self.what} {name}: several installed packages add it: {', '.join(values)}")
        title = f"{self.what} {name} ({values[0]})"
        with redirect_stdout(sys.stderr):  # standard output is for results
            value = guarded(found[0].load, f"{title} cannot be imported")
        return self._guarded(value, title)

    def _guarded(self, value: Any, title: str) -> type[T]:
        base = _object(self._base)
        if not isinstance(value, type) or not issubclass(value, base):
            raise InputError(
                f"{title} must be a subclass of {base.__module__}.{base.__name__}, not {shown(value)}"
            )
        if missing := sorted(getattr(value, "__abstractmethods__", ())):
            raise InputError(f"{title} must define {', '.join(missing)}")
        own = value.__module__.partition(".")[0] == __name__.partition(".")[0]
        guard = _passed if own else _object(self._guard)
        return guard(value, title)


def _passed(kind: Any, _title: str) -> Any:
    """A class of this project, whose failures are defects and keep their traceback."""
    return kind


def blamed(work: Callable[[], _Result], title: str, doing: str) -> _Result:
    """The result of a plug-in's code, whose failure is an InputError that names the plug-in.

    Parameters
    ----------
    work : callable
        Calls the plug-in.
    title : str
        Name of the plug-in, with which the message begins.
    doing : str
        The method that is called.

    Raises
    ------
    InputError
        The plug-in raised something other than a WorkError.
    """
    start = f"{title}: {doing} failed"
    try:
        with redirect_stdout(sys.stderr):
            return guarded(work, start)
    except WorkError:
        raise
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(title) else f"{start}: {text}") from error


def _object(reference: str) -> Any:
    """An object of this project."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
