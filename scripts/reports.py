"""Reports of scripts: values as JSON, and tables as Markdown."""

import json
from pathlib import Path
from typing import Any


def write_report(path: Path, whole: Any, text: str) -> str:
    """Write PATH.json and PATH.md, whatever ending the path has; returns the text.

    Parameters
    ----------
    path : Path
        Its folder is made if it is not there.
    whole : any
        All figures.
    text : str
        The tables, in Markdown.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(whole, indent=1), "utf-8")
    path.with_suffix(".md").write_text(text, "utf-8")
    return text
