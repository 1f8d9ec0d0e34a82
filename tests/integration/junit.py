# SPDX-License-Identifier: Apache-2.0
"""junit.py FILE OUTCOME GROUP.NAME TEXT: requires valid JUnit XML whose counts are right, with this case, its outcome
(passed, failure, skipped), and this text in its message or body."""
import sys
import xml.etree.ElementTree as tree

path, outcome, name, text = sys.argv[1:]
suite = tree.parse(path).getroot().find("testsuite")
cases = suite.findall("testcase")
for counted, path in (("tests", "testcase"), ("failures", "*/failure"), ("skipped", "*/skipped")):
    elements = suite.findall(path)
    if int(suite.get(counted)) != len(elements):
        sys.exit(f"{counted} is {suite.get(counted)}, but there are {len(elements)}")
if not 0 <= sum(float(case.get("time")) for case in cases) <= float(suite.get("time")) + 0.01:
    sys.exit("the times of the cases are not parts of the suite's time")
found = [case for case in cases if f"{case.get('classname')}.{case.get('name')}" == name]
if len(found) != 1:
    sys.exit(f"{len(found)} cases are called {name}")
inner = list(found[0])
if (inner[0].tag if inner else "passed") != outcome:
    sys.exit(f"{name} has {[element.tag for element in inner]}")
if text not in "".join(element.get("message") + "\n" + (element.text or "") for element in inner):
    sys.exit(f"{name} says {inner[0].get('message')!r} and {inner[0].text!r}")
