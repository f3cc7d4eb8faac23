"""Output of script reports: values as JSON and tables as Markdown."""

import json
from pathlib import Path
from typing import Any


def write_report(path: Path, whole: Any, text: str) -> str:
    """Write PATH.json and PATH.md, replacing any suffix of the path; return the text.

    Parameters
    ----------
    path : Path
        Path of the report; its folder is created if missing.
    whole : any
        All values, written as JSON.
    text : str
        Tables in Markdown.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(whole, indent=1), "utf-8")
    path.with_suffix(".md").write_text(text, "utf-8")
    return text
