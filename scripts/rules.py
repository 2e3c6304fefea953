#!/usr/bin/env python3
"""Rules of the code that no pattern of one line can tell; the stage tidy prints what this finds.

The rules of one line, and how long lines and files may be, are in that stage, in ci.sh.

- A thread is started by `without_signals`, or by `remora_command::thread`, and its start may fail.
- A function has at most 60 lines; an example, to start from, fewer than 80.
- docs/architecture.md names the crates that each crate uses, in its table and in its diagram.
- Files and folders that docs/architecture.md and CONTRIBUTING.md name in backticks exist.
- docs/run.md has each variable of the environment that the code reads, and no other.
- No sentence begins with "who", which names nobody, nor what stands behind a semicolon; questions
  are aside, and the title that the comment of an item begins with.
- A file whose `//!` names at least half of its modules, in backticks, names all of them.
"""
import re
import subprocess
import sys
from pathlib import Path

from circles import COMMENT_OR_TEXT, ROOT, Crate, without_tests

# (`remora_command::thread` takes a name first, or behind a scope.)
START = re.compile(
    r'(?<!crate::)(?:\bthread::|\.)spawn(?:_scoped)?\(\s*(?!["\s)]|\w+,\s*["&])')
BEFORE = 120  # characters before a start that must hold `without_signals`
FUNCTION = re.compile(r'( *)(?:pub(?:\(.*?\))? )?(?:(?:const|async|unsafe|extern "C(?:-unwind)?") )*fn ')
LINES = 60
EXAMPLE_LINES = 80
MODULE = re.compile(r"^(?:pub(?:\(.*?\))? )?mod (\w+);", re.M)
NAMED = re.compile(r"`(\w+)(?:::\w+)*`")
COMMENT = re.compile(r" *(//[/!]?)(?:$| (.*))")
HEADLESS = re.compile(r"\(?[Ww]ho(?:m|se)?\b[^?]*$")
FEW = 4  # a file with fewer modules need not list them


def bare_threads():
    """Tests are aside, and the tasks of a JoinSet, which are no threads."""
    for src in sorted(ROOT.glob("crates/*/src")):
        crate = Crate(src)
        for module, code in sorted(crate.code.items()):
            starts = [] if "JoinSet" in code else START.finditer(code)
            for start in starts if module in crate.file else []:
                if "without_signals(" not in code[:start.start()][-BEFORE:]:
                    yield f"{crate.file[module]}: starts a thread without `without_signals`"


def rust_files():
    return sorted(p for top in ("crates", "fuzz", "tests", "examples", "guest")
                  for p in (ROOT / top).rglob("*.rs") if "target" not in p.parts)


def long_functions():
    """A function ends with the first bracket that stands where it began, as rustfmt has it."""
    for file in rust_files():
        lines = file.read_text().splitlines()
        for begin, line in enumerate(lines):
            if not (found := FUNCTION.match(line)):
                continue
            rest = range(begin, len(lines))
            head = next((n for n in rest if lines[n].endswith(("{", "}", ";"))), begin)
            if lines[head].endswith("{"):
                end = next((n for n in rest if lines[n] == found[1] + "}"), begin)
                if end - begin >= LINES:
                    yield f"{file.relative_to(ROOT)}:{begin + 1}: {end - begin + 1} lines"


def long_examples():
    for file in sorted(ROOT.glob("examples/*.rs")):
        if (lines := len(file.read_text().splitlines())) >= EXAMPLE_LINES:
            yield f"{file.relative_to(ROOT)}: {lines} lines"


def uses(folder):
    """Our crates that a crate depends on, and those of them that a feature brings."""
    manifest = (folder / "Cargo.toml").read_text()
    depends = re.search(r"^\[dependencies\]$(.*?)(?=^\[|\Z)", manifest, re.M | re.S)[1]
    ours = dict(re.findall(r"^(?:remora-)?(\w+)(.*)$", "\n".join(
        line for line in depends.splitlines() if line.startswith("remora")), re.M))
    return set(ours), {name for name, what in ours.items() if "optional = true" in what}


def stale_picture():
    """What the table and the diagram say differently from the manifests."""
    text = (ROOT / "docs/architecture.md").read_text()
    crates = {f"crates/{folder.name}": folder for folder in (ROOT / "crates").iterdir()}
    crates |= {name: ROOT / name for name in ("fuzz", "tests")}
    for name, folder in sorted(crates.items()):
        used, by_feature = uses(folder)
        row = re.search(rf"^\| `{name}` \|.*\| ([^|]*) \|$", text, re.M)
        told = set(re.findall(r"\w+", row[1] if row else "")) - {"none", "as", "a", "feature"}
        if told != used:
            yield f"docs/architecture.md, table: {name} uses {', '.join(sorted(used)) or 'none'}"
        arrow = rf"^ +{folder.name}(?:\[[^]]*\])? %s (\w+)"
        drawn = set(re.findall(arrow % "-->", text, re.M))
        featured = set(re.findall(arrow % r"-\. feature \.->", text, re.M))
        if (drawn, featured) != (used - by_feature, by_feature):
            yield f"docs/architecture.md, diagram: arrows from {folder.name} are not its crates"


def missing_files():
    """A name may leave the beginning of its path out."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    paths = {f"/{path}" for path in tracked.stdout.split()}
    paths |= {f"{parent}/" for path in paths for parent in Path(path).parents}
    for file in ("docs/architecture.md", "CONTRIBUTING.md"):
        named = re.findall(r"`(?:\./)?([\w./-]+(?:/|\.(?:rs|sh|py|toml|json|map)))`",
                           (ROOT / file).read_text())
        for name in sorted(set(named)):
            if not any(path.endswith(f"/{name}") for path in paths):
                yield f"{file}: there is no `{name}`"


def stale_variables():
    """Variables that only tests know are aside."""
    read = set()
    for file in ROOT.glob("crates/*/src/**/*.rs"):
        if not file.name.endswith("tests.rs"):
            read |= set(re.findall(r'"(REMORA_[A-Z_]+)"', file.read_text()))
    told = set(re.findall(r"^\| `(REMORA_\w+)` \|", (ROOT / "docs/run.md").read_text(), re.M))
    for name in sorted(read ^ told):
        yield f"docs/run.md: `{name}` is {'missing' if name in read else 'of no use'}"


def stale_lists():
    """Modules of tests are aside, and files that name only some of their modules in passing."""
    for file in sorted(p for top in ("crates/*", "fuzz", "tests")
                       for p in ROOT.glob(f"{top}/src/**/*.rs")):
        text = file.read_text()
        code, _ = without_tests(COMMENT_OR_TEXT.sub('""', text))
        modules = set(MODULE.findall(code))
        named = set(NAMED.findall("\n".join(re.findall("^//!.*", text, re.M))))
        missing = modules - named
        if len(modules) >= FEW and 0 < 2 * len(missing) <= len(modules):
            yield f"{file.relative_to(ROOT)}: `//!` does not name {', '.join(sorted(missing))}"


def paragraphs(file):
    """Each with the number of its line, and whether the comment of an item begins with it."""
    before, words, begin, fenced, title = "", [], 0, False, False
    for number, line in enumerate([*file.read_text().splitlines(), ""], 1):
        comment = COMMENT.fullmatch(line) if file.suffix == ".rs" else None
        mark, text = (comment[1], comment[2] or "") if comment else ("", line)
        fenced ^= file.suffix == ".md" and line.startswith("```")
        is_prose = comment if file.suffix == ".rs" else not fenced and line[:1] not in "#|`"
        if words and (mark != before or not is_prose or not text
                      or text.startswith("- ")):
            yield begin, " ".join(words), title
            words = []
        if is_prose and text:
            if not words:
                begin, title = number, mark in ("///", "//!") and mark != before
            words.append(text.strip())
        before = mark


def headless_sentences():
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    for file in sorted([*files, *rust_files()]):
        for number, text, is_title in paragraphs(file):
            sentences = re.split(r"(?<=[.;?!])\)? ", text)
            if any(map(HEADLESS.match, sentences[is_title:])):
                yield f"{file.relative_to(ROOT)}:{number}: a sentence begins with \"who\""


if __name__ == "__main__":
    FAULTS = [*bare_threads(), *long_functions(), *long_examples(), *stale_picture(),
              *missing_files(), *stale_variables(), *stale_lists(), *headless_sentences()]
    print(*FAULTS, sep="\n", end="\n" if FAULTS else "")
    sys.exit(bool(FAULTS))
