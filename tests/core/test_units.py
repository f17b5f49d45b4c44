import pytest
from error_form import error_text
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.core import units
from torchcoll.core.errors import UsageError

SET = "a number of bytes with an optional K, M, G or T (binary), such as 8, 1K, 25M or 1.5G"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("8", 8),
        ("1K", 1024),
        ("1k", 1024),
        (" 25M ", 26214400),
        ("1.5G", 1610612736),
        ("1.5g", 1610612736),
        ("2T", 2199023255552),
        ("0.5K", 512),
        ("8.0", 8),
        ("1000000", 1000000),
        ("9223372036854775807", 2**63 - 1),
        (1024, 1024),
        (8.0, 8),
    ],
)
def test_parse(text, size_bytes):
    assert units.parse_size(text) == size_bytes
    assert type(units.parse_size(text)) is int


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1KB", error_text("size", "1KB", f"{SET}. Write 1K (1 x 1024 bytes) or 1000 (decimal).")),
        (
            "25 mb",
            error_text(
                "size", "25 mb", f"{SET}. Write 25M (25 x 1048576 bytes) or 25000000 (decimal)."
            ),
        ),
        (
            "1.5GB",
            error_text(
                "size",
                "1.5GB",
                f"{SET}. Write 1.5G (1.5 x 1073741824 bytes) or 1500000000 (decimal).",
            ),
        ),
        ("1KiB", error_text("size", "1KiB", f"{SET}. Write 1K (1 x 1024 bytes).")),
        # 1000.1 bytes are no way out.
        (
            "1.0001KB",
            error_text("size", "1.0001KB", f"{SET}. Write 1.0001K (1.0001 x 1024 bytes)."),
        ),
        ("-1", error_text("size", "-1", SET)),
        ("0x10", error_text("size", "0x10", SET)),
        ("", error_text("size", "an empty text", SET)),
        ("   ", error_text("size", "an empty text", SET)),
        ("10^30", error_text("size", "10^30", SET)),
        ("1e6", error_text("size", "1e6", SET)),
        ("1_000", error_text("size", "1_000", SET)),
        ("1 K", error_text("size", "1 K", SET)),
        ("8B", error_text("size", "8B", SET)),
        ("K", error_text("size", "K", SET)),
        (".5K", error_text("size", ".5K", SET)),
        ("nan", error_text("size", "nan", SET)),
        ("\u0661K", error_text("size", "\u0661K", SET)),  # an Arabic one
        ("1\n2", error_text("size", "1 2", SET)),
        (True, error_text("size", "True", SET)),
        (None, error_text("size", "None", SET)),
        ("1.5", error_text("size", "1.5", "a whole number of bytes")),
        ("0.3K", error_text("size", "0.3K", "a whole number of bytes")),
        (
            "1" + "0" * 30,
            error_text("size", "1000000000000000000000000000000", "0 to 9223372036854775807 bytes"),
        ),
        (
            "9223372036854775808",
            error_text("size", "9223372036854775808", "0 to 9223372036854775807 bytes"),
        ),
        ("8388608T", error_text("size", "8388608T", "0 to 9223372036854775807 bytes")),
        (-1, error_text("size", "-1", "0 to 9223372036854775807 bytes")),
        # Beyond the digits that Python converts; the value is cut in the message.
        ("9" * 5000, error_text("size", f"{'9' * 117}...", SET)),
    ],
)
def test_refused(text, line):
    with pytest.raises(UsageError) as caught:
        units.parse_size(text)
    assert str(caught.value) == line
    assert caught.value.exit_code == 2


@given(st.integers(0, units.MAX_BYTES))
def test_any_size_is_read_back(size_bytes):
    assert units.parse_size(units.format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1023, "1023"),
        (1024, "1K"),
        (1025, "1025"),
        (1280, "1.25K"),
        (1536, "1.5K"),
        (1152, "1152"),  # 1.125K has three decimals
        (1048575, "1048575"),
        (1 << 20, "1M"),
        (25 << 20, "25M"),
        (1000 << 10, "1000K"),
        (1000000, "1000000"),
        (3 << 29, "1.5G"),
        (1 << 50, "1024T"),
        ((1 << 63) - 1, "9223372036854775807"),
    ],
)
def test_format_size(size_bytes, text):
    assert units.format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1 << 20, "1 MiB"),
        (1_500_000, "1.43 MiB"),
        (1023 << 10, "1023 KiB"),
        (1000 << 20, "1000 MiB"),
        (999 << 20, "999 MiB"),
        (3 << 29, "1.5 GiB"),
        (20_000 << 40, "20000 TiB"),
    ],
)
def test_format_bytes(size_bytes, text):
    assert units.format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "-"),
        (0, "0 ns"),
        (812, "812 ns"),
        (812.4, "812 ns"),
        (999.4, "999 ns"),
        (999.6, "1.000 us"),
        (1000, "1.000 us"),
        (155_200, "155.2 us"),
        (12_345, "12.35 us"),
        (999_949, "999.9 us"),
        (999_951, "1.000 ms"),
        (66_100_000, "66.10 ms"),
        (1_203_000_000, "1.203 s "),
        (83_000_000_000, "83.00 s "),
        (1_234_400_000_000, "1234 s "),
        (86_400_000_000_000, "86400 s "),
    ],
)
def test_format_time(ns, text):
    assert units.format_time(ns) == text


@given(st.floats(1, 1e15))
def test_format_time_is_near_and_its_unit_two_wide(ns):
    text = units.format_time(ns)
    unit = text[-2:]
    scale = {"ns": 1, "us": 1e3, "ms": 1e6, "s ": 1e9}[unit]
    number = float(text[:-3])
    assert text[-3] == " "
    # Half a unit of the last of four digits; whole nanoseconds below 1 us.
    assert abs(number * scale - ns) <= max(0.5, 0.00051 * ns)
    assert unit == "s " or number < 1000


@pytest.mark.parametrize(
    ("gbps", "text"),
    [
        (None, "-"),
        (0, "0.000"),
        (0.0001, "<0.001"),
        (0.0005, "0.001"),
        (117.44, "117.440"),
        (1234.5678, "1234.568"),
    ],
)
def test_format_bandwidth(gbps, text):
    assert units.format_bandwidth(gbps) == text


@pytest.mark.parametrize("value", [1, 2.0, "3", True])
def test_what_is_no_whole_number_from_2_on(value):
    with pytest.raises(UsageError) as caught:
        units.whole_number(value, "rounds", 2)
    assert str(caught.value) == error_text("rounds", value, "a whole number from 2 on")


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, "-"),
        (0.98, "0.980"),
        (99.5, "99.500"),
        (123.46, "123.5"),
        (29000.4, "29000"),
        (1 / 175, "0.00571"),
        (0.0999, "0.0999"),
        (0.09996, "0.100"),
        (0.1, "0.100"),
        (0.05, "0.0500"),
        (1.5e-7, "0.000000150"),
        (0.0, "0.000"),
        (4.1e-16, "<0.000000001"),
        (2.4e15, ">1000000000"),
    ],
)
def test_ratios_keep_three_digits_and_have_no_powers_of_ten(ratio, text):
    assert units.format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("text", "share"), [("2%", 0.02), (" 2.5 % ", 0.025), ("0.02", 0.02), ("99.9%", 0.999)]
)
def test_a_share(text, share):
    assert units.parse_share(text, "threshold") == pytest.approx(share, rel=1e-15)


@pytest.mark.parametrize("text", ["", "x", "0", "0%", "1", "20", "100%", "-2%", "nan", "1e-2"])
def test_what_is_no_share(text):
    with pytest.raises(UsageError) as caught:
        units.parse_share(text, "threshold")
    expected = "a share above 0 and below 1, such as 2% or 0.02"
    assert str(caught.value).startswith(error_text("threshold", text).rstrip())
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("64", [64]), ("64,8", [8, 64]), ("8..100", [8, 16, 32, 64, 100]), ("2,4..16", [2, 4, 8, 16])],
)
def test_lists_of_ranks(text, ranks):
    assert units.parse_ranks(text) == ranks


def test_lists_of_sizes():
    assert units.parse_sizes("1K..20K,3") == [3, 1024, 4096, 16384, 20480]


@pytest.mark.parametrize("text", ["", "1", "8..4", "2..", "eight", "33554432", "9" * 5000, "8,,4"])
def test_what_is_no_list_of_ranks(text):
    with pytest.raises(UsageError, match=error_text("ranks", "")):
        units.parse_ranks(text)


def test_counted():
    assert [units.counted(1, "case"), units.counted(2, "case"), units.counted(0, "run")] == (
        ["1 case", "2 cases", "0 runs"]
    )


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "0.0 % faster"),
        (1 / 0.9, "11 % slower"),
        (1 / 1.25, "25 % faster"),
        (0.51, "96 % faster"),
        (1.0996, "10 % slower"),
        (1.994, "99 % slower"),
        (1.9951, "2.0x slower"),
        (23.64, "24x slower"),  # 2264 %
        (0.5, "2.0x faster"),
        (1 / 130.4, "130x faster"),
    ],
)
def test_a_change_is_a_percentage_below_twice_and_a_factor_from_there(ratio, text):
    assert units.format_change(ratio) == text


def test_a_shortened_list_says_how_many_are_left_out():
    assert units.shorten(["a", "b"], 2) == "a, b"
    assert units.shorten(["a", "b", "c"], 2) == "a, b and 1 more"
    assert units.shorten(["a", "b", "c"], 1, "; and {} more", between="; ") == "a; and 2 more"
    assert units.shorten_list(["a", "b", "c"], 2, "{} more such sizes") == [
        "a",
        "b",
        "1 more such size",
    ]
    assert units.shorten_list(["a"], 2) == ["a"]
