import pytest

from torchcoll.core import errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("size",), "size"),
        (("size", 3), "size: got 3"),
        (("size", 3, "4 or 5"), "size: got 3, expected 4 or 5"),
        (("size", 3, "4 or 5", "Write 4."), "size: got 3, expected 4 or 5. Write 4."),
        (("size", None, "a number"), "size: expected a number"),
        (("backend gone", None, "", "Wait."), "backend gone. Wait."),
        (("backend gone.", None, "", "Wait."), "backend gone. Wait."),
        (("size", 0), "size: got 0"),
        (("size", ""), "size: got an empty text"),
        (("size", " \t"), "size: got an empty text"),
        (("size", "a\nb\r\n c"), "size: got a b c"),
        (("size", "x" * 120), "size: got " + "x" * 120),
        (("size", "x" * 121), "size: got " + "x" * 117 + "..."),
    ],
)
def test_text(arguments, text):
    error = errors.TorchcollError(*arguments)
    assert str(error) == text
    assert error.line() == f"torchcoll: error: {text}"
    assert error.what == arguments[0]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.TorchcollError, 1),
        (errors.UsageError, 2),
        (errors.UnreadableError, 3),
        (errors.UnavailableError, 4),
        (errors.HangError, 5),
    ],
)
def test_exit_codes_of_the_design(kind, code):
    assert kind("x").exit_code == code
    assert issubclass(kind, errors.TorchcollError)


COLORS = ("red", "green", "blue", None, "dark_blue")


@pytest.mark.parametrize(
    ("got", "hint"),
    [
        ("gren", "green"),
        ("GREEN", "green"),
        ("bleu", "blue"),
        ("darkblue", "dark_blue"),
        ("pink", None),
        ("", None),
        (7, None),
        ("x" * 10_000_000, None),
    ],
)
def test_did_you_mean(got, hint):
    assert errors.did_you_mean(got, ("red", "green", "blue", "dark_blue")) == (
        f"Did you mean {hint}?" if hint else ""
    )


def test_one_of_a_set():
    for color in COLORS:
        errors.choice(color, "color", COLORS)
    with pytest.raises(errors.UsageError) as found:
        errors.choice("gren", "color", COLORS)
    listed = "red, green, blue, dark_blue"
    line = f"color: got gren, expected one of {listed}. Did you mean green?"
    assert str(found.value) == line
    assert str(errors.unknown("color", "pink", COLORS[:2], "some of {}", "Mix it.")) == (
        "color: got pink, expected some of red, green. Mix it."
    )
    assert str(errors.unknown("color", "rad", COLORS[:2], action="Mix it.")) == (
        "color: got rad, expected one of red, green. Did you mean red? Mix it."
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("no such thing. Look there.\nAnd there."), "no such thing"),
        (RuntimeError("[../gloo/pair.cc:525] Connection closed by peer [::1]:7"),
         "Connection closed by peer [::1]:7"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
                      "allocate memory"), "DefaultCPUAllocator: can't allocate memory"),
        (RuntimeError("x" * 200), "x" * 160),
        (MemoryError(), "MemoryError"),
    ],
)  # fmt: skip
def test_the_first_sentence_of_an_error(error, text):
    assert errors.brief(error) == text
