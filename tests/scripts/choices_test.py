#!/usr/bin/env python3
"""Tests of scripts/check_choices.py: which comparisons it finds, and which it leaves alone."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import check_choices  # noqa: E402

CHOICES = '''
template <>
inline constexpr auto kChoices<DType> =
    Choices<DType, 2>{{{"float32", DType::kF32}, {"bfloat16", DType::kBF16}}};
'''
FIELDS = '''
    Field{BRAID_KEY(train, dtype), one_of(kChoiceNames<DType>), "Type."},
    Field{BRAID_KEY(parallel, shard), one_of(kShards), "Shards."},
    Field{BRAID_KEY(overlap, cost), kAny, "Costs."},
'''


class Choices(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("config/fields.cpp", FIELDS)
        self.write("config/choices.h", CHOICES)

    def write(self, path, text):
        file = self.root / "src" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def found(self, line, path="plan/some.cpp"):
        self.write(path, line + "\n")
        return list(check_choices.violations(self.root))

    def test_keys_come_from_the_table(self):
        keys, dtypes = check_choices.keys_and_dtypes(self.root / "src/config")
        self.assertEqual(keys, {"dtype", "shard"})
        self.assertEqual(dtypes, ["float32", "bfloat16"])

    def test_comparisons_are_found(self):
        for line in ('if (parallel.shard == "none") {', 'if (shard != "optimizer") {', 'if ("none" == config.parallel.shard) {',
                     'return parallel->shard.starts_with("opt");', 'return name == "bfloat16" ? 2 : 4;',
                     'return config.parallel.shard == kNoShard;'):
            self.assertEqual(len(self.found(line)), 1, line)
        self.assertRegex(self.found('if (parallel.shard == "none") {')[0], r"^src/plan/some.cpp:1: shard is compared")

    def test_others_are_left_alone(self):
        for line in ('if (config.overlap.cost == "device") {', 'if (run.parallel.shard == ShardKind::kNone) {',
                     'if (a.parallel.shard == b.parallel.shard) {', '// shard == "none"', 'config.parallel.shard = "none";',
                     'if (device.kind == "cpu") {'):
            self.assertEqual(self.found(line), [], line)

    def test_what_is_exempt_may_compare(self):
        self.assertEqual(self.found('if (parallel.shard == "none") {', "config/validate.cpp"), [])


if __name__ == "__main__":
    unittest.main()
