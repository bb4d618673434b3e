#!/usr/bin/env python3
"""Tests of scripts/check_op_names.py: comparisons that it refuses and allows, and that no exemption is superfluous."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "check_op_names.py"
OPS = ('const OpDefinition kLinearOp{\n    .name = "linear",\n};\n'
       'const OpDefinition kAllGatherOp{\n    .name = "all_gather",\n};\n')


class CheckOpNames(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("src/ops/linear.cpp", OPS)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def lines(self, text, path="src/passes/pass.cpp"):
        """What the script says of a file with that text."""
        self.write(path, text)
        run = subprocess.run([sys.executable, SCRIPT, self.root], capture_output=True, text=True, check=False)
        lines = run.stdout.splitlines()
        self.assertEqual(run.returncode, 1 if len(lines) > 1 else 0, run.stderr)
        return lines[:-1]

    def test_comparisons_are_refused(self):
        for text in ['if (spec.op == "linear") {}', 'if ("linear" != spec.op) {}', 'return op.starts_with("linear");',
                     'return program.spec(task).op.find("grad") == 0;', 'if (op(task) == "unknown") {}',
                     "if (spec.op == kLinearOp.name) {}", "if (kLinearOp.name == spec.op) {}",
                     "return &find_op(spec.op) == &kLinearOp;", "if (spec.op ==\n    kLinearOp.name) {}",
                     'constexpr std::array kMoves = {"all_gather"};', 'OpSpec spec{.op = "linear"};']:
            with self.subTest(text):
                found = self.lines(text)
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith("src/passes/pass.cpp:1: "), found)

    def test_the_line_is_that_of_the_comparison(self):
        self.assertTrue(self.lines('/* one\n two */\n\nif (op == "linear") {}')[0].startswith("src/passes/pass.cpp:4: "))

    def test_making_a_task_and_other_words_are_fine(self):
        for text in ["writer.append({std::string(kLinearOp.name), {}, {x, y}});", 'if (schedule == "linear") {}',
                     '// spec.op == "linear"', 'if (a.op == b.op) {}', "if (op == nullptr) {}", 'list.norm("linear");']:
            with self.subTest(text):
                self.assertEqual(self.lines(text), [])

    def test_ops_and_kernels_may_name_them(self):
        for path in ["src/ops/other.cpp", "src/backends/cpu/kernels/registry.cpp"]:
            with self.subTest(path):
                self.assertEqual(self.lines('if (spec.op == "linear") {}', path), [])

    def test_an_exemption_must_be_needed(self):
        path = "src/config/choices.h"
        self.assertEqual(self.lines('constexpr auto kMethod = "all_gather";', path), [])
        self.assertIn("is not needed", self.lines("int x;", path)[0])


if __name__ == "__main__":
    unittest.main()
