"""tools/negative_controls_table.py: its rows, and every run that must make it fail."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "negative_controls_table.py"


def metrics(errors, mismatches, checked=(10, 12), cuts=(0, 0)):
    """Of a run of two steps; step 0 is setup."""

    def series(values):
        return {str(step): value for step, value in enumerate(values, 1)}

    return {
        "train/token_mult_prob_error": series(errors),
        "train/gen_kl_error": series((0.0, -0.25)),
        "train/mismatch_count": series(mismatches),
        "train/mismatch_tokens_checked": series(checked),
        "train/global_valid_toks": series((10, 12)),
        "train/cut_mismatch_count": series(cuts),
        "timing/train/generation": {"0": 9.0, "1": 0.5, "2": 0.25},
    }


def table(**runs):
    """Exit code and output of the tool on runs in their order."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in runs.items():
            path = Path(folder) / name / "metrics.json"
            path.parent.mkdir()
            path.write_text(json.dumps(content), encoding="utf-8")
        result = subprocess.run(
            [sys.executable, "-B", TOOL, folder, *runs], capture_output=True, text=True, check=False
        )
        return result.returncode, result.stdout + result.stderr


CLEAN = metrics((1, 1), (0, 0))
FAULT = metrics((1, 1.5), (0, 3))


class NegativeControlsTable(unittest.TestCase):
    def test_rows(self):
        code, text = table(none=CLEAN, fast=CLEAN, stale_kv=FAULT)
        self.assertEqual(code, 0, text)
        self.assertIn("| none | 1 | 0.25 | 0 / 22 | exact | 0.375 |", text)
        self.assertIn("| fast | 1 | 0.25 | 0 / 22 | exact here |", text)
        self.assertIn("| stale_kv | 1 + 0.5 | 0.25 | 3 / 22 | noticed |", text)

    def test_fast_mode_may_differ(self):
        code, text = table(fast=FAULT)
        self.assertEqual(code, 0, text)
        self.assertIn("not exact, as allowed", text)

    def test_faults_that_are_not_noticed(self):
        for run in (CLEAN, metrics((1, 1.5), (0, 0)), metrics((1, 1), (0, 3))):
            code, text = table(none=CLEAN, split_k=run)
            self.assertEqual(code, 1)
            self.assertIn("| split_k |", text)
            self.assertIn("NOT NOTICED", text)

    def test_clean_runs_that_are_not_exact(self):
        for run in (
            FAULT,
            metrics((1, 1), (0, 1)),
            metrics((1, 1), (0, 0), cuts=(1, 0)),
            metrics((1, 1), (0, 0), checked=(10, 11)),
            metrics((1, 1), (0, 0), checked=(0, 0)),
        ):
            for name in ("none", "none_top_p"):
                code, text = table(**{name: run, "split_k": FAULT})
                self.assertEqual(code, 1)
                self.assertIn("NOT EXACT", text)

    def test_metrics_that_say_nothing(self):
        for name, value in (
            ("train/mismatch_count", {}),
            ("train/token_mult_prob_error", {"1": "nan", "2": 1}),
            ("train/gen_kl_error", {"1": None}),
        ):
            code, text = table(split_k={**FAULT, name: value})
            self.assertNotEqual(code, 0)
            self.assertIn(name, text)
            self.assertNotIn("Traceback", text)

    def test_a_run_without_metrics(self):
        result = subprocess.run(
            [sys.executable, "-B", TOOL, "/nonexistent", "none"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nonexistent/none/metrics.json", result.stderr)


if __name__ == "__main__":
    unittest.main()
