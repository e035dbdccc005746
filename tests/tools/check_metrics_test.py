"""tools/check_metrics.py: helpers, ranges, and everything that must not pass."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_metrics.py"

METRICS = """{
  "train/loss": {"1": 5.0, "2": 4.0, "3": 3.0, "4": 2.0, "10": 100.0},
  "train/reward": {"3": 0.25, "4": 0.5, "5": 0.75},
  "timing/setup/load": {"0": 1.5},
  "bad/nan": {"1": 1.0, "2": NaN, "3": 1.0},
  "bad/inf": {"1": 1.0, "2": Infinity},
  "bad/null": {"1": null, "2": 1.0},
  "bad/text": {"1": "1.0"},
  "bad/flag": {"1": true},
  "bad/step": {"last": 1.0},
  "bad/empty": {}
}"""


def check(*conditions, content=METRICS):
    """Exit code and output of the tool on a metrics file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.json"
        path.write_text(content, encoding="utf-8")
        result = subprocess.run(
            [sys.executable, "-B", str(TOOL), str(path), *conditions],
            capture_output=True,
            text=True,
            check=False,
        )
    return result.returncode, result.stdout + result.stderr


class CheckMetricsTest(unittest.TestCase):
    def assert_holds(self, condition):
        code, output = check(condition)
        self.assertEqual((code, output.split()[0]), (0, "PASS"), output)

    def assert_fails(self, condition, message):
        code, output = check(condition)
        self.assertEqual((code, output.split()[0]), (1, "FAIL"), output)
        self.assertIn(message, output)

    def test_helpers(self):
        self.assert_holds('max(data["train/loss"]) == 100')
        self.assert_holds('min(data["train/loss"]) == 2')
        self.assert_holds("mean(data['train/reward']) == 0.5")
        self.assert_holds('median(data["train/loss"]) == 4')
        self.assert_holds('ratio_above(data["train/reward"], 0.5) > 0.66')
        self.assert_holds('data["train/reward"]["4"] == 0.5')
        self.assert_holds('max(data["timing/setup/load"]) == 1.5')

    def test_combinations(self):
        self.assert_holds('0.2 < min(data["train/reward"]) < 0.3')
        self.assert_holds('max(data["train/reward"]) - min(data["train/reward"]) == 0.5')
        self.assert_holds('abs(data["train/reward"]["3"] - 0.25) < 1e-9 and not min(data["train/loss"]) > 2')
        self.assert_holds('max(data["train/loss"]) < 0 or data["train/loss"]["10"] >= -1e2')

    def test_ranges(self):
        self.assert_holds('mean(data["train/loss"], 2, 4) == 3.5')
        self.assert_holds('mean(data["train/loss"], 3) == 35')
        self.assert_holds('mean(data["train/loss"], -1) == 100')
        self.assert_holds('max(data["train/loss"], 1, -1) == 5')
        self.assert_holds('mean(data["train/reward"], -3, -1) == 0.375')
        self.assert_holds('ratio_above(data["train/reward"], 0.5, -2, 0) == 1')
        self.assert_fails('mean(data["train/loss"], 5, 10) > 0', "has no step from 5 to before 10")
        self.assert_fails('mean(data["train/loss"], 1.5) > 0', "whole steps")

    def test_a_condition_that_is_false_shows_the_value(self):
        self.assert_fails('max(data["train/loss"]) < 99.5', "[100]")

    def test_non_finite_anywhere_fails(self):
        self.assert_fails('data["bad/nan"]["1"] == 1', '"bad/nan" is NaN at step 2')
        self.assert_fails('max(data["bad/nan"]) < 1.05', '"bad/nan" is NaN at step 2')
        self.assert_fails('mean(data["bad/nan"], 3) == 1', '"bad/nan" is NaN at step 2')
        self.assert_fails('min(data["bad/inf"]) == 1', '"bad/inf" is Infinity at step 2')
        self.assert_fails('max(data["train/loss"]) > 0 or max(data["bad/nan"]) > 0', "is NaN at step 2")
        self.assert_fails('max(data["bad/null"]) == 1', '"bad/null" is null at step 1')
        self.assert_fails('max(data["bad/text"]) == 1', '"bad/text" is "1.0" at step 1')
        self.assert_fails('max(data["bad/flag"]) == 1', '"bad/flag" is true at step 1')
        self.assert_fails('max(data["bad/step"]) == 1', "is no step")
        self.assert_fails('not max(data["bad/nan"]) > 1', "is NaN at step 2")

    def test_what_is_not_there_fails(self):
        self.assert_fails('max(data["train/los"]) < 9', 'no metric "train/los"; the nearest is "train/loss"')
        self.assert_fails('max(data["bad/empty"]) < 9', '"bad/empty" has no values')
        self.assert_fails('data["train/reward"]["1"] < 9', "has no step '1'")
        self.assert_fails("1 < 2", "names no metric")
        self.assert_fails('data["train/loss"]["1"] / (data["train/loss"]["2"] - 4) > 0', "division by zero")

    def test_code_is_not_run(self):
        for condition in (
            '__import__("os").system("true") == max(data["train/loss"])',
            'max(data["train/loss"]).__class__ == 1',
            'max(data) > 1',
            '[x for x in data["train/loss"]] == 1',
            '(lambda: 1)() < max(data["train/loss"])',
            'max(data["train/loss"]) ** 9 ** 9 ** 9 > 1',
            'open(data["train/loss"]) > 1',
            'max(data["train/loss"])',
            'data["train/loss"] > 1',
            'max(data["train/loss"]) is 100',
            'max(data["train/loss"]) <',
            "",
            "(" * 500 + "1" + ")" * 500,
        ):
            with self.subTest(condition=condition[:60]):
                code, output = check(condition)
                self.assertEqual((code, output.split()[0]), (1, "FAIL"), output)
                self.assertNotIn("Traceback", output)

    def test_all_conditions_count(self):
        good, bad = 'max(data["train/loss"]) > 0', 'max(data["train/loss"]) < 0'
        code, output = check(good, bad, good)
        self.assertEqual(code, 1)
        self.assertEqual([line.split()[0] for line in output.splitlines()], ["PASS", "FAIL", "PASS", "2"])

    def test_unusable_files_and_no_conditions(self):
        self.assertEqual(check(content=METRICS)[0], 2)
        self.assertEqual(check("1 < 2", content="{")[0], 1)
        self.assertEqual(check("1 < 2", content="[]")[0], 1)


if __name__ == "__main__":
    unittest.main()
