"""Most of these tests need the extra `torch`: `make setup EXTRAS=torch`."""

from importlib.util import find_spec

collect_ignore_glob = (
    [] if find_spec("torch") else ["test_[!m]*.py"]
)  # test_missing.py says how to install it
