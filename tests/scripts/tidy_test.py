#!/usr/bin/env python3
"""Tests of scripts/tidy.py: which sources it checks again, and which it must never skip. Exits 77 (ctest: skipped) without clang."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TIDY = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "tidy.py"
CONFIG = "Checks: '-*,readability-identifier-naming'\nWarningsAsErrors: '*'\nHeaderFilterRegex: '.*'\n"
FUNCTIONS = "CheckOptions: [{key: readability-identifier-naming.FunctionCase, value: lower_case}]\n"
VARIABLES = "CheckOptions: [{key: readability-identifier-naming.VariableCase, value: lower_case}]\n"


class Tidy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.root = self.clone("first")

    def clone(self, name, option="-DFIRST"):
        """A source with a header, and a source without, in a separate folder."""
        root = self.folder / name
        (root / "build").mkdir(parents=True)
        (root / ".clang-tidy").write_text(CONFIG + FUNCTIONS)
        (root / "used.h").write_text("inline int twice(int x) { return 2 * x; }\n")
        (root / "a.cpp").write_text('#include "used.h"\nint four() { return twice(2); }\n')
        (root / "b.cpp").write_text("int one() { return 1; }\n")
        (root / "build" / "compile_commands.json").write_text(json.dumps([
            {"directory": str(root / "build"), "file": str(root / source),
             "command": f"clang++-14 {option} -o {source}.o -c {root / source}"} for source in ("a.cpp", "b.cpp")]))
        return root

    def tidy(self, root=None, sources=("a.cpp", "b.cpp")):
        """Exit status, last line, everything printed."""
        environment = dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"))
        result = subprocess.run([TIDY, "-p", "build", *sources], cwd=root or self.root, env=environment,
                                capture_output=True, text=True)
        self.assertEqual(result.stderr, "")
        return result.returncode, result.stdout.splitlines()[-1], result.stdout

    def expect(self, looked_at, unclean=0, root=None):
        status, last, printed = self.tidy(root)
        self.assertEqual(last, f"2 sources: {2 - looked_at} known to be clean, {looked_at} looked at, {unclean} not clean")
        self.assertEqual(status, 1 if unclean else 0)
        return printed

    def test_clean_sources_are_looked_at_once(self):
        self.expect(looked_at=2)
        self.expect(looked_at=0)

    def test_a_second_clone_knows_what_the_first_found(self):
        self.expect(looked_at=2)
        self.expect(looked_at=0, root=self.clone("second"))

    def test_a_header_concerns_those_that_include_it(self):
        self.expect(looked_at=2)
        (self.root / "used.h").write_text("inline int Twice(int x) { return 2 * x; }\nconstexpr auto twice = Twice;\n")
        self.assertIn("invalid case style for function 'Twice'", self.expect(looked_at=1, unclean=1))

    def test_what_is_not_clean_is_never_remembered(self):
        (self.root / "b.cpp").write_text("int One() { return 1; }\n")
        self.expect(looked_at=2, unclean=1)
        self.assertIn("b.cpp:1:5: error: invalid case style for function 'One'", self.expect(looked_at=1, unclean=1))

    def test_sources_that_cannot_be_one_file_are_looked_at_alone(self):
        (self.root / "a.cpp").write_text("namespace {\n  int helper() { return 1; }\n}\nint four() { return helper(); }\n")
        (self.root / "b.cpp").write_text("namespace {\n  int helper() { return 2; }\n}\nint one() { return helper(); }\n")
        self.expect(looked_at=2)  # a name that is not at the start of a line is overlooked
        self.expect(looked_at=0)
        (self.root / "b.cpp").write_text("namespace {\nint helper() { return 3; }\n}\nint One() { return helper(); }\n")
        self.assertIn("b.cpp:4:5: error: invalid case style for function 'One'", self.expect(looked_at=1, unclean=1))

    def test_comments_that_silence_a_line_count(self):
        (self.root / "b.cpp").write_text("int One() { return 1; }  // NOLINT\n")
        self.expect(looked_at=2)
        (self.root / "b.cpp").write_text("int One() { return 1; }  // nothing\n")
        self.expect(looked_at=1, unclean=1)

    def test_other_checks_and_other_options_concern_all(self):
        self.expect(looked_at=2)
        (self.root / ".clang-tidy").write_text(CONFIG + VARIABLES)
        self.expect(looked_at=2)
        self.expect(looked_at=2, root=self.clone("optioned", "-DSECOND"))

    def test_a_source_without_a_command_is_refused(self):
        (self.root / "c.cpp").write_text("int three() { return 3; }\n")
        status, last, _ = self.tidy(sources=("a.cpp", "c.cpp"))
        self.assertEqual(status, 1)
        self.assertEqual(last, "tidy.py: c.cpp is not in build/compile_commands.json: configure that folder again")


if __name__ == "__main__":
    if not shutil.which("clang-tidy-14") or not shutil.which("clang++-14"):
        print("no clang-tidy-14 or clang++-14: scripts/setup.sh --dev")
        sys.exit(77)
    unittest.main()
