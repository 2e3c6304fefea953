#!/usr/bin/env python3
"""Counts the instructions of the card's hot paths, and compares them with the table.

  scripts/cost.py COMMAND            COMMAND is the command `remora`, as built for release
  scripts/cost.py COMMAND --write    writes scripts/cost.json anew

valgrind counts what `remora bench cost ROW` executes in its hot loop. The counts do not depend on
the pace of the machine or on its neighbours. valgrind shows a processor without AVX-512, so the
highest level of processor that is counted is v3.

The compiler chooses the instructions, and the C library copies memory. So the table names both, and
with others a growth is told, but is no failure.
"""

import argparse
import json
import os
import re
import subprocess
import sys

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cost.json")
# The function whose calls are counted.
COUNTED = "*bench::cost::counted*"
# The most that a row may grow, and the least that it shrinks to be worth a word.
GROWTH = 0.03
# Rows, how often each is done, and at which levels of processor.
ROWS = [
    ("write_8B", 256, ["v3"]),
    ("send_64B", 256, ["v3"]),
    ("write_1MiB", 8, ["v3"]),
    ("write_8B_lossy", 256, ["v3"]),
    ("write_1MiB_lossy", 8, ["v3"]),
    ("noop", 1024, ["v3"]),
    ("if", 256, ["v3"]),
    ("while_recycled", 256, ["v3"]),
    ("kernel_call", 256, ["v3"]),
    ("hash_get", 256, ["v3"]),
    ("hyperloglog_4KiB", 256, ["v2", "v3"]),
]


def said(*command):
    """The words of the first line that a command prints."""
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return out.splitlines()[0].split()


def makers():
    """The programs that decide on instructions."""
    return {"rustc": said("rustc", "--version")[1], "libc": said("ldd", "--version")[-1]}


def count(command, row, times, level):
    """The instructions of one operation, or None where the processor lacks the level."""
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no",
         f"--toggle-collect={COUNTED}", command, "bench", "cost", row, str(times)],
        capture_output=True, text=True, env={**os.environ, "REMORA_CPU": level})
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not counted:
        sys.exit(f"{row} at {level} could not be counted:\n{done.stderr}")
    if int(counted[1]) == 0:
        sys.exit(f"{row}: nothing was counted: does {command} have no symbols?")
    return round(int(counted[1]) / times) if done.stdout.strip() == level else None


def judge(old, new):
    """A word on a change, and whether it is too much."""
    change = new / old - 1
    word = f"{change:+.1%}" if abs(change) >= 0.001 else ""
    if change > GROWTH:
        return word + "  too much", True
    if change < -GROWTH:
        return word + "  less: write the table anew", False
    return word, False


def main():
    args = argparse.ArgumentParser(usage=__doc__)
    args.add_argument("command")
    args.add_argument("--write", action="store_true")
    args = args.parse_args()
    with open(TABLE) as file:
        table = json.load(file)
    here, counts, grown = makers(), {}, []
    for row, times, levels in ROWS:
        for level in levels:
            name = row if len(levels) == 1 else f"{row} {level}"
            new = count(args.command, row, times, level)
            if new is None:
                print(f"  {name:20} this processor has no {level}")
                continue
            counts[name] = new
            old = table["instructions"].get(name)
            word, too_much = judge(old, new) if old else ("not in the table", True)
            print(f"  {name:20} {new:>10,}  {word}")
            if too_much:
                grown.append(name)
    if not counts:
        sys.exit(77)  # Nothing can be compared here: the stage is skipped.
    if args.write:
        with open(TABLE, "w") as file:
            json.dump({**here, "instructions": {**table["instructions"], **counts}}, file, indent=2)
            file.write("\n")
        print(f"  written: {os.path.relpath(TABLE)}")
        return
    if not grown:
        return
    print(f"  More instructions than the table has: {', '.join(grown)}.")
    for maker, version in here.items():
        if table[maker] != version:
            print(f"  But the table was made with {maker} {table[maker]}, and here is {version}, which")
            print("  chooses other instructions: no failure. COST_WRITE=1 writes the table anew.")
            return
    print("  Find out why (callgrind_annotate shows where); if it is worth it, COST_WRITE=1 writes")
    print("  the table anew.")
    sys.exit(1)


if __name__ == "__main__":
    main()
