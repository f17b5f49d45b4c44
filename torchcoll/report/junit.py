"""Tests as JUnit XML, for build servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from torchcoll.core.errors import one_line


@dataclass(frozen=True)
class JunitTest:
    """A test of a suite, with its message. result: ``failure``, ``skipped``, or '' if it passed."""

    name: str
    result: str
    message: str
    time_ns: float | None = None


def junit_document(suites: Iterable[tuple[str, Sequence[JunitTest]]], classname: str) -> str:
    """suites: (name, tests) of each."""
    root = ElementTree.Element("testsuites")
    for name, tests in suites:
        suite = ElementTree.SubElement(root, "testsuite", name=one_line(name))
        suite.set("tests", str(len(tests)))
        for attribute, result in (("failures", "failure"), ("skipped", "skipped")):
            suite.set(attribute, str(sum(test.result == result for test in tests)))
        for test in tests:
            case = ElementTree.SubElement(suite, "testcase", classname=classname)
            case.set("name", one_line(test.name))
            if test.time_ns is not None:
                case.set("time", f"{test.time_ns / 1e9:.9f}")
            if test.result:
                ElementTree.SubElement(case, test.result, message=one_line(test.message))
            elif test.message:
                ElementTree.SubElement(case, "system-out").text = one_line(test.message)
    ElementTree.indent(root, "")
    text = ElementTree.tostring(root, "unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'
