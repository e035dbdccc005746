"""tests/mutation/run_mutants.py tells killed mutants from surviving and broken ones, on a project of two files."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutation"))
from run_mutants import read_mutants  # noqa: E402

CMAKE = """cmake_minimum_required(VERSION 3.25)
project(sample LANGUAGES CXX)
add_executable(sum_test tests/sum_test.cpp)
target_include_directories(sum_test PRIVATE ${CMAKE_SOURCE_DIR})
"""
SUM = "inline int sum(int a, int b) {\n  int unused = 0;\n  (void)unused;\n  return a + b;\n}\n"
# Understands the two options of a GoogleTest program that the runner uses; finds nothing wrong where LENIENT is set.
TEST = """#include <cstring>
#include <cstdio>
#include <cstdlib>
#include "model/sum.h"
int main(int argc, char** argv) {
  const bool matches = std::strcmp(argv[1], "--gtest_filter=Sum.*") == 0;
  if (argc > 2) {
    if (matches) std::printf("Sum.\\n  Adds\\n");
    return 0;
  }
  return matches && sum(2, 3) != 5 && std::getenv("LENIENT") == nullptr ? 1 : 0;
}
"""


class RunMutantsTest(unittest.TestCase):
    def run_mutants(self, *lines):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "root"
            for name, text in {"CMakeLists.txt": CMAKE, "model/sum.h": SUM, "tests/sum_test.cpp": TEST,
                               "mutants.txt": "# comment\n\n" + "\n".join(lines) + "\n"}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            environment = {**os.environ, "GRPO_MUTATION_ROOT": str(root), "GRPO_MUTANTS": str(root / "mutants.txt"),
                           "GRPO_MUTATION_DIR": str(Path(folder) / "work")}
            run = subprocess.run([sys.executable, "-B", ROOT / "tests/mutation/run_mutants.py"], env=environment,
                                 capture_output=True, text=True, check=False)
            self.assertEqual((root / "model/sum.h").read_text(encoding="utf-8"), SUM)
            return run.returncode, run.stdout + run.stderr

    def test_verdicts(self):
        code, out = self.run_mutants(
            "minus | model/sum.h | a + b | a - b | sum_test:Sum.*",
            "lenient | model/sum.h | a + b | a - b | LENIENT=1 sum_test:Sum.*",
            "same | model/sum.h | int unused = 0; | int unused = 1; | sum_test:Sum.*",
            "typo | model/sum.h | a * b | a - b | sum_test:Sum.*",
            "twice | model/sum.h | unused | used | sum_test:Sum.*",
            "syntax | model/sum.h | return a + b; | return; | sum_test:Sum.*",
            "filter | model/sum.h | a + b | a - b | sum_test:Product.*",
            "lines | model/sum.h | (void)unused;\\n  return a + b; | (void)unused;\\n  return 0; | sum_test:Sum.*")
        self.assertEqual(code, 1)
        verdicts = {line.split()[0]: line.split("  ", 2)[-1].strip() for line in out.splitlines()}
        self.assertTrue(verdicts["minus"].endswith("killed"), out)
        self.assertTrue(verdicts["lenient"].endswith("SURVIVED"), out)
        self.assertTrue(verdicts["same"].endswith("SURVIVED"), out)
        self.assertTrue(verdicts["typo"].endswith("source text found 0 times"), out)
        self.assertTrue(verdicts["twice"].endswith("source text found 2 times"), out)
        self.assertTrue(verdicts["syntax"].endswith("does not compile"), out)
        self.assertTrue(verdicts["filter"].endswith("no test matches the filter"), out)
        self.assertTrue(verdicts["lines"].endswith("killed"), out)
        self.assertIn("2 of 8 mutants killed", out)

    def test_all_killed(self):
        code, out = self.run_mutants("minus | model/sum.h | a + b | a - b | sum_test:Sum.*")
        self.assertEqual(code, 0, out)

    def test_every_source_text_of_the_list_occurs_once(self):
        for mutant in read_mutants(ROOT / "tests/mutation/mutants.txt"):
            with self.subTest(mutant.name):
                self.assertEqual((ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.text), 1, mutant.file)

    def test_malformed_line(self):
        code, out = self.run_mutants("minus | model/sum.h | a + b")
        self.assertNotEqual(code, 0)
        self.assertIn("mutants.txt:3: allowed: name | file", out)


class MutantsOfTheProjectTest(unittest.TestCase):
    def test_every_source_text_stands_once(self):
        sys.path.insert(0, str(ROOT / "tests/mutation"))
        import run_mutants  # pylint: disable=import-outside-toplevel
        mutants = run_mutants.read_mutants(ROOT / "tests/mutation/mutants.txt")
        self.assertGreater(len(mutants), 50)
        for mutant in mutants:
            source = (ROOT / mutant.file).read_text(encoding="utf-8")
            self.assertEqual(source.count(mutant.text), 1, f"{mutant.name}: text of {mutant.file}")


if __name__ == "__main__":
    unittest.main()
