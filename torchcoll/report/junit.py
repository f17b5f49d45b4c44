"""Tests as JUnit XML, for build servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from torchcoll.core.errors import one_line


@dataclass(frozen=True)
class JunitTest:
    """A test of a suite.

    result: ``failure``, ``skipped``, or empty if the test passed. message: why it did not pass, or
    what it says although it did; '' for none. time_ns: the duration of a call, where there is one.
    """

    name: str
    result: str
    message: str
    time_ns: float | None = None


def junit_document(suites: Iterable[tuple[str, Sequence[JunitTest]]], classname: str) -> str:
    """suites: (name, tests) of each."""
    texts = []
    for name, tests in suites:
        failures = sum(test.result == "failure" for test in tests)
        skipped = sum(test.result == "skipped" for test in tests)
        counts = f'tests="{len(tests)}" failures="{failures}" skipped="{skipped}"'
        elements = "".join(_element(test, classname) for test in tests)
        name = quoteattr(one_line(name))
        texts.append(f"<testsuite name={name} {counts}>\n{elements}</testsuite>\n")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{"".join(texts)}</testsuites>\n'


def _element(test: JunitTest, classname: str) -> str:
    head = f'<testcase classname="{classname}" name={quoteattr(one_line(test.name))}'
    if test.time_ns is not None:
        head += f' time="{test.time_ns / 1e9:.9f}"'
    if not test.result:
        output = f"<system-out>{escape(one_line(test.message))}</system-out>"
        return f"{head}>{output}</testcase>\n" if test.message else f"{head}/>\n"
    message = quoteattr(one_line(test.message))
    return f"{head}><{test.result} message={message}/></testcase>\n"
