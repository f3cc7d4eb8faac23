"""Converter from non-recursive GBNF grammars to regular expressions, sharing no code with the grammar generator under
test.
"""

import re

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|(\[[^\]]*\])|([a-z][a-z0-9-]*)|([()|?*+])|\s+')


def pattern(grammar: str) -> re.Pattern[str]:
    """Return the regular expression of the rule `root`."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines())
    return re.compile(_expression(rules, "root", ()))


def _expression(rules: dict[str, str], name: str, inside: tuple[str, ...]) -> str:
    assert name not in inside, f"rule {name} is in itself"
    out, at, text = [], 0, rules[name]
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match, f"rule {name}: {text[at:]!r}"
        literal, characters, rule, sign = match.groups()
        if literal is not None:
            plain = re.sub(r"\\(.)", _unescaped, literal)
            out.append(f"(?:{re.escape(plain)})")
        elif rule:
            out.append(f"(?:{_expression(rules, rule, (*inside, name))})")
        else:
            out.append("(?:" if sign == "(" else characters or sign or "")
        at = match.end()
    return "".join(out)


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n"}.get(match[1], match[1])
