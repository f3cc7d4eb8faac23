"""Registry of plug-ins by name, entry point or `module:Class`, and one-line error messages for failing user code."""

import importlib
import importlib.util
import logging
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from hw.errors import InputError, MlaError, Terminated, WorkError, shown

_REFERENCE = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")


def is_reference(text: str) -> bool:
    """Return True if a string has the form `module:object`."""
    return _REFERENCE.fullmatch(text) is not None


def load_reference(reference: str, kind: str) -> Any:
    """Import the object that a reference names.

    Parameters
    ----------
    reference : str
        `module:object`. As with `python -m`, the module is searched for in the current folder first.
    kind : str
        Plural noun for the expected objects in the error message: "functions" or "classes".

    Raises
    ------
    InputError
        The reference is malformed, the module cannot be imported, or the module has no such object.
    """
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise InputError(f"{shown(reference)} must have the form module:object")
    name, path = found.groups()
    with redirect_stdout(sys.stderr):  # standard output is for results
        module = _imported(name, reference)
    value: Any = module
    for part in path.split("."):
        if not hasattr(value, part):
            near = ", ".join(each for each in vars(module) if _own(module, each)) or "none"
            raise InputError(f"{reference}: {name} has no {shown(path)[1:-1]}; its {kind}: {near}")
        value = getattr(value, part)
    return value


def check_module(reference: str) -> None:
    """Raise InputError unless the module of a reference can be found, without importing the module itself."""
    name = reference.partition(":")[0]
    if sys.modules.get(name) is not None:  # including `__main__`, which need not have a specification
        return
    _search_current_folder()
    try:
        found = guarded(lambda: importlib.util.find_spec(name), f"{reference}: {name} cannot be imported")
    except InputError as error:
        if "ModuleNotFoundError" not in str(error):
            raise
        found = None
    if found is None:
        raise InputError(f"{reference}: there is no module {name} here or among the installed packages")


def _search_current_folder() -> None:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _imported(name: str, reference: str) -> ModuleType:
    _search_current_folder()
    return guarded(lambda: importlib.import_module(name), f"{reference}: {name} cannot be imported")


def _own(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    return isinstance(value, Callable) and getattr(value, "__module__", "") == module.__name__


T = TypeVar("T")
_Result = TypeVar("_Result")


class Registry(Mapping[str, type[T]]):
    """Mapping from names to the plug-in classes of one kind; a class is imported on first use.

    Iteration yields built-in names in the order of registration, then entry points sorted by name.

    Parameters
    ----------
    what : str
        Name for the kind of class in error messages, such as "search method".
    group : str
        Entry point group through which installed packages add classes; built-in names cannot be replaced.
    base : str
        Base class that every class must inherit from, as `module:Class`.
    guard : str
        Function that makes plug-in classes report failures properly, as `module:function`. Its parameters are a class
        and a title. It returns a subclass whose failures raise InputErrors that begin with the title.
    classes : dict of str to str
        `module:Class` of each built-in class by name.
    aliases : dict of str to str
        Current name for each former name of a built-in class; former names are accepted but not listed.
    """

    def __init__(
        self,
        what: str,
        group: str,
        base: str,
        guard: str,
        classes: Mapping[str, str],
        aliases: Mapping[str, str] | None = None,
    ):
        self.what, self.group, self._aliases = what, group, dict(aliases or {})
        self._base, self._guard, self._classes = base, guard, dict(classes)

    def __iter__(self) -> Iterator[str]:
        yield from self._classes
        yield from sorted({each.name for each in self._entry_points()} - self._classes.keys())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in tuple(self) or name in self._aliases

    def __getitem__(self, name: str) -> type[T]:
        name = self._aliases.get(name, name)
        if name in self._classes:
            return _object(self._classes[name])
        found = [each for each in self._entry_points() if each.name == name]
        if not found:
            raise KeyError(name)
        return self._of_package(name, found)

    def resolve(self, given: object) -> type[T]:
        """Find the class that a user named.

        Parameters
        ----------
        given : str or class
            Name in this registry, `module:Class` in the user's code, or the class itself.

        Raises
        ------
        InputError
            The class does not exist, cannot be imported, or is not a subclass of the base class.
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
            raise InputError(f"{title} must be a subclass of {_public_name(base)}, not {shown(value)}")
        if missing := sorted(getattr(value, "__abstractmethods__", ())):
            raise InputError(f"{title} must define {', '.join(missing)}")
        own = value.__module__.partition(".")[0] == __name__.partition(".")[0]
        guard = _passed if own else _object(self._guard)
        return guard(value, title)


def _public_name(kind: type) -> str:
    """Return the full name under which users import a class; its module is `compiler` if that exports the class."""
    package = importlib.import_module(__name__.partition(".")[0])
    exported = getattr(package, kind.__name__, None) is kind
    return f"{package.__name__ if exported else kind.__module__}.{kind.__name__}"


def _passed(kind: Any, _title: str) -> Any:
    """Return a built-in class unchanged, because its failures are bugs, whose tracebacks must be preserved."""
    return kind


def blamed(work: Callable[[], _Result], title: str, doing: str) -> _Result:
    """Run a plug-in's code and convert failures to InputErrors that name the plug-in.

    Parameters
    ----------
    work : callable
        Function without arguments that calls the plug-in.
    title : str
        Name of the plug-in, at the start of the message.
    doing : str
        Name of the called method, for the error message.

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
    """Import an object of this project, given as `module:object`."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


_log = logging.getLogger(__name__)
_OURS = Path(__file__).resolve().parents[1]
_PYTHON = Path(sysconfig.get_paths()["stdlib"]).resolve()
#: Stack frames in messages of PyTorch.
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ([\w<>.]+)')
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\[\d+m")
#: Maximum number of characters of an error message of user code.
_MAX_CHARACTERS = 400
#: Exporter packages, whose stack frames are not user code.
_EXPORTERS = ("torch", "torchao", "onnxscript", "onnx_ir")


def guarded(work: Callable[[], _Result], doing: str, *, right: Callable[[str], str] | None = None) -> _Result:
    """Run user code and convert any failure to an InputError.

    Parameters
    ----------
    work : callable
        Function without arguments that runs the code.
    doing : str
        Start of the error message.
    right : callable or None
        Function that is called with the error's text and returns advice to append to the message.

    Raises
    ------
    InputError
        The code raised an exception, whose traceback is logged (option `-v` shows the log).
    """
    try:
        return work()
    except (MlaError, Terminated):
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        _log.info("%s", "".join(traceback.format_exception(error)))
        why, where = _first(error), _where(error)
        advice = right(_all_text(error)) if right else ""
        raise InputError(f"{doing}: {why}{where}{advice}") from None


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception and its causes, with the root cause last."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    return found


def _all_text(error: BaseException) -> str:
    return "\n".join(str(each) for each in _chain(error))


def _first(error: BaseException) -> str:
    """Return a text with the type of the root cause and the first line of its message."""
    root = _chain(error)[-1]
    if isinstance(root, SyntaxError):
        return f"SyntaxError: {root.msg}"
    lines = [line.strip() for line in _COLOURS.sub("", str(root)).splitlines()]
    text = next((line for line in lines if line), "")
    text = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
    text = text.partition(" (Size-like symbols")[0].rstrip(". ")
    return f"{type(root).__name__}: {text}" if text else type(root).__name__


def _where(error: BaseException) -> str:
    """Return the innermost known line of user code, such as " (file, line 3, in forward)"; empty if unknown."""
    found: tuple[str, int, str] | None = None
    for each in reversed(_chain(error)):
        frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(each.__traceback__)]
        quoted = [(name, int(line), code) for name, line, code in _FRAME.findall(str(each))]
        own = [frame for frame in (*frames, *quoted) if _is_user_code(frame[0])]
        if own:
            found = own[-1]
            break
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}, line {error.lineno})"
    return f" ({Path(found[0]).name}, line {found[1]}, in {found[2]})" if found else ""


def _is_user_code(file: str) -> bool:
    """Return True if a file belongs neither to an installed package, nor to Python, nor to this compiler."""
    path = Path(file)
    if file.startswith("<") or "site-packages" in path.parts or "dist-packages" in path.parts:
        return False
    modules = (sys.modules.get(name) for name in _EXPORTERS)
    others = [Path(module.__file__).resolve().parent for module in modules if module and module.__file__]
    return not any(path.resolve().is_relative_to(each) for each in (_OURS, _PYTHON, *others))
