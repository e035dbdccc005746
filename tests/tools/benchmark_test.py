"""grpo_benchmark at tiny sizes on the CPU: its table and its JSON agree, and its floors are counted right.

The program is named by GRPO_BENCHMARK.
"""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

PROGRAM = os.environ["GRPO_BENCHMARK"]
D, LAYERS, HEADS, KV_HEADS, HEAD_DIM, F, V = 32, 2, 4, 2, 8, 48, 64
MODEL = ["--device=cpu", "--model=custom", f"--hidden-size={D}", f"--layers={LAYERS}", f"--heads={HEADS}",
         f"--kv-heads={KV_HEADS}", f"--intermediate-size={F}", f"--vocab-size={V}"]
LENGTH, CONTEXT, TOKENS, MICRO_BATCHES, CHUNK = 16, 4, 48, 2, 9
TRAINING = [f"--sequence-length={LENGTH}", f"--context-tokens={CONTEXT}", f"--micro-batch-tokens={TOKENS}",
            f"--micro-batches={MICRO_BATCHES}", f"--head-chunk-rows={CHUNK}"]
SEQUENCES, PROMPT, NEW = 8, 5, 4
GENERATION = [f"--sequences={SEQUENCES}", "--prompts=2,8", f"--prompt-tokens={PROMPT}", f"--new-tokens={NEW}"]
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
LAYER_PRODUCTS = QKV * D + D * HEADS * HEAD_DIM + 2 * F * D + D * F
PARAMETERS = V * D + LAYERS * (LAYER_PRODUCTS + QKV + 2 * D) + D
PAIRS = TOKENS * (LENGTH + 1) / 2
PREDICTED = TOKENS // LENGTH * (LENGTH - CONTEXT)


def run(*options):
    return subprocess.run([PROGRAM, *options], capture_output=True, text=True, check=False)


def measure(*options):
    """Standard output and JSON of a run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        done = run(*MODEL, *TRAINING, *GENERATION, "--repeats=1", f"--json={path}", *options)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout, json.loads(path.read_text(encoding="utf-8"))


def cells(line):
    return [cell.strip() for cell in line.strip("|\n").split("|")]



class BenchmarkTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text, cls.json = measure("--kernels", "--products=2")
        cls.phases = {(row["section"], row["phase"]): row for row in cls.json["phases"]}

    def test_every_phase_is_measured(self):
        sections = {
            "training step, 2 x 48 tokens": {"all", "forward", "loss head", "backward", "reduce", "optimizer",
                                             "packing, loss sums and other"},
            "scoring, 2 x 48 tokens": {"all"},
            "refit": {"all"},
        }
        for prompts in ("2 prompts x 4", "8 prompts x 1"):
            sections[f"generation, {prompts}"] = {
                "all", "prefill and first tokens", "prefill: model", "first tokens: sampling and host",
                "decode, a step", "decode, a step: model", "decode, a step: sampling and host"}
        found = {}
        for section, phase in self.phases:
            found.setdefault(section, set()).add(phase)
        self.assertEqual(found, sections)
        for (section, phase), row in self.phases.items():
            # Differences of two runs of microseconds may come out below 0 on a busy machine.
            if not phase.startswith(("decode", "packing")):
                self.assertGreater(row["seconds"], 0, (section, phase))
            if phase == "all":
                self.assertGreater(row["peak_bytes"], 2 * PARAMETERS, section)

    def test_tokens_are_the_work_that_was_asked_for(self):
        step = MICRO_BATCHES * TOKENS
        expected = {("training step, 2 x 48 tokens", "all"): step, ("scoring, 2 x 48 tokens", "all"): step,
                    ("generation, 2 prompts x 4", "all"): SEQUENCES * NEW,
                    ("generation, 2 prompts x 4", "prefill and first tokens"): 2 * PROMPT,
                    ("generation, 8 prompts x 1", "prefill and first tokens"): 8 * PROMPT,
                    ("generation, 8 prompts x 1", "decode, a step"): SEQUENCES}
        for key, tokens in expected.items():
            row = self.phases[key]
            self.assertAlmostEqual(row["tokens_per_second"] * row["seconds"], tokens, places=6)

    def test_kernels_are_those_of_the_step_and_sorted(self):
        kernels = {row["operator"]: row for row in self.json["kernels"]}
        self.assertEqual(len(kernels), len(self.json["kernels"]))
        self.assertEqual(kernels["qkv product"]["calls_per_step"], LAYERS * MICRO_BATCHES)
        self.assertEqual(kernels["head product"]["calls_per_step"], PREDICTED / CHUNK * MICRO_BATCHES)
        self.assertEqual(kernels["adamw_step"]["calls_per_step"], 1)
        times = [row["calls_per_step"] * row["seconds_per_call"] for row in self.json["kernels"]]
        self.assertEqual(times, sorted(times, reverse=True))
        self.assertTrue(all(time > 0 for time in times))
        for row in kernels.values():
            ceilings = self.json["ceilings"]
            floor = max(row["flops"] / ceilings["flops_per_second"], row["bytes"] / ceilings["bytes_per_second"])
            self.assertAlmostEqual(row["share_of_floor"], floor / row["seconds_per_call"], places=12)

    def test_products_are_those_of_the_kernels(self):
        products = {row["operator"]: row for row in self.json["products"]}
        kernels = {row["operator"]: row for row in self.json["kernels"] if row["operator"].endswith(
            ("product", "input gradient", "weight gradient"))}
        self.assertEqual(set(products), set(kernels))
        self.assertEqual(len(products), 15)
        for name, row in products.items():
            self.assertEqual(row["rank"], 0, "the CPU has one algorithm")
            self.assertEqual(row["flops"], kernels[name]["flops"])
            self.assertGreater(row["seconds_per_call"], 0)
        self.assertIn("| qkv product ", self.text.split("| product ")[1])

    def test_the_tables_come_last_and_say_what_the_json_says(self):
        lines = self.text.splitlines()
        kernels = next(i for i, line in enumerate(lines) if cells(line)[0] == "operator")
        names = [cells(line)[0] for line in lines[kernels + 2:]]
        self.assertEqual(names[:len(self.json["kernels"])], [row["operator"] for row in self.json["kernels"]])
        self.assertEqual(names[len(self.json["kernels"])], "sum")
        begin = next(i for i, line in enumerate(lines) if cells(line)[0] == "measured")
        self.assertEqual(len(lines[begin:]), 2 + len(self.phases))
        self.assertEqual({len(line) for line in lines[begin:]}, {len(lines[begin])})
        for line in lines[begin + 2:]:
            section, phase, ms, tokens, floor, share, peak = cells(line)
            row = self.phases[(section, phase)]
            self.assertAlmostEqual(float(ms), 1e3 * row["seconds"], delta=6e-5 + 1e-3 * abs(1e3 * row["seconds"]))
            self.assertEqual(tokens != "", "tokens_per_second" in row)
            self.assertEqual(floor != "", "floor_seconds" in row)
            self.assertEqual(share != "", "share_of_floor" in row)
            self.assertEqual(peak != "", phase == "all")
        self.assertIn("* device: cpu", self.text)

    def test_floors_of_products_count_each_multiply_add_twice(self):
        _, figures = measure("--phase=train,score", "--peak-tflops=1", "--peak-tbps=1e9")
        floors = {(row["section"], row["phase"]): row["floor_seconds"] * 1e12
                  for row in figures["phases"] if "floor_seconds" in row}
        products = 2 * TOKENS * LAYERS * LAYER_PRODUCTS
        head = 2 * PREDICTED * V * D
        attention = LAYERS * 4 * HEADS * HEAD_DIM * PAIRS
        step = "training step, 2 x 48 tokens"
        self.assertAlmostEqual(floors[step, "forward"] / (MICRO_BATCHES * (products + attention)), 1, places=3)
        self.assertAlmostEqual(floors[step, "loss head"] / (MICRO_BATCHES * 3 * head), 1, places=3)
        self.assertAlmostEqual(floors[step, "backward"] / (MICRO_BATCHES * (2 * products + 2.5 * attention)), 1,
                               places=3)
        self.assertAlmostEqual(
            floors["scoring, 2 x 48 tokens", "all"] / (MICRO_BATCHES * (products + attention + head)), 1, places=3)

    def test_floors_of_memory_count_bytes(self):
        _, figures = measure("--phase=train,refit,generate", "--peak-tflops=1e9", "--peak-tbps=1")
        floors = {(row["section"], row["phase"]): row["floor_seconds"] * 1e12
                  for row in figures["phases"] if "floor_seconds" in row}
        self.assertAlmostEqual(floors["refit", "all"], 4 * PARAMETERS, places=3)
        self.assertAlmostEqual(floors["training step, 2 x 48 tokens", "optimizer"], (4 + 4 + 30) * PARAMETERS, places=3)
        # Of prompts that several sequences share, keys and values are read once.
        kv_bytes = 2 * 2 * KV_HEADS * HEAD_DIM * LAYERS
        few, many = (floors[f"generation, {prompts}", "decode, a step: model"]
                     for prompts in ("2 prompts x 4", "8 prompts x 1"))
        self.assertAlmostEqual(many - few, 6 * PROMPT * kv_bytes, places=3)

    def test_bad_input_is_one_line(self):
        for options, text in ((["--model=nope"], "--model is 'nope'; allowed: qwen2.5-0.5b"),
                              (["--layers=2"], "sizes beside --model qwen2.5-0.5b"),
                              (["--phase=walk"], "--phase is 'walk'; allowed: train,"),
                              (["--micro-batch-tokens=100", "--sequence-length=64"], "a multiple of --sequence-length"),
                              (["--sequences=10", "--prompts=3"], "a multiple of --prompts, 3"),
                              (["--precision=int8"], "--precision is 'int8'; allowed: bfloat16, float32"),
                              (["--model=custom", "--hidden-size=30", "--heads=4"], "a multiple of --heads, 4"),
                              (["--nonsense"], "--nonsense"),
                              (["--repeats=0"], "--repeats")):
            done = run(*options)
            self.assertEqual(done.returncode, 2, done)
            self.assertEqual(done.stdout, "")
            self.assertRegex(done.stderr, r"\Agrpo_benchmark: error: [^\n]*\n\Z")
            self.assertIn(text, done.stderr)

    def test_help_names_the_options(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("--micro-batch-tokens", done.stdout)


if __name__ == "__main__":
    unittest.main()
