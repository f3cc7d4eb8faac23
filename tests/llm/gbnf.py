"""A reader of GBNF grammars without recursion: what matches them, and random sentences."""

import random
import re

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[a-z][a-z0-9-]*|[()|*+?]')
_REPEAT = {"*": (0, 3), "+": (1, 3), "?": (0, 1)}


class Gbnf:
    """A grammar: each rule as alternatives of sequences of (item, repetition)."""

    def __init__(self, text: str):
        self.rules = {}
        for line in text.splitlines():
            name, _, body = line.partition(" ::= ")
            tokens = _TOKEN.findall(body)
            assert "".join(tokens) == _outside(body), line
            self.rules[name], end = self._alternatives(tokens, 0)
            assert end == len(tokens), line

    def _alternatives(self, tokens: list[str], at: int) -> tuple[list, int]:
        out = [[]]
        while at < len(tokens) and tokens[at] != ")":
            token, at = tokens[at], at + 1
            if token == "|":
                out.append([])
            elif token in _REPEAT:
                out[-1][-1] = (out[-1][-1][0], token)
            elif token == "(":
                inner, at = self._alternatives(tokens, at)
                out[-1].append((inner, ""))
                at += 1
            else:
                out[-1].append((token, ""))
        return out, at

    def pattern(self, rule: str) -> re.Pattern:
        """What matches a rule."""
        return re.compile(self._pattern(self.rules[rule]))

    def _pattern(self, alternatives: list) -> str:
        return "|".join("".join(map(self._item, sequence)) for sequence in alternatives)

    def _item(self, item: tuple) -> str:
        what, repeat = item
        if isinstance(what, str) and what[0] in '"[':
            inner = what if what[0] == "[" else re.escape(_unquoted(what))
        else:
            inner = self._pattern(self.rules[what] if isinstance(what, str) else what)
        return f"(?:{inner}){repeat}"

    def sentence(self, rule: str, rng: random.Random) -> str:
        """A random sentence."""
        return self._sentence(self.rules[rule], rng)

    def _sentence(self, alternatives: list, rng: random.Random) -> str:
        out = ""
        for what, repeat in rng.choice(alternatives):
            for _ in range(rng.randint(*_REPEAT[repeat]) if repeat else 1):
                if not isinstance(what, str):
                    out += self._sentence(what, rng)
                elif what[0] == '"':
                    out += _unquoted(what)
                elif what[0] == "[":
                    low, _, high = what[1:-1].partition("-")
                    out += chr(rng.randint(ord(low), ord(high)))
                else:
                    out += self._sentence(self.rules[what], rng)
        return out


def _unquoted(text: str) -> str:
    return text[1:-1].replace("\\n", "\n")


def _outside(body: str) -> str:
    """Without the spaces between tokens."""
    return "".join(
        part if index % 2 else part.replace(" ", "")
        for index, part in enumerate(re.split(r'("[^"]*"|\[[^]]*\])', body))
    )
