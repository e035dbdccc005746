"""cmake --install: the program runs from the folder with the libraries that are there, whatever else the loader knows."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

BUILD = os.environ["GRPO_BUILD"]
OF_THE_SYSTEM = re.compile(r"lib(c|m|gcc_s|stdc\+\+)\.so")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


@unittest.skipIf(os.environ["GRPO_SANITIZE"], "sanitizers' libraries are not made to be moved")
class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = Path(cls.scratch.name) / "installed"
        # Another program's library, which is no business of this installation.
        cls.foreign = cls.folder / "lib/libforeign.so"
        cls.foreign.parent.mkdir(parents=True)
        cls.foreign.write_bytes(b"not ours")
        done = run(os.environ["GRPO_CMAKE"], "--install", BUILD, "--prefix", cls.folder)
        assert done.returncode == 0, done.stderr
        cls.program = cls.folder / "bin/grpo_train"

    def test_it_has_the_projects_version(self):
        done = run(self.program, "--version")
        self.assertEqual((done.returncode, done.stdout), (0, f"grpo_train {os.environ['GRPO_VERSION']}\n"))

    def test_every_library_is_its_own(self):
        lines = [line.strip() for line in run("ldd", self.program).stdout.splitlines() if "=>" in line]
        own = [line for line in lines if str(self.folder) in line]
        others = [line for line in lines if line not in own and not OF_THE_SYSTEM.match(line)]
        self.assertEqual(others, [])
        for name in ("libpcre2-8", "libicuuc", "libicudata", "libsentencepiece", "libgloo"):
            self.assertTrue(any(line.startswith(name) for line in own), name)

    def test_libraries_of_the_environment_do_not_come_first(self):
        with tempfile.TemporaryDirectory() as broken:
            for path in (self.folder / "lib").iterdir():
                (Path(broken) / path.name).touch()  # the loader would end at an empty file
            done = run(self.program, "--version", env={**os.environ, "LD_LIBRARY_PATH": broken})
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_infiniband_library_has_a_name_of_its_own(self):
        self.assertEqual([path.name for path in (self.folder / "lib").glob("libibverbs*")], [])

    def test_other_libraries_are_left_alone(self):
        self.assertEqual(self.foreign.read_bytes(), b"not ours")

    def test_configs_are_found_beside_it(self):
        share = self.folder / "share/grpo_train"
        done = run(self.program, "--config", "configs/demo_gtp2.yaml", "--check", cwd=share)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
