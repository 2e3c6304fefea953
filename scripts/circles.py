#!/usr/bin/env python3
"""Fails if source files name each other in a circle, and says which names tie it.

An arrow runs from file A to file B if A names what B defines, in a `use` or by a path in its code.
A name that was handed on by `pub use` counts for the file that defines it, and so does one that
`use a::*` brings. No arrows are: a module that names what is inside of it, what is compiled only
for tests, and names between the files of HEADER, whose structs name each other in C, too.
Besides, no file of crates/nic that lies below the queue pair may name what lies above, not by a
link in its documentation either.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "crates/verbs/src/abi"  # <infiniband/verbs.h>
NIC = ROOT / "crates/nic/src"
NIC_UPPER = ("qp", "nic")  # what of it is not below the queue pair
UPWARD_LINK = re.compile(r"//[/!].*\bcrate::(?:%s)\b" % "|".join(NIC_UPPER))

COMMENT_OR_TEXT = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(#+)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^\\'])'""", re.S)
FOR_TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^]]*\]\s*)*(?:mod\s+(\w+)\s*)?[^{};]*([{;])")
USE = re.compile(r"\buse\s+([^;]+);")
DEFINITION = re.compile(r"\b(?:struct|enum|union|trait|fn|const|static|type|macro_rules!)\s+(\w+)")
PATH = re.compile(r"(?<![\w:])[A-Za-z_]\w*(?:::\w+)+")
WORD = re.compile(r"(?<![\w:.])[A-Za-z_]\w*")


def without_tests(code):
    """Takes out what is only for tests; also returns the modules of tests that are files."""
    files = []
    while found := FOR_TESTS.search(code):
        end, depth = found.end(), found[2] == "{"
        while depth:
            end = re.compile("[{}]").search(code, end).end()
            depth += 1 if code[end - 1] == "{" else -1
        if found[1] and found[2] == ";":
            files.append(found[1])
        code = code[:found.start()] + code[end:]
    return code, files


def paths_of(tree):
    """The paths of a `use`, each with the name that it brings."""
    while group := re.search(r"([\w:]*)\{([^{}]*)\}", tree):
        paths = [group[1] + path.strip() for path in group[2].split(",") if path.strip()]
        tree = tree[:group.start()] + ", ".join(paths) + tree[group.end():]
    for path in filter(None, map(str.strip, tree.split(","))):
        path, _, alias = path.partition(" as ")
        path = tuple(path.removesuffix("::self").removeprefix("::").split("::"))
        yield path, alias.strip() or path[-1]


class Crate:
    """The modules of a crate by their paths, a tuple of names each."""

    def __init__(self, src):
        self.file, self.code, self.uses, self.defined = {}, {}, {}, {}
        tests = []
        for file in sorted(src.rglob("*.rs")):
            *module, stem = file.relative_to(src).with_suffix("").parts
            module = (*module, *([] if stem in ("mod", "lib", "main") else [stem]))
            code, files = without_tests(COMMENT_OR_TEXT.sub('""', file.read_text()))
            tests += [(*module, name) for name in files]
            code = self.code.get(module, "") + code  # a crate may have lib.rs and main.rs
            self.file[module] = file.relative_to(ROOT)
            self.uses[module] = [use for tree in USE.findall(code) for use in paths_of(tree)]
            self.code[module] = USE.sub("", code)
            self.defined[module] = set(DEFINITION.findall(code))
        for module in [m for m in self.file if any(m[:len(test)] == test for test in tests)]:
            del self.file[module]
        self.names = set().union(*self.defined.values())

    def find(self, module, path, seen=()):
        """The module that defines what `path` means in `module`, and its name there."""
        if path[0] == "crate":
            module, path = (), path[1:]
        while path and path[0] in ("self", "super"):
            module, path = module[:-1] if path[0] == "super" else module, path[1:]
        while path and (*module, path[0]) in self.file:
            module, path = (*module, path[0]), path[1:]
        if not path or path[0] in self.defined[module]:
            return (module, path[0]) if path else None
        for used, name in self.uses[module]:
            if name in (path[0], "*") and (module, used) not in seen:
                onward = (*used[:-1], *path) if name == "*" else (*used, *path[1:])
                if found := self.find(module, onward, (*seen, (module, used))):
                    return found
        return None

    def arrows(self, module):
        """The modules that a module names, each with the names."""
        paths = {path for path, name in self.uses[module] if name != "*"}
        paths |= {tuple(path.split("::")) for path in PATH.findall(self.code[module])}
        if any(name == "*" for _, name in self.uses[module]):
            words = set(WORD.findall(self.code[module])) - self.defined[module]
            paths |= {(word,) for word in words & self.names}
        ties = {}
        for to, name in filter(None, (self.find(module, path) for path in paths)):
            if to[:len(module)] != module:
                ties.setdefault(to, set()).add(name)
        return ties


def circles(ties):
    """The groups of modules that reach each other."""
    reached = {}
    for module in ties:
        reached[module], ahead = set(), [module]
        while ahead:
            new = set(ties[ahead.pop()]) - reached[module]
            reached[module] |= new
            ahead += new
    return {frozenset(b for b in reached[a] if a in reached[b]) for a in ties} - {frozenset()}


def main():
    files, faults = 0, []
    for src in [*sorted(ROOT.glob("crates/*/src")), ROOT / "fuzz/src", ROOT / "tests/src"]:
        crate = Crate(src)
        ties = {module: crate.arrows(module) for module in crate.file}
        for module in crate.file:
            if str(crate.file[module].parent) == HEADER:
                ties[module] = {}
        files += len(ties)

        def arrow(a, b):
            return f"  {crate.file[a]} -> {crate.file[b]}: {', '.join(sorted(ties[a][b]))}"

        for circle in sorted(map(sorted, circles(ties))):
            faults.append(f"a circle of {len(circle)} files:")
            faults += [arrow(a, b) for a in circle for b in circle if b in ties[a]]
        upper = [module for module in ties if src == NIC and module and module[0] in NIC_UPPER]
        up = [arrow(a, b) for a in ties if a and a not in upper for b in upper if b in ties[a]]
        up += [f"  {crate.file[a]}: a link" for a in ties if src == NIC and a and a not in upper
               and UPWARD_LINK.search((ROOT / crate.file[a]).read_text())]
        faults += ["below the queue pair, but naming what is above:", *up] if up else []
    print(*faults, f"{files} files read", sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
