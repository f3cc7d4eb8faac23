"""The grammar of assembly text as GBNF, for models of others that write text and not the words of ours.

Every line that it allows assembles, if each label is defined once: that is what such a grammar cannot say.
"""

from collections.abc import Iterable, Iterator

from compiler.llm.assembly.decimal import between
from compiler.llm.assembly.groups import HEAD
from compiler.llm.assembly.lexicon import HEADS, REGISTER_WORDS, SELECTORS, Head, semaphores
from compiler.llm.assembly.limits import Limits
from compiler.llm.assembly.rules import SIGNED, UNSIGNED, Rules
from compiler.llm.assembly.spans import Spans
from hw.isa.enums import Unit
from hw.isa.fields import Packed
from hw.isa.micro import FORMS, WORD, MicroOp

_TARGET = 'target ::= label | number-of-instruction\nlabel ::= "l" [0-9] [0-9]?'
_FRAME = """\
root ::= line+
line ::= (name | (label ": ")? " "* instruction? " "* comment?) "\\n"
name ::= (".name " | ".signature ") [^\\n]+
comment ::= ";" [^\\n]*
"""
_LIST = '(", " {0})*'
#: Highest instruction that a target names.
_LAST = (1 << 14) - 1


def text_grammar(limits: Limits) -> str:
    """The grammar of the text of programs within limits.

    Parameters
    ----------
    limits : Limits
        Of these, the machine decides what instructions and values there are; the rest a grammar cannot say.

    Returns
    -------
    str
        Rules of GBNF, one on each line; the first is `root`.
    """
    return _Rules(limits.rules).text()


class _Rules:
    """The rules, as far as they are needed."""

    def __init__(self, rules: Rules):
        self._rules = rules
        self._heads = [HEADS[word] for word in rules.groups[HEAD]]
        self._numbers: dict[Spans, str] = {}
        self._parts_of: dict[str, str] = {}

    def text(self) -> str:
        ops = list(dict.fromkeys(head.op for head in self._heads))
        lines = [f"instruction ::= {_any(op.name.lower() for op in ops)}"]
        lines += [f"{op.name.lower()} ::= {self._operation(op)}" for op in ops]
        lines += [
            _TARGET,
            f"number-of-instruction ::= {between(0, _LAST)}",
            f"register ::= {_quoted(REGISTER_WORDS)}",
            f"selector ::= {_quoted(SELECTORS)}",
            f"unit ::= {_quoted(unit.name.lower() for unit in Unit)}",
            f"wait-semaphore ::= {_quoted(semaphores(len(Unit)))}",
            f"signal-semaphore ::= {_quoted(semaphores(len(Unit) + 1))}",
            f'sum ::= selector (", " selector)? (", " {self._number(_ANY)})?',
        ]
        lines += [f"{name} ::= {body}" for name, body in self._parts_of.items()]
        lines += [f"{name} ::= {_ranges(spans)}" for spans, name in self._numbers.items()]
        return _FRAME + "\n".join(lines) + "\n"

    def _number(self, spans: Spans) -> str:
        """Name of the rule of a number."""
        return self._numbers.setdefault(spans, f"number-{len(self._numbers)}")

    def _operation(self, op: MicroOp) -> str:
        heads = [head for head in self._heads if head.op is op]
        name = op.name.lower()
        kinds = FORMS[op].operands
        if kinds[:1] == ("field",):
            return _any(self._settings(name, heads))
        if op is MicroOp.LOOP:
            count = self._number(self._rules.numbers(heads[0], 1))
            return f'"{name} " ({count} | selector (", " {count})?) ", " target'
        parts = list(self._parts(heads[0], kinds))
        return " ".join([f'"{name}{" " if kinds and kinds[0] != "mask" else ""}"', *parts])

    def _parts(self, head: Head, kinds: tuple[str, ...]) -> Iterator[str]:
        """Operands, with what stands between them."""
        shown = [kind for kind in kinds if not (kind in ("a", "b") and "imm" in kinds)]
        for index, kind in enumerate(shown):
            if kind in ("wait", "signal"):
                item = f"{kind}-semaphore"
                yield f'(", {kind}(" {item} {_LIST.format(item)} ")")?'
            else:
                yield from ['", "'] * (index > 0)
                yield self._part(head, kind, kinds)

    def _part(self, head: Head, kind: str, kinds: tuple[str, ...]) -> str:
        if kind == "imm":
            number = self._number(self._rules.numbers(head, 1) if head.op is MicroOp.TAG else _ANY)
            return f"({number} | sum)" if "a" in kinds else number
        if kind == "mask":
            return f'(" " unit {_LIST.format("unit")})?'
        if kind == "segment":
            return self._number(((0, WORD.fields[3].high),))
        names = {"d": "register", "a": "selector", "b": "selector", "sem": "wait-semaphore"}
        return names.get(kind, kind)

    def _settings(self, name: str, heads: list[Head]) -> Iterator[str]:
        """What fields are set to, those together that may hold the same."""
        plain: dict[Spans, list[str]] = {}
        for head in heads:
            field = head.word.removeprefix(f"{name} ")
            if head.packed:
                part = f"part-of-{field.replace('.', '-')}"
                self._parts_of[part] = self._pairs(head.packed)
                yield f'"{name} {field}, " ("default" | {part} (" " {part})* | sum)'
            else:
                plain.setdefault(self._rules.constants(head), []).append(field)
        for spans, fields in plain.items():
            yield f'"{name} " ({_quoted(fields)}) ", " ({self._number(spans)} | sum)'

    def _pairs(self, packed: Packed) -> str:
        """Parts of a packed field."""
        spans = self._rules.parts(packed)
        pairs = []
        for part in packed.fields:
            names = [
                f'"{text}"'
                for value, text in enumerate(part.enum)
                if any(low <= value <= high for low, high in spans[part.name])
            ]
            values = f"({_any(names)})" if names else self._number(spans[part.name])
            pairs.append(f'"{part.name}=" {values}')
        return _any(pairs)


#: Any 32 bits, with a sign or without.
_ANY: Spans = ((SIGNED[0][0], UNSIGNED[0][1]),)


def _ranges(spans: Spans) -> str:
    return " | ".join(between(low, high) for low, high in spans)


def _any(alternatives: Iterable[str]) -> str:
    return " | ".join(alternatives)


def _quoted(texts: Iterable[str]) -> str:
    return _any(f'"{text}"' for text in texts)
