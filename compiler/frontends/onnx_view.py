"""Who makes and who reads the values of an ONNX file, for those who look for patterns in it."""

from compiler.frontends.onnx_file import FileNode, Model


class View:
    """Who makes and who reads the values of a model.

    Parameters
    ----------
    model : Model
        The model; it must not change while this is used.
    """

    def __init__(self, model: Model):
        self.constants = model.constants
        self.makers = {name: node for node in model.nodes for name in node.outputs}
        self.users: dict[str, list[FileNode]] = {}
        for node in model.nodes:
            for name in node.inputs:
                self.users.setdefault(name, []).append(node)
        self.outputs = {output.name for output in model.outputs}

    def only_user(self, name: str) -> FileNode | None:
        """The one node that reads a value, if there is just one reader."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name not in self.outputs else None

    def made_by(self, name: str, *ops: str) -> FileNode | None:
        """The node that makes a value, if it has one of these operators."""
        node = self.makers.get(name)
        return node if node is not None and node.op in ops else None

    def scalar(self, name: str) -> float | None:
        """The one number that a constant holds."""
        value = self.constants.get(name)
        return None if value is None or value.data.size != 1 or len(value.shape) > 1 else value.scalar()
