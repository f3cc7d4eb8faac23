"""The search process ends in an orderly way."""

import subprocess
import sys

#: The signal arrives while a callback of the garbage collector runs, where Python discards exceptions.
SIGNAL_IN_CALLBACK = """
import os, signal, time, weakref
from compiler.online_tuning.search_process import exit_on_sigterm

class Something:
    pass

exit_on_sigterm()
something = Something()
reference = weakref.ref(something, lambda _: os.kill(os.getpid(), signal.SIGTERM))
try:
    del something
    time.sleep(60)
finally:
    print("unwound")
"""


def test_sigterm_in_a_callback_ends_the_process():
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL_IN_CALLBACK], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "unwound\n", "")
