import pytest
import torch
from error_form import error_text

from torchcoll.core.collectives import COMMON_DTYPES, DTYPES, find_dtype
from torchcoll.core.errors import UsageError


@pytest.mark.parametrize("name", DTYPES)
def test_torch_agrees(name):
    dtype, mine = getattr(torch, name), DTYPES[name]
    assert mine.itemsize == dtype.itemsize
    assert (mine.kind == "float") == dtype.is_floating_point
    assert (mine.kind == "int") == (not dtype.is_floating_point and dtype.is_signed)
    assert (mine.kind == "uint") == (not dtype.is_floating_point and not dtype.is_signed)


@pytest.mark.parametrize("name", [n for n in DTYPES if DTYPES[n].kind == "float"])
def test_exact_is_the_largest_run_of_whole_numbers(name):
    dtype, exact = getattr(torch, name), DTYPES[name].exact
    low = max(0, exact - 4096)
    numbers = torch.arange(low, exact + 2, dtype=torch.int64)
    # int64 all the way: float64 itself does not hold 2**53 + 1.
    back = numbers.to(dtype).to(torch.float64).to(torch.int64)
    held = (back == numbers).tolist()
    assert held == [True] * (len(held) - 1) + [False]


@pytest.mark.parametrize("name", [n for n in DTYPES if DTYPES[n].kind != "float"])
def test_exact_is_the_largest_whole_number(name):
    assert DTYPES[name].exact == torch.iinfo(getattr(torch, name)).max


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("float32", "float32"),
        ("torch.bfloat16", "bfloat16"),
        (torch.float16, "float16"),
        ("FLOAT16", "float16"),
        # nccl-tests: -d int8 uint8 int32 int64 half float double bfloat16 f8e4m3 f8e5m2
        ("half", "float16"),
        ("float", "float32"),
        ("double", "float64"),
        ("bfloat16", "bfloat16"),
        ("f8e4m3", "float8_e4m3fn"),
        ("f8e5m2", "float8_e5m2"),
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("fp32", "float32"),
        ("fp64", "float64"),
        ("char", "int8"),
        ("short", "int16"),
        ("int", "int32"),
        ("long", "int64"),
    ],
)
def test_spellings(text, name):
    assert find_dtype(text).name == name


def test_no_alias_means_two_types():
    spellings = [a for d in DTYPES.values() for a in (d.name, *d.aliases)]
    assert len(spellings) == len(set(spellings))
    assert set(COMMON_DTYPES) <= set(DTYPES)


@pytest.mark.parametrize(("text", "got"), [("float31", "float31"), ("", "an empty text")])
def test_unknown(text, got):
    with pytest.raises(UsageError) as caught:
        find_dtype(text)
    assert str(caught.value) == (
        error_text(
            "dtype",
            got,
            "one of float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64, "
            "float8_e4m3fn, float8_e5m2",
        )
        + (". Did you mean float32?" if text else "")
    )
