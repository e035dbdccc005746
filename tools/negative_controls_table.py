#!/usr/bin/env python3
"""Table of the runs that tools/negative_controls.sh makes; exits 1 when one is not as it should be.

usage: negative_controls_table.py FOLDER RUN ...

Reads FOLDER/RUN/metrics.json. Runs named none or none_... must be exact; of "fast" nothing is demanded; every other
run has an injected fault, which both the mismatches and the error must show.
"""

import json
import math
import statistics
import sys

HEADER = [
    "run",
    "token_mult_prob_error (max)",
    "gen_kl_error (max)",
    "mismatch_count / checked",
    "verdict",
    "generation, s a step",
]


def values(metrics, name):
    """The metric's values of steps 1, 2, ...: at least one, all of them finite numbers."""
    series = [value for step, value in metrics.get(name, {}).items() if step != "0"]
    if not series:
        raise ValueError(f"no {name}")
    for value in series:
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}")
    return series


def error_text(error):
    return "1" if error == 1 else f"1 + {error - 1:.2g}" if error > 1 else repr(error)


def summarize(name, metrics):
    """The run's row and whether it is as it should be."""
    errors = values(metrics, "train/token_mult_prob_error")
    mismatches = sum(values(metrics, "train/mismatch_count"))
    checked = sum(values(metrics, "train/mismatch_tokens_checked"))
    cuts = sum(values(metrics, "train/cut_mismatch_count"))
    all_checked = 0 < checked == sum(values(metrics, "train/global_valid_toks"))
    worst = max(errors)
    if name == "none" or name.startswith("none_"):
        good = all_checked and mismatches == 0 and cuts == 0 and all(error == 1 for error in errors)
        verdict = "exact" if good else "NOT EXACT"
    elif name == "fast":
        good = all_checked
        verdict = "exact here" if mismatches == 0 else "not exact, as allowed"
    else:
        good = all_checked and mismatches > 0 and worst != 1
        verdict = "noticed" if good else "NOT NOTICED"
    row = [
        name,
        error_text(worst),
        f"{max(map(abs, values(metrics, 'train/gen_kl_error'))):.2g}",
        f"{mismatches:.0f} / {checked:.0f}",
        verdict,
        f"{statistics.median(values(metrics, 'timing/train/generation')):.3g}",
    ]
    return row, good


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__.split("\n\n")[1])
    folder, *names = sys.argv[1:]
    print("| " + " | ".join(HEADER) + " |")
    print("|" + "---|" * len(HEADER))
    all_good = True
    for name in names:
        path = f"{folder}/{name}/metrics.json"
        try:
            with open(path, encoding="utf-8") as file:
                row, good = summarize(name, json.load(file))
        except (OSError, ValueError) as error:
            sys.exit(f"negative_controls_table: {path}: {error}")
        print("| " + " | ".join(row) + " |")
        all_good = all_good and good
    sys.exit(0 if all_good else 1)


if __name__ == "__main__":
    main()
