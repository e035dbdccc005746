#!/usr/bin/env python3
"""Breaks the code on purpose, one mutant at a time, and demands that a named test turns red.

usage: run_mutants.py [NAME ...]     without names: all of mutants.txt

Works on a copy of the tree in build/mutation/; with ccache its objects are those of an earlier build of preset cpu. The
unbroken code is built and its tests run once before the first mutant. Exits 1 when a mutant survives, does not compile, or its source
text is not found exactly once, and when a test does not pass on the unbroken code.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(os.environ.get("GRPO_MUTATION_ROOT", Path(__file__).resolve().parents[2]))
WORK = Path(os.environ.get("GRPO_MUTATION_DIR", ROOT / "build" / "mutation"))
MUTANTS = Path(os.environ.get("GRPO_MUTANTS", ROOT / "tests" / "mutation" / "mutants.txt"))
SOURCE_FOLDERS = ("app", "configs", "generation", "model", "parallel", "rl", "tests", "tools")
SOURCE_FILES = ("CMakeLists.txt", "CMakePresets.json", "README.md")
TEST_TIMEOUT_S = 600


@dataclass
class Mutant:
    name: str
    file: str
    text: str
    replacement: str
    target: str
    test_filter: str
    environment: tuple  # pairs set for the test

    @property
    def test(self):
        return (self.environment, self.target, self.test_filter)


def read_mutants(path):
    mutants = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(" | ")]
        if len(fields) != 5 or not re.fullmatch(r"(\w+=\S* )*[^\s:=]+:\S+", fields[4]):
            sys.exit(f"{path}:{number}: allowed: name | file | source text | replacement | "
                     "[VARIABLE=value ...] target:filter")
        name, file, text, replacement, test = fields
        *settings, program = test.split()
        target, test_filter = program.split(":", 1)
        environment = tuple(tuple(setting.split("=", 1)) for setting in settings)
        unescape = lambda field: field.replace("\\n", "\n")
        replacement = "" if replacement == "<nothing>" else replacement
        mutants.append(Mutant(name, file, unescape(text), unescape(replacement), target, test_filter, environment))
    return mutants


def copy_tree(destination):
    """Copies what differs and removes what is gone, so that unchanged files keep their times."""
    wanted = set()
    files = [ROOT / name for name in SOURCE_FILES]
    for folder in SOURCE_FOLDERS:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in files:
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        copy = destination / path.relative_to(ROOT)
        wanted.add(copy)
        if not copy.is_file() or copy.read_bytes() != path.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    for folder in SOURCE_FOLDERS:
        for path in (destination / folder).rglob("*"):
            if path.is_file() and path not in wanted:
                path.unlink()


class Runner:
    def __init__(self):
        self.source = WORK / "source"
        self.build = self.source / "build" / "cpu"  # relative to the sources as a preset's: ccache compares such paths
        self.log = WORK / "log.txt"

    def call(self, command, **options):
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(map(str, command))}\n")
            log.flush()
            return subprocess.run(command, stdout=log, stderr=log, check=False, **options).returncode

    def prepare(self):
        self.source.mkdir(parents=True, exist_ok=True)
        self.log.write_text("", encoding="utf-8")
        copy_tree(self.source)
        if self.call(["cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]) != 0:
            sys.exit(f"the copy does not configure, see {self.log}")

    def compiles(self, *targets):
        jobs = str(os.cpu_count() or 1)
        return self.call(["cmake", "--build", self.build, "--parallel", jobs, "--target", *targets]) == 0

    def binary(self, target):
        found = [path for path in self.build.rglob(target) if path.is_file() and os.access(path, os.X_OK)]
        return found[0] if found else None

    def environment(self, mutant):
        return {**os.environ, **dict(mutant.environment)}

    def num_tests(self, mutant):
        listed = subprocess.run([self.binary(mutant.target), f"--gtest_filter={mutant.test_filter}", "--gtest_list_tests"],
                                capture_output=True, text=True, check=False, env=self.environment(mutant)).stdout
        return sum(line.startswith("  ") for line in listed.splitlines())

    def passes(self, mutant):
        try:
            return self.call([self.binary(mutant.target), f"--gtest_filter={mutant.test_filter}"],
                             timeout=TEST_TIMEOUT_S, env=self.environment(mutant)) == 0
        except subprocess.TimeoutExpired:
            return False

    def check_unbroken(self, mutants):
        """What is wrong with the tests on the unbroken code, by Mutant.test; None for most."""
        targets = sorted({mutant.target for mutant in mutants})
        if not self.compiles(*targets):
            sys.exit(f"the unbroken code does not compile, see {self.log}")
        wrong = {}
        for mutant in mutants:
            if mutant.test in wrong:
                continue
            wrong[mutant.test] = None
            if self.num_tests(mutant) == 0:
                wrong[mutant.test] = "no test matches the filter"
            elif not self.passes(mutant):
                wrong[mutant.test] = "the test fails on the unbroken code"
        return wrong

    def verdict(self, mutant):
        """'killed', or what is wrong."""
        path = self.source / mutant.file
        original = path.read_text(encoding="utf-8") if path.is_file() else ""
        count = original.count(mutant.text)
        if count != 1:
            return f"source text found {count} times"
        path.write_text(original.replace(mutant.text, mutant.replacement), encoding="utf-8")
        try:
            if not self.compiles(mutant.target):
                return "does not compile"
            return "SURVIVED" if self.passes(mutant) else "killed"
        finally:
            path.write_text(original, encoding="utf-8")


def main():
    names = set(sys.argv[1:])
    mutants = read_mutants(MUTANTS)
    unknown = names - {mutant.name for mutant in mutants}
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    runner = Runner()
    runner.prepare()
    mutants = [mutant for mutant in mutants if not names or mutant.name in names]
    wrong = runner.check_unbroken(mutants)
    width = max([len(mutant.name) for mutant in mutants] + [6])
    num_bad = 0
    for mutant in mutants:
        start = time.monotonic()
        verdict = wrong[mutant.test] or runner.verdict(mutant)
        num_bad += verdict != "killed"
        seconds = time.monotonic() - start
        print(f"{mutant.name:<{width}}  {mutant.target}:{mutant.test_filter}  {seconds:.0f} s  {verdict}", flush=True)
    print(f"{len(mutants) - num_bad} of {len(mutants)} mutants killed (log: {runner.log})")
    return 1 if num_bad or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
