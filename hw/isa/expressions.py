"""Integer expressions of assembly text: numbers, names, + - * << >> | & ~ and parentheses."""

import ast
from collections.abc import Mapping

_MAX_LENGTH = 400
_LIMIT = 1 << 64

_BINARY = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.BitOr: lambda a, b: a | b,
    ast.BitAnd: lambda a, b: a & b,
}


def evaluate(text: str, names: Mapping[str, int]) -> int:
    """Return the value of an expression, or raise ValueError with a description of the error."""
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"expression must be at most {_MAX_LENGTH} characters long, not {len(text)}")
    if text.strip() in names:  # this includes names that are Python keywords
        return names[text.strip()]
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{text.strip()!r} is not an expression") from None
    return _value(tree.body, names)


def _value(node: ast.AST, names: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _bounded(node.value)
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise ValueError(f"name {node.id!r} is not defined")
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        value = _value(node.operand, names)
        return -value if isinstance(node.op, ast.USub) else ~value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, names), _value(node.right, names)
        if isinstance(node.op, ast.LShift | ast.RShift):
            return _shift(node.op, left, right)
        if type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](left, right))
    raise ValueError(
        f"{ast.unparse(node)!r} is not allowed in an expression (use + - * << >> | & ~ and parentheses)"
    )


def _shift(op: ast.operator, left: int, right: int) -> int:
    if not 0 <= right < 64:
        raise ValueError(f"shift must be in 0..63, not {right}")
    return _bounded(left << right if isinstance(op, ast.LShift) else left >> right)


def _bounded(value: int) -> int:
    if abs(value) >= _LIMIT:
        raise ValueError(f"value must be below 2**64, not {value}")
    return value
