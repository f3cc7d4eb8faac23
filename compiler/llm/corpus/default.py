"""The corpus that comes with the compiler."""

from pathlib import Path

CORPUS = Path(__file__).with_name("schedules.xz")
