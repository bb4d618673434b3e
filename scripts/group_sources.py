#!/usr/bin/env python3
"""Which sources can be compiled as one file: those of whose own names no other source of the group makes any use.

    scripts/group_sources.py [--most N] source...

Prints a line "group source" for each source, in their order; groups are numbered from 0. A source's own names are what it
defines in unnamed namespaces, and its macros. Words are compared, not meanings: a name that is more than a source's own keeps
sources apart for nothing, no more. A source with an own name that a header of src/ declares, too, is alone: another source of
its group might include that header.
"""
import argparse
import pathlib
import re

LINE_OR_LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])*\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)(?:[ \t]+(\w+))?(?:\\\n|[^\n])*", re.M)
TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|[^\s\w]")
TYPE_WORDS = {"class", "struct", "enum", "union", "using", "concept"}
# What may stand before "(", "{", "[", "=" or ";" where a namespace's names are, and is no name.
NO_NAMES = TYPE_WORDS | {"noexcept", "const", "override", "final", "requires", "decltype", "alignas", "static_assert", "operator",
                         "return", "namespace", "default", "TEST", "TEST_F", "TEST_P", "TYPED_TEST", "INSTANTIATE_TEST_SUITE_P"}
BEFORE_CALLS = {"return", "else", "throw", "case", "co_return", "co_await", "co_yield", "new", "and", "or", "not"}


def is_word(token):
    return re.match(r"[A-Za-z_]", token) is not None


def code_of(text):
    """The text without comments and literals, and the names of its macros without the directives."""
    text = LINE_OR_LITERAL.sub(lambda match: " " if match[0].startswith("/") else '""', text)
    macros = {match[2] for match in DIRECTIVE.finditer(text) if match[1] == "define"}
    return DIRECTIVE.sub("", text), macros


def defined_by(since, token):
    """The name, if any, that `token` defines or ends. `since`: the earlier tokens of its statement, outside of round brackets."""
    if since[:1] == ["template"]:
        since = since[max((at for at, word in enumerate(since) if word == ">"), default=len(since)):]
    before = since[-1] if since else ""
    if before in TYPE_WORDS - {"using"} and token not in TYPE_WORDS and is_word(token):
        return {token}
    if is_type := bool(TYPE_WORDS.intersection(since)):
        is_alias = since[0] == "using" and token == "=" and "=" not in since
    # A name after "=" is a value, and one after "::" is a member defined outside of its class.
    names_it = is_alias if is_type else token in "({[=;" and "=" not in since and "::" not in since[-2:-1]
    return {before} if names_it and is_word(before) and before not in NO_NAMES else set()


def own_names(tokens):
    """Names defined in unnamed namespaces, outside of classes and functions."""
    names = set()
    opened = []  # what each open brace belongs to: "unnamed", "named" (namespaces) or "other"
    since = []  # tokens since the last statement at the level of a namespace
    round_brackets = 0
    for token in tokens:
        if token == "}":
            kind = opened.pop() if opened else "other"
            # The end of a function's body ends its statement; the end of a class or of an initializer waits for ";".
            if "other" not in opened and (kind != "other" or since and since[-1] == ")"):
                since = []
            continue
        if "other" in opened:
            if token == "{":
                opened.append("other")
            continue
        if token == "{" and round_brackets == 0:
            namespace = since[:1] == ["namespace"] or since[:2] == ["inline", "namespace"]
            if namespace:
                opened.append("unnamed" if since[-1] == "namespace" else "named")
                since = []
                continue
        if "unnamed" in opened and round_brackets == 0:
            names |= defined_by(since, token)
        round_brackets += {"(": 1, ")": -1}.get(token, 0)
        if token == "{":
            opened.append("other")
            since.append(")" if ")" in since else "{")
        elif token == ";" and round_brackets == 0:
            since = []
        else:
            since.append(token)
    return names


def used_names(tokens):
    """Names that the compiler may look for in namespaces: those of types and constants, and what is called without an object.
    A name behind a type is a variable's, which hides all others; one behind "." or "->" is found in a class alone."""
    names = set()
    for before, token, after in zip(["", *tokens], tokens, [*tokens[1:], ""]):
        if before in (".", "->") or not is_word(token):
            continue
        declared = re.match(r"[A-Za-z_>&*]", before) and before not in BEFORE_CALLS
        if re.match(r"k?[A-Z]", token) or after == "(" and not declared:
            names.add(token)
    return names


DECLARED_TYPE = re.compile(r"^(?:class|struct|enum class|using|concept) (\w+)", re.M)
DECLARED_FUNCTION = re.compile(r"^(?!using|namespace|struct|class|enum|#|return)\w[\w:<>,&* \[\]]*?[ &*](\w+)\(", re.M)


def header_names(folder):
    """Types and functions that headers below the folder declare in namespaces: what stands at the begin of a line."""
    names = set()
    for header in folder.rglob("*.h"):
        code, _ = code_of(header.read_text())
        names |= {*DECLARED_TYPE.findall(code), *DECLARED_FUNCTION.findall(code)}
    return names


class Source:
    def __init__(self, path):
        code, macros = code_of(pathlib.Path(path).read_text())
        tokens = TOKEN.findall(code)
        self.path = path
        self.own = own_names(tokens) | macros
        self.words = used_names(tokens) | self.own


def groups_of(paths, most, kind=lambda path: None, headers=pathlib.Path(__file__).resolve().parent.parent / "src"):
    """Lists of sources that can be one file, each of at most that many, and of one kind; the first that fits takes a source."""
    groups, alone = [], []
    declared = header_names(headers)
    for source in map(Source, paths):
        if source.own & declared:
            alone.append([source.path])
            continue
        fitting = (group for group in groups if len(group["paths"]) < most and group["kind"] == kind(source.path)
                   and not group["own"] & source.words and not group["words"] & source.own)
        group = next(fitting, None)
        if group is None:
            group = {"kind": kind(source.path), "own": set(), "words": set(), "paths": []}
            groups.append(group)
        group["own"] |= source.own
        group["words"] |= source.words
        group["paths"].append(source.path)
    return [group["paths"] for group in groups] + alone


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=10, metavar="N", help="sources in a group (default 10)")
    parser.add_argument("sources", nargs="+")
    arguments = parser.parse_args()
    group_of = {path: number for number, group in enumerate(groups_of(arguments.sources, arguments.most)) for path in group}
    for path in arguments.sources:
        print(group_of[path], path)


if __name__ == "__main__":
    main()
