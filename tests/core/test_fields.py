"""The table of the fields of a Spec and its cases: one entry there makes an option of a run."""

import dataclasses

from torchcoll.core.case import DIMENSIONS, FIELDS, SETTINGS, Case
from torchcoll.core.spec import Spec
from torchcoll.core.summary import Row
from torchcoll.stats.matching import NAMES


def test_every_field_of_a_spec_is_in_the_table():
    """Labels belong to one run, and points are calls that a traffic file has."""
    assert {field.name for field in dataclasses.fields(Spec)} == {*FIELDS, "labels", "points"}


def test_a_setting_is_the_same_in_every_class():
    for setting in SETTINGS:
        for kind in (Spec, Case):
            assert kind.__dataclass_fields__[setting.name].default == setting.default
        for kind in (Case, Row):
            assert kind.__dataclass_fields__[setting.name].type == setting.kind.__name__


def test_every_field_of_a_case_distinguishes_it():
    """A rehearsal is never compared; the rest are what the ranks add to a case."""
    assert {field.name for field in dataclasses.fields(Case)} - {"size_bytes"} == {*DIMENSIONS} - {
        "ranks",
        "communicator",
        "clock",
    }
    assert {*NAMES} == {*DIMENSIONS} - {"rehearsal"}
