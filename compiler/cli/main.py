"""Entry point of `mla`: runs a verb and returns the exit status.

The exit status is 0 on success, 1 if the work failed, 2 for bad usage or bad input, 130 if interrupted, and 143 if
terminated.
"""

import sys
from collections.abc import Sequence

BAD_USAGE = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `mla` with the given arguments (default: `sys.argv[1:]`) and return the exit status."""
    try:
        # Imported here so that Ctrl-C during the import is caught.
        import logging

        from compiler.cli.exit_status import FirstTime, run_to_status
        from compiler.cli.parser import build_parser

        def parse_and_run() -> int:
            parser = build_parser()
            given = sys.argv[1:] if argv is None else argv
            if not given:
                parser.print_help(sys.stderr)
                return BAD_USAGE
            args = parser.parse_args(given)
            root = logging.getLogger()
            # Not basicConfig, since the handler that records warnings for reports is already installed.
            if not any(isinstance(handler, logging.StreamHandler) for handler in root.handlers):
                handler = logging.StreamHandler(sys.stderr)
                handler.addFilter(FirstTime())
                root.addHandler(handler)
                root.setLevel(logging.INFO if args.verbose else logging.WARNING)
            return run_to_status(f"mla {args.verb}", lambda: args.run(args))

        return run_to_status("mla", parse_and_run)
    except KeyboardInterrupt:
        print("mla: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
