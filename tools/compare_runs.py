#!/usr/bin/env python3
"""Compares two runs bit for bit: their metrics, step by step, and their samples; exits 1 unless all are equal.

usage: compare_runs.py [--same-layout] RUN RUN

RUN is a logger.log_dir. Left out is what belongs to the machine (timing/, performance/, memory/, refit/seconds) and,
without --same-layout, to the layout (gtp/, refit/remote_bytes). A line names each metric that differs, with its first
step and both values there; the last line is a summary.
"""

import json
import sys
from pathlib import Path

OF_MACHINE = ("timing/", "performance/", "memory/", "refit/seconds")
OF_LAYOUT = ("gtp/", "refit/remote_bytes")


class RunError(Exception):
    """A folder that is no run; the message says why."""


def read_metrics(run, left_out):
    """{metric: {step: value}} without what is left out."""
    path = run / "metrics.json"
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: {error}") from error
    if not isinstance(metrics, dict) or not all(isinstance(steps, dict) for steps in metrics.values()):
        raise RunError(f"{path}: not an object of metrics")
    kept = {name: steps for name, steps in metrics.items() if not name.startswith(left_out)}
    if not any(kept.values()):
        raise RunError(f"{path}: no metric to compare")
    return kept


def read_samples(run):
    """{file name: bytes}"""
    return {path.name: path.read_bytes() for path in sorted((run / "samples").glob("*.jsonl"))}


def text_of(values, key):
    """What one run has under a key, for a message. JSON, so that a NaN equals itself."""
    return json.dumps(values[key]) if key in values else "nothing"


def step_order(step):
    return (0, int(step)) if step.isdigit() else (1, step)


def differences_of_metrics(first, second):
    """A line for each metric that differs, and how many values were compared."""
    lines = []
    num_values = 0
    for name in sorted(first.keys() | second.keys()):
        ours, theirs = first.get(name, {}), second.get(name, {})
        steps = sorted(ours.keys() | theirs.keys(), key=step_order)
        num_values += len(steps)
        differing = [step for step in steps if text_of(ours, step) != text_of(theirs, step)]
        if differing:
            step = differing[0]
            lines.append(
                f"{name}: differs at {len(differing)} of {len(steps)} steps, first at step {step}: "
                f"{text_of(ours, step)} and {text_of(theirs, step)}"
            )
    return lines, num_values


def main(arguments):
    same_layout = "--same-layout" in arguments
    folders = [argument for argument in arguments if argument != "--same-layout"]
    if "--help" in folders or "-h" in folders:
        print(__doc__.strip())
        return 0
    if len(folders) != 2 or any(folder.startswith("-") for folder in folders):
        print("compare_runs: needs two folders of runs; see --help", file=sys.stderr)
        return 2
    runs = [Path(folder) for folder in folders]
    left_out = OF_MACHINE if same_layout else OF_MACHINE + OF_LAYOUT
    try:
        lines, num_values = differences_of_metrics(*(read_metrics(run, left_out) for run in runs))
        samples = [read_samples(run) for run in runs]
    except (RunError, OSError) as error:
        print(f"compare_runs: {error}", file=sys.stderr)
        return 2
    names = sorted(samples[0].keys() | samples[1].keys())
    lines += [
        f"samples/{name}: differ" for name in names if samples[0].get(name) != samples[1].get(name)
    ]
    for line in lines:
        print(line)
    verdict = f"{len(lines)} different" if lines else "equal"
    print(f"{verdict}: values of metrics compared {num_values}, files of samples {len(names)}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
