"""Serve a stream of requests while a search looks for better programs, and print the decisions.

    python examples/serve_adapt.py network.onnx images.npy [REQUESTS]

`mla serve` prints a JSON line for each request and for each decision, which any program can read.
"""

import json
import subprocess
import sys


def main(model: str, images: str, requests: str = "60") -> None:
    """Start the server and print decisions as they are made, then the cycles of the first and the last request."""
    command = [
        sys.executable,
        "-m",
        "compiler.cli.main",
        "serve",
        model,
        "--input",
        images,
        "--requests",
        requests,
        "--target",
        "n4",
        "--adapt",
        "--method",
        "coordinate",
        "--trials-per-request",
        "1",  # one candidate for each request, so that every run makes the same decisions
    ]
    cycles = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            event = json.loads(line)
            if "index" in event:  # a request was answered
                cycles.append(event["cycles"])
            elif event["event"] == "reload":
                print(f"request {event['request']}: version {event['version']} takes over ({event['why']})")
            elif event["event"] in ("kept", "rollback"):
                print(f"request {event['request']}: {event['event']}")
    if server.returncode != 0:
        raise SystemExit(f"mla serve ended with status {server.returncode}")
    print(f"{len(cycles)} requests: {cycles[0]:,} cycles for the first, {cycles[-1]:,} for the last")


if __name__ == "__main__":
    main(*sys.argv[1:])
