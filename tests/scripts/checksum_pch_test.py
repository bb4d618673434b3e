#!/usr/bin/env python3
"""Tests of scripts/checksum_pch.py: the checksum is the same in every clone, and another one for other inputs."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "checksum_pch.py"
# Called as PROGRAM STATUS option... -MF FILE -o FILE -c SOURCE: writes both files, and its folder as clang does.
COMPILER = """
import pathlib, sys
options = sys.argv[2:]
after = lambda name: options[options.index(name) + 1]
pathlib.Path(after("-MF")).write_text(f"target: {after('-c')} \\\\\\n  with\\\\ space.h\\n")
pathlib.Path(after("-o")).write_text(str(pathlib.Path.cwd()))
sys.exit(int(sys.argv[1]))
"""


class ChecksumPch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def clone(self, name, header="int x;\n"):
        """A folder with the script, a compiler and a header that includes another one."""
        root = self.folder / name
        (root / "scripts").mkdir(parents=True)
        shutil.copy(SCRIPT, root / "scripts")
        (root / "compiler.py").write_text(COMPILER)
        (root / "all.h").write_text('#include "with space.h"\n')
        (root / "with space.h").write_text(header)
        return root

    def run_in(self, root, *options, status=0, action="-emit-pch"):
        """The exit status and the checksum, None without one."""
        command = [sys.executable, root / "compiler.py", str(status), *options, "-Xclang", action, "-MF", "all.pch.d", "-o",
                   root / "all.pch", "-c", root / "all.h"]
        result = subprocess.run([sys.executable, root / "scripts" / "checksum_pch.py", *command], cwd=root)
        written = root / "all.pch.sum"
        return result.returncode, written.read_text() if written.exists() else None

    def checksum(self, *arguments, **options):
        status, written = self.run_in(*arguments, **options)
        self.assertEqual(status, 0)
        self.assertRegex(written, "^[0-9a-f]{64}$")
        return written

    def test_is_the_same_in_folders_of_other_names(self):
        first, second = self.clone("first"), self.clone("another/second")
        self.assertEqual(self.checksum(first, f"-I{first}/src"), self.checksum(second, f"-I{second}/src"))
        self.assertNotEqual((first / "all.pch").read_text(), (second / "all.pch").read_text())

    def test_is_another_one_for_other_contents_or_options(self):
        first = self.checksum(self.clone("first"))
        self.assertNotEqual(self.checksum(self.clone("second", header="int y;\n")), first)
        self.assertNotEqual(self.checksum(self.clone("third"), "-O2"), first)

    def test_other_files_have_none(self):
        self.assertEqual(self.run_in(self.clone("first"), action="-emit-obj"), (0, None))

    def test_what_failed_has_none_and_keeps_its_status(self):
        self.assertEqual(self.run_in(self.clone("first"), status=3), (3, None))


if __name__ == "__main__":
    unittest.main()
