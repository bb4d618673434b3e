#!/usr/bin/env python3
"""Tests of scripts/check_includes.py on small source trees with a layer order of their own."""
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import check_includes  # noqa: E402


class CheckIncludes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("base/text.h")
        self.write("backends/backend.h", '#include "base/text.h"')
        self.write("backends/cpu/pool.h", '#include "backends/backend.h"')
        self.write("plan/plan.cpp", '#include "backends/backend.h"')

    def write(self, path, text=""):
        path = self.root / "src" / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(("#pragma once\n" if path.suffix == ".h" else "") + text + "\n")

    def violations(self, **changed):
        may_see = {"base": [], "backends": ["base"], "backends/cpu": ["base", "backends"], "plan": ["base", "backends"], **changed}
        with mock.patch.object(check_includes, "MAY_SEE", may_see):
            return list(check_includes.violations(self.root))

    def test_includes_follow_the_order(self):
        self.assertEqual(self.violations(), [])

    def test_a_folder_with_an_entry_is_no_part_of_the_one_above(self):
        self.write("plan/plan.cpp", '#include "backends/cpu/pool.h"')
        self.assertRegex("\n".join(self.violations()), 'plan.cpp:1: src/plan may not include "backends/cpu/pool.h"')

    def test_a_permission_for_what_does_not_exist_is_refused(self):
        self.assertRegex("\n".join(self.violations(plan=["base", "backends", "memory"])), "src/memory does not exist")

    def test_a_permission_that_nobody_uses_is_refused(self):
        self.write("backends/cpu/other.h")
        found = self.violations(plan=["backends", "backends/cpu/other.h"])
        self.assertRegex("\n".join(found), 'no file there includes "backends/cpu/other.h"')

    def test_cuda_headers_stay_in_their_backend(self):
        self.write("plan/plan.cpp", "#include <nccl.h>")
        self.assertRegex("\n".join(self.violations()), "CUDA header outside backends/cuda")

    def test_json_is_read_in_one_place(self):
        self.write("base/json.cpp", "Json::sax_parse(text.begin(), text.end(), &builder);")
        self.write("plan/plan.h", "Json json = parse_json(text, what);  // not Json::parse(text)")
        self.assertEqual(self.violations(), [])
        for call in ("nlohmann::json::parse(text)", "ordered_json::parse(text)", "Json::sax_parse(a, &b)", "json::accept(text)",
                     "json::from_cbor(bytes)", '"{}"_json'):
            self.write("plan/plan.cpp", f"auto json = {call};")
            self.assertRegex("\n".join(self.violations()), "plan.cpp:1: JSON read outside base/json", call)


if __name__ == "__main__":
    unittest.main()
