"""tools/check_includes.py finds each kind of problem in a sample tree, and none in this one."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

GOOD_TREE = {
    "model/core/dtype.h": "// Why.\n#pragma once\n\n#include <string>\n",
    "model/core/dtype.cpp": '#include "model/core/dtype.h"\n',
    "model/core/cuda_check.h": "#pragma once\n#include <cuda_runtime.h>\n",
    "model/ops/linear.h": '#pragma once\n#include "model/core/dtype.h"\n',
    "model/ops/linear.cpp": '#include "model/ops/linear.h"\n\n#include "model/ops/cuda/entry_points.h"\n',
    "model/ops/cuda/entry_points.h": '#pragma once\n#include "model/ops/linear.h"\n',
    "model/ops/cuda/linear.cu": "#include <cublasLt.h>\n#include <cuda_bf16.h>\n",
    "rl/objective/loss.h": "#pragma once\n",
    "rl/objective/loss.cpp": '#include "rl/objective/loss.h"\n',
    "rl/objective/loss_terms.cpp": '#include "rl/objective/loss.h"\n',
    "model/layers/norm.h": '#pragma once\n#include "model/ops/linear.h"\n',
    "model/transformer.h": '#pragma once\n#include "model/layers/norm.h"\n',
    "parallel/comm/gloo_transport.h": "#pragma once\n",
    "parallel/comm/gloo_transport.cpp": "#include \"parallel/comm/gloo_transport.h\"\n#include <gloo/context.h>\n#include <gloo/types.h>\n",
    "app/main.cpp": '#include "model/transformer.h"\n',
    "tests/app/main_test.cpp": '#include "parallel/layout/mesh.h"\n',
    "parallel/layout/mesh.h": "#pragma once\n",
}


def check(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        run = subprocess.run([sys.executable, ROOT / "tools/check_includes.py", folder],
                             capture_output=True, text=True, check=False)
        return run.returncode, run.stdout


class CheckIncludesTest(unittest.TestCase):
    def assert_problem(self, changes, *parts):
        code, out = check({**GOOD_TREE, **changes})
        self.assertEqual(code, 1, out)
        for part in parts:
            self.assertIn(part, out)
        self.assertEqual(len(out.splitlines()), 2, out)  # the problem and the count

    def test_this_tree(self):
        run = subprocess.run([sys.executable, ROOT / "tools/check_includes.py"], capture_output=True,
                             text=True, check=False)
        self.assertEqual((run.returncode, run.stdout), (0, ""))

    def test_good_tree(self):
        self.assertEqual(check(GOOD_TREE), (0, ""))

    def test_include_goes_up(self):
        self.assert_problem({"parallel/comm/world.h": '#pragma once\n#include "app/output/console.h"\n',
                             "app/output/console.h": "#pragma once\n"},
                            'parallel/comm/world.h:2: includes go down only, "app/output/console.h" is above')

    def test_include_goes_up_inside_model(self):
        self.assert_problem({"model/core/dtype.h": '#pragma once\n#include "model/ops/linear.h"\n'},
                            "model/core/dtype.h:2:")
        self.assert_problem({"model/ops/rope.h": '#pragma once\n#include "model/layers/norm.h"\n'},
                            "model/ops/rope.h:2:")
        self.assert_problem({"model/layers/mlp.h": '#pragma once\n#include "model/transformer.h"\n'},
                            "model/layers/mlp.h:2:")

    def test_include_goes_up_inside_the_other_folders(self):
        for low, high in (("app/text/a.h", "app/config/b.h"), ("rl/objective/a.h", "rl/loop/b.h"),
                          ("parallel/comm/a.h", "parallel/store/b.h"), ("model/files/a.h", "model/tokenizer/b.h")):
            self.assert_problem({low: f'#pragma once\n#include "{high}"\n', high: "#pragma once\n"},
                                f'{low}:2: includes go down only, "{high}" is above')
        self.assert_problem({"model/ops/cpu/a.h": '#pragma once\n#include "model/ops/cuda/b.h"\n',
                             "model/ops/cuda/b.h": "#pragma once\n"},
                            'model/ops/cpu/a.h:2: includes go down only, "model/ops/cuda/b.h" is beside it')

    def test_circles(self):
        self.assert_problem({"rl/data/a.h": '#pragma once\n#include "rl/data/b.h"\n',
                             "rl/data/b.h": '#pragma once\n#include "rl/data/a.h"\n'},
                            "includes itself: rl/data/a.h > rl/data/b.h > rl/data/a.h")

    def test_sources_in_no_room(self):
        self.assert_problem({"rl/reward.h": "#pragma once\n"}, "rl/reward.h:1: is in none of the folders")

    def test_sources_without_a_header(self):
        self.assert_problem({"rl/objective/advantage.cpp": ""},
                            "rl/objective/advantage.cpp:1: has no header of its name")

    def test_full_folders(self):
        many = {f"rl/data/a{index}.h": "#pragma once\n" for index in range(46)}
        self.assert_problem(many, "rl/data:1: 46 files beside its sub-folders; allowed: 45")

    def test_sources_do_not_include_tests(self):
        self.assert_problem({"tests/ranks.h": "#pragma once\n", "rl/objective/loss.h": '#pragma once\n#include "tests/ranks.h"\n'},
                            "rl/objective/loss.h:2: includes go down only")

    def test_missing_pragma_once(self):
        self.assert_problem({"rl/objective/loss.h": "#include <vector>\n"}, "rl/objective/loss.h:1:", "#pragma once")

    def test_include_not_relative_to_the_root(self):
        self.assert_problem({"rl/objective/loss_terms.cpp": '#include "mesh.h"\n'}, "rl/objective/loss_terms.cpp:1:", "relative to the root")
        self.assert_problem({"rl/objective/loss_terms.cpp": '#include "rl/../parallel/layout/mesh.h"\n'}, "rl/objective/loss_terms.cpp:1:")
        self.assert_problem({"rl/objective/loss_terms.cpp": "#include <parallel/layout/mesh.h>\n"}, "write it in quotes")

    def test_own_header_first(self):
        self.assert_problem({"parallel/layout/mesh.cpp": '#include <vector>\n\n#include "parallel/layout/mesh.h"\n'},
                            'parallel/layout/mesh.cpp:1: the first include is not "parallel/layout/mesh.h"')

    def test_third_party_in_a_header(self):
        self.assert_problem({"app/config/yaml.h": "#pragma once\n#include <yaml-cpp/yaml.h>\n"},
                            "app/config/yaml.h:2: yaml-cpp is named in a header")

    def test_third_party_in_two_files(self):
        code, out = check({**GOOD_TREE, "parallel/comm/gloo_transport_other.cpp": "#include <gloo/barrier.h>\n"})
        self.assertEqual(code, 1)
        self.assertIn("parallel/comm/gloo_transport_other.cpp:1: gloo is named in 2 files", out)
        self.assertIn("parallel/comm/gloo_transport.cpp:2: gloo is named in 2 files", out)

    def test_a_tests_stand_in_for_a_library(self):
        code, out = check({**GOOD_TREE, "tests/gpu/gloo_stand_in.cpp": "#include <gloo/barrier.h>\n"})
        self.assertEqual(code, 0, out)

    def test_cuda_header_outside_cuda_files(self):
        self.assert_problem({"model/ops/linear_rows.cpp": "#include <cuda_runtime.h>\n"}, "is included outside *_cuda.*")

    def test_too_many_cuda_core_headers(self):
        more = {f"model/core/cuda_{name}.h": "#pragma once\n#include <cuda.h>\n" for name in ("a", "b")}
        code, out = check({**GOOD_TREE, **more})
        self.assertEqual(code, 1)
        self.assertIn("model/core/cuda_a.h:1: more than 2 core headers", out)

    def test_file_names(self):
        self.assert_problem({"rl/data/math_utils.h": "#pragma once\n"}, "rl/data/math_utils.h:1:", "not utils")
        self.assert_problem({"tests/rl/helpers.py": ""}, "tests/rl/helpers.py:1:")
        self.assert_problem({"rl/objective/loss_A.cpp": ""}, "rl/objective/loss_A.cpp:1: file names are snake_case")
        self.assert_problem({"model/ops/linear_rows.cu": ""}, "model/ops/linear_rows.cu:1: CUDA sources are named")

    def test_long_files(self):
        self.assert_problem({"rl/objective/loss_terms.cpp": "\n" * 501}, "rl/objective/loss_terms.cpp:501: more than 500 lines")


if __name__ == "__main__":
    unittest.main()
