#!/usr/bin/env python3
"""Tests of scripts/group_sources.py: which names are a source's own, and which sources they keep apart."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import group_sources  # noqa: E402


class GroupSources(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def source(self, text, name="source.cpp"):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def own(self, text):
        return group_sources.Source(self.source(text)).own

    def groups(self, *texts, most=10):
        paths = [self.source(text, f"{number}.cpp") for number, text in enumerate(texts)]
        return [[paths.index(path) for path in group] for group in group_sources.groups_of(paths, most)]

    def test_own_names_are_those_of_unnamed_namespaces_and_macros(self):
        self.assertEqual(self.own("""
            #define TWICE(x) (2 * (x))
            // int in_a_comment() { return 0; }
            namespace braid {
            int shared() { return 1; }
            namespace {
            using std::string;
            using Text = std::string;
            constexpr int kMost = TWICE(4);
            const std::string kWord = "int in_a_literal() {";
            enum class Kind { kFirst, kSecond };
            struct Point : public Base<int> { int x = 0; int length() const; };
            int Point::length() const { return kMost; }
            template <class T>
            class Box final { T item_; };
            template <class T>
            T smallest(const std::vector<T>& values) { T result = values[0]; return result; }
            const auto by_name = [](int at) { return at; };
            std::vector<int> table[3] = {{1}, {2}};
            }  // namespace
            void visible(int argument) { smallest(argument); }
            }  // namespace braid
        """), {"TWICE", "Text", "kMost", "kWord", "Kind", "Point", "Box", "smallest", "by_name", "table"})

    def test_code_behind_an_unnamed_namespace_is_not_its_own(self):
        self.assertEqual(self.own("namespace { struct S { S() {} }; S s{}; } int after() { return 0; } int value = 1;"), {"S", "s"})

    def test_tests_own_no_names_but_their_fixtures(self):
        self.assertEqual(self.own("namespace { class Fixture : public testing::Test {}; TEST_F(Fixture, Works) { run(); } }"),
                         {"Fixture"})

    def test_sources_without_common_names_are_one_group(self):
        self.assertEqual(self.groups("namespace { int a() { return 1; } }", "namespace { int b() { return 1; } }"), [[0, 1]])

    def test_equal_own_names_keep_sources_apart(self):
        own = "namespace { int a() { return 1; } }"
        self.assertEqual(self.groups(own, "int c() { return 2; }", own), [[0, 1], [2]])

    def test_a_name_that_another_source_calls_keeps_them_apart(self):
        own, calls = "namespace { int a(double x) { return 1; } }", "int c() { return a(2); }"
        self.assertEqual(self.groups(own, calls), [[0], [1]])
        self.assertEqual(self.groups(calls, own), [[0], [1]])

    def test_members_and_variables_of_that_name_do_not(self):
        own = "namespace { int a(double x) { return 1; } }"
        self.assertEqual(self.groups(own, "int c(Thing& it) { return it.a(2) + it.next->a(3); }"), [[0, 1]])
        self.assertEqual(self.groups(own, "int c() { const Thing a(2); return a.b; }"), [[0, 1]])

    def test_a_macro_keeps_apart_who_uses_its_name(self):
        self.assertEqual(self.groups("#define CHECK(x) x\n", "void c() { CHECK(1); }"), [[0], [1]])

    def test_groups_have_a_largest_size(self):
        self.assertEqual(self.groups("int a();", "int b();", "int c();", most=2), [[0, 1], [2]])

    def test_a_source_with_a_name_that_a_header_declares_is_alone(self):
        headers = self.folder / "headers"
        headers.mkdir()
        (headers / "shared.h").write_text("struct Shape {\n  int size(int axis);\n};\nint64_t ceil_div(int64_t a, int64_t b);\n")
        paths = [self.source(text, f"{number}.cpp") for number, text in enumerate(
            ["namespace { int ceil_div(int a, int b); }", "namespace { using Shape = int; }", "namespace { int size(int x); }", "int free();"])]
        self.assertEqual(group_sources.groups_of(paths, 10, headers=headers), [[paths[2], paths[3]], [paths[0]], [paths[1]]])


if __name__ == "__main__":
    unittest.main()
