#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the results of several test runs: test_summary.py BUILD_DIR...

Each build tree holds ctest.xml, written by ctest, and results/<entry>.xml for the entries that are
made of cases (gtest, pytest). Prints the reason of every skip (once per entry, with the number of
cases it holds for), the name of every failure, and a last line "N passed, N failed, N skipped".
Exits 1 when something failed, or nothing ran. A script that leaves with the code of a skip and does
not say why has failed: it may not have meant to.
"""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def case_outcome(case):
    """The outcome of one <testcase> and the reason of a skip."""
    skipped = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        return FAILED, ""
    if skipped is not None:
        reason = " ".join((skipped.get("message") or skipped.text or "").split())
        return SKIPPED, re.sub(r"^\S+\.\w+:\d+ ", "", reason)  # gtest puts the place first
    if case.get("status") in ("disabled", "notrun"):
        return SKIPPED, "disabled"
    return PASSED, ""


def entry_skip_reason(entry):
    """What a script printed after "SKIP:" before it left with the code of a skip, or ""."""
    lines = (entry.findtext("system-out") or "").splitlines()
    reasons = [line.split("SKIP:", 1)[1].strip() for line in lines if "SKIP:" in line]
    return reasons[0] if reasons else ""


def partial_skips(entry):
    """What a script that passed says it left out, as lines "what: skipped, reason"."""
    if entry.get("status") != "run":
        return []
    lines = (entry.findtext("system-out") or "").splitlines()
    return [line for line in lines if ": skipped, " in line]


def read_entry(build_dir, entry):
    """Yields (name, outcome, reason) for the cases of one ctest entry, or for the entry itself."""
    name = entry.get("name")
    entry_passed = entry.get("status") == "run"
    results = build_dir / "results" / f"{name}.xml"
    cases = []
    if results.exists():
        for case in ElementTree.parse(results).iter("testcase"):
            case_name = f"{name}: {case.get('classname')}.{case.get('name')}"
            cases.append((case_name, *case_outcome(case)))
    if cases:
        yield from cases
        if entry_passed or any(outcome == FAILED for _, outcome, _ in cases):
            return
    if entry_passed:
        yield name, PASSED, ""
    elif entry.find("skipped") is not None:
        reason = entry_skip_reason(entry)
        yield (name, SKIPPED, reason) if reason else (name, FAILED, "left as a skip without SKIP:")
    else:
        yield name, FAILED, ""


def main(build_dirs):
    counts = collections.Counter()
    for build_dir in map(pathlib.Path, build_dirs):
        for entry in ElementTree.parse(build_dir / "ctest.xml").iter("testcase"):
            skips = collections.defaultdict(list)
            for name, outcome, reason in read_entry(build_dir, entry):
                counts[outcome] += 1
                if outcome == SKIPPED:
                    skips[reason].append(name)
                elif outcome == FAILED:
                    print(f"FAILED [{build_dir.name}] {name}{': ' if reason else ''}{reason}")
            for line in partial_skips(entry):
                print(f"partly skipped [{build_dir.name}] {entry.get('name')}: {line}")
            for reason, names in skips.items():
                others = f" and {len(names) - 1} more" if len(names) > 1 else ""
                print(f"skipped [{build_dir.name}] {names[0]}{others}: {reason}")
    print(f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped")
    return 1 if counts[FAILED] or not counts[PASSED] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
