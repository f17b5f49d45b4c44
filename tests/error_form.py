"""The common form of an error, so that tests assert on its parts: what, value, expected, action.

The words of the form come from the product; tests/core/test_errors.py alone asserts on them. A part
may be the beginning or the end of one, or a regular expression.
"""

from __future__ import annotations

from torchcoll.core.errors import TorchcollError

_LINE = TorchcollError("{what}", "{value}", "{expected}").line()
_TEXT = str(TorchcollError("{what}", "{value}", "{expected}"))
_VALUE = str(TorchcollError("{what}", "{value}"))
_EXPECTED = str(TorchcollError("{what}", None, "{expected}"))


def _filled(form: str, **parts: object) -> str:
    for name, text in parts.items():
        form = form.replace(f"{{{name}}}", str(text))
    return form


def error_text(what: object, value: object, expected: object = None) -> str:
    """The text of an error. expected: may go on with the next action; None leaves it out. value:
    None where the error has none.
    """
    if value is None:
        return _filled(_EXPECTED, what=what, expected=expected)
    if expected is None:
        return _filled(_VALUE, what=what, value=value)
    return _filled(_TEXT, what=what, value=value, expected=expected)


def error_line(what: object, value: object, expected: object = None) -> str:
    """The line that a command prints of it."""
    return _LINE.partition("{what}")[0] + error_text(what, value, expected)


def error_tail(value: object, expected: object) -> str:
    """The text from somewhere in the value on."""
    return str(value) + _filled(_TEXT.partition("{value}")[2], expected=expected)


def got(value: object) -> str:
    """The text from the value on, up to it, with the word before it."""
    return _filled(_VALUE.rpartition(": ")[2], value=value)


def expecting(expected: object) -> str:
    """The text from what was expected on, with the word before it."""
    return _filled(_TEXT.rpartition(", ")[2], expected=expected)
