"""tools/compare_runs.py: what is compared, what is left out, and that differences are seen."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "compare_runs.py"

METRICS = {
    "train/loss": {"1": 0.1, "2": 0.30000000000000004, "10": 5},
    "train/grad_norm": {"1": float("nan")},
    "timing/train/total": {"1": 1.0},
    "refit/seconds": {"1": 0.5},
    "gtp/gathers": {"1": 9.0},
}


class CompareRunsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_folder(self, name, changes=None, samples="a\n"):
        run = self.folder / name
        (run / "samples").mkdir(parents=True)
        (run / "samples" / "step_1.jsonl").write_text(samples)
        (run / "metrics.json").write_text(json.dumps({**METRICS, **(changes or {})}))
        return run

    def compare(self, *arguments):
        result = subprocess.run(
            [sys.executable, "-B", str(TOOL), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )
        return result.returncode, result.stdout, result.stderr

    def test_equal_runs_but_for_machine_and_layout(self):
        first = self.run_folder("a")
        second = self.run_folder(
            "b",
            {"timing/train/total": {"1": 2.0}, "refit/seconds": {}, "gtp/gathers": {"1": 0.0}},
        )
        code, out, _ = self.compare(first, second)
        self.assertEqual((code, out), (0, "equal: values of metrics compared 4, files of samples 1\n"))
        code, out, _ = self.compare("--same-layout", first, second)
        self.assertEqual(code, 1)
        self.assertIn("gtp/gathers: differs at 1 of 1 steps, first at step 1: 9.0 and 0.0", out)

    def test_the_last_bit_is_seen_at_its_step(self):
        first = self.run_folder("a")
        second = self.run_folder("b", {"train/loss": {"1": 0.1, "2": 0.3, "10": 6}})
        code, out, _ = self.compare(first, second)
        self.assertEqual(code, 1)
        self.assertIn(
            "train/loss: differs at 2 of 3 steps, first at step 2: 0.30000000000000004 and 0.3\n", out
        )
        self.assertIn("1 different: values of metrics compared 4,", out)

    def test_missing_steps_metrics_and_samples_differ(self):
        first = self.run_folder("a", {"train/extra": {"3": 1.0}})
        second = self.run_folder("b", {"train/loss": {"1": 0.1}}, samples="b\n")
        code, out, _ = self.compare(first, second)
        self.assertEqual(code, 1)
        self.assertIn("train/extra: differs at 1 of 1 steps, first at step 3: 1.0 and nothing", out)
        self.assertIn("train/loss: differs at 2 of 3 steps, first at step 2", out)
        self.assertIn("samples/step_1.jsonl: differ", out)

    def test_what_is_no_run_is_an_error(self):
        run = self.run_folder("a")
        broken = self.run_folder("broken")
        (broken / "metrics.json").write_text("[1]")
        empty = self.run_folder("empty")
        (empty / "metrics.json").write_text("{}")
        for other in (self.folder / "none", broken, empty):
            code, out, error = self.compare(run, other)
            self.assertEqual((code, out), (2, ""))
            self.assertEqual(error.count("\n"), 1)
            self.assertIn(str(other), error)
        for arguments in ([run], [run, run, run], [run, "--wrong"]):
            self.assertEqual(self.compare(*arguments)[0], 2)


if __name__ == "__main__":
    unittest.main()
