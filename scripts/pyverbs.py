#!/usr/bin/env python3
"""Runs rdma-core's own tests (scripts/pyverbs.sh) on the libraries that this program finds, and
holds their outcome to a list.

    remora run -- /usr/bin/python3 scripts/pyverbs.py FOLDER LIST CARD [TEST...]

FOLDER is target/pyverbs. LIST names the tests that do not pass, and says why; CARD is `own`, or
`shared` for a daemon's. Every other test has to pass, and what comes to pass leaves the list. With
names of tests (or parts of names), only those run. The status is 1 if an outcome is not the
expected one.
"""

import fnmatch
import os
import sys
import unittest


class Expected:
    """A line of the list: what becomes of which tests, on which card, and why."""

    OUTCOMES = {"skips": ["skips"], "fails": ["fails"], "passes": ["passes"],
                "needs": ["skips", "passes"], "races": ["passes", "fails"]}

    def __init__(self, line):
        self.outcome, self.card, self.pattern, self.reason = line.split(maxsplit=3)
        if self.outcome not in self.OUTCOMES or self.card not in ("any", "own", "shared"):
            sys.exit(f"not a line of the list: {line}")

    def is_of(self, name):
        return fnmatch.fnmatchcase(name, self.pattern)


class Outcomes(unittest.TextTestResult):
    """Notes the outcome of each test by its name."""

    def __init__(self, *args):
        super().__init__(*args)
        self.outcomes = {}

    def note(self, test, outcome, why=""):
        self.outcomes.setdefault(test.id(), (outcome, why))

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "passes")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skips", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, "fails", str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, "fails", str(err[1]))


def read_list(path, card):
    with open(path, encoding="utf-8") as lines:
        lines = [line.strip() for line in lines]
    expected = [Expected(line) for line in lines if line and not line.startswith("#")]
    return [line for line in expected if line.card in ("any", card)]


def tests_of(folder, words):
    """The suite's tests, flat."""
    suite = os.path.join(folder, "suite")
    # It imports itself by the name of its folder, and one module of it without.
    sys.path[:0] = [os.path.join(folder, "root/usr/lib/python3/dist-packages"), suite,
                    os.path.join(suite, "tests")]
    sys.argv[1:] = []
    from args_parser import parser
    parser.parse_args()
    import tests

    found = []
    waiting = [unittest.defaultTestLoader.loadTestsFromModule(tests)]
    while waiting:
        for test in waiting.pop():
            if isinstance(test, unittest.TestSuite):
                waiting.append(test)
            elif not words or any(word in test.id() for word in words):
                found.append(test)
    return sorted(found, key=lambda test: test.id())


def judge(outcomes, expected):
    """What is not as it should be, in words."""
    wrong = []
    for name, (outcome, why) in sorted(outcomes.items()):
        line = next((line for line in expected if line.is_of(name)), None)
        wanted = line.outcome if line else "passes"
        if outcome not in Expected.OUTCOMES[wanted]:
            told = f" ({line.reason})" if line else ""
            wrong.append(f"{name} {outcome}, where it {wanted}{told}: {why}".rstrip(": "))
    return wrong


def main():
    folder, listed, card, *words = sys.argv[1:]
    expected = read_list(listed, card)
    found = tests_of(folder, words)
    if not found:
        sys.exit("no test has such a name")
    runner = unittest.TextTestRunner(resultclass=Outcomes, verbosity=2 if words else 0)
    outcomes = runner.run(unittest.TestSuite(found)).outcomes
    wrong = judge(outcomes, expected)
    if not words:
        for line in expected:
            if not any(line.is_of(name) for name in outcomes):
                wrong.append(f"the list names {line.pattern}, and no test is called so")
    count = [sum(outcome == what for outcome, _ in outcomes.values())
             for what in ("passes", "skips", "fails")]
    print("rdma-core's tests: {} pass, {} are skipped, {} fail".format(*count))
    for line in wrong:
        print(f"not as {listed} says: {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
