"""tools/install_packages.sh: asks apt only for what is missing, and names it when it may not install."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS_OF_THE_SCRIPT = ("bash", "env")


class InstallPackagesTest(unittest.TestCase):
    def run_script(self, missing=(), user_id="0", has_sudo=False, sudo_asks=False, apt_works=True, **environment):
        """Exit code, output, and the commands that would have changed the system."""
        with tempfile.TemporaryDirectory() as folder:
            bin_folder = Path(folder)
            log = bin_folder / "log"
            log.touch()
            for tool in TOOLS_OF_THE_SCRIPT:
                (bin_folder / tool).symlink_to(shutil.which(tool))
            cases = "".join(f"{name}) exit 1;; " for name in missing)
            scripts = {
                "dpkg-query": f'case "$4" in {cases}*) echo -n installed;; esac',
                "id": f"echo {user_id}",
                "apt-get": f'echo "apt-get $*" >> {log}; [ "$1" = update ] || exit {0 if apt_works else 100}',
            }
            if has_sudo:
                refuses = '[ "$1" != -n ] || exit 1; ' if sudo_asks else '[ "$1" != -n ] || shift; '
                scripts["sudo"] = refuses + f'[ "$1" = true ] || echo "sudo $*" >> {log}; [ "$1" = true ] || exec "$@"'
            for name, body in scripts.items():
                (bin_folder / name).write_text(f"#!{bin_folder}/bash\n{body}\n", encoding="utf-8")
                (bin_folder / name).chmod(0o755)
            run = subprocess.run([bin_folder / "bash", ROOT / "tools/install_packages.sh"], stdin=subprocess.DEVNULL,
                                 capture_output=True, text=True, check=False, env={"PATH": folder, **environment})
            return run.returncode, run.stdout + run.stderr, log.read_text(encoding="utf-8").splitlines()

    def test_nothing_is_missing(self):
        self.assertEqual(self.run_script(), (0, "", []))

    def test_root_installs_what_is_missing_and_nothing_else(self):
        code, _, commands = self.run_script(missing=["ccache", "libgloo-dev"])
        self.assertEqual(code, 0)
        self.assertEqual(commands, ["apt-get update -q",
                                    "apt-get install -y --no-install-recommends ccache libgloo-dev"])

    def test_users_install_with_sudo(self):
        code, _, commands = self.run_script(missing=["ccache"], user_id="1000", has_sudo=True)
        self.assertEqual(code, 0)
        self.assertIn("sudo apt-get update -q", commands)
        self.assertIn("apt-get install -y --no-install-recommends ccache", commands)
        self.assertTrue(any(c.startswith("sudo env DEBIAN_FRONTEND=noninteractive apt-get install") for c in commands))

    def test_names_the_packages_when_it_may_not_install(self):
        for options in ({"user_id": "1000"}, {"user_id": "1000", "has_sudo": True, "sudo_asks": True},
                        {"apt_works": False}):
            code, out, _ = self.run_script(missing=["ccache", "libgloo-dev"], **options)
            self.assertEqual(code, 1, options)
            self.assertIn("missing packages: ccache libgloo-dev", out)
            self.assertIn("apt-get install ccache libgloo-dev", out)

    def test_can_be_skipped(self):
        self.assertEqual(self.run_script(missing=["ccache"], GRPO_SKIP_PACKAGES="1"), (0, "", []))


if __name__ == "__main__":
    unittest.main()
