"""Choice of one of many values by number."""

from amaranth.hdl import Module, Mux, Signal, Value


def select_tree(m: Module, name: str, number: Signal, values: dict[int, Value]) -> Value:
    """values[number] as a tree of two-way choices, any of them where `number` is no key.

    Parameters
    ----------
    m : Module
        Takes the tree.
    name : str
        Prefix of its signals.
    number : Signal
        Which value.
    values : dict of int to Value
        At least one; keys fit into `number`.
    """
    level = dict(values)
    for bit in range(len(number)):
        merged: dict[int, Value] = {}
        for key in sorted({k >> 1 for k in level}):
            pair = [level[k] for k in (2 * key, 2 * key + 1) if k in level]
            if len(pair) == 2:
                node = Signal(max(len(v) for v in pair), name=f"{name}_{bit}_{key}")
                m.d.comb += node.eq(Mux(number[bit], pair[1], pair[0]))
                pair = [node]
            merged[key] = pair[0]
        level = merged
    return level[0]
