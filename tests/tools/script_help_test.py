"""--help of a script prints what it is for and how to call it, and does nothing else."""

import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ["tools/demo.sh", "tools/test.sh", "tools/package.sh", "tools/format.sh", "tools/fuzz.sh", "tools/gpu_check.sh", "tools/lint.sh",
           "tools/negative_controls.sh", "tools/check_metrics.py", "tools/compare_runs.py", "tools/benchmark/cudnn_attention.py",
           "tests/functional/run_all.sh", "tests/gpu/failures.sh", "tests/package/portable_bits.sh",
           "tests/package/debian_chroot.sh"]


class ScriptHelp(unittest.TestCase):
    def test_every_script_has_one(self):
        for script in SCRIPTS:
            with self.subTest(script), tempfile.TemporaryDirectory() as elsewhere:
                done = subprocess.run([ROOT / script, "--help"], cwd=elsewhere, capture_output=True, text=True,
                                      check=False, timeout=10)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stderr, "")
                self.assertIn("usage: ", done.stdout)
                name = Path(script).name
                self.assertIn(name, done.stdout)
                self.assertNotIn("set -", done.stdout)  # the comment alone
                self.assertEqual(list(Path(elsewhere).iterdir()), [])

    def test_no_script_is_left_out(self):
        listed = {path.name for path in (ROOT / "tools").glob("*.sh")}
        self.assertEqual(listed - {Path(script).name for script in SCRIPTS}, {"install_packages.sh", "usage.sh"})


if __name__ == "__main__":
    unittest.main()
