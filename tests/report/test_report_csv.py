"""The one writer of CSV: which columns there are, and what a field is."""

from torchcoll.report.formats import records_csv


def test_lists_are_their_items_with_commas():
    rows = [{"hosts": [1, 2], "ranks": (), "name": "a,b"}, {"hosts": [3], "more": None}]
    assert records_csv(rows) == 'hosts,ranks,name,more\n"1,2",,"a,b",\n3,,,\n'


def test_chosen_columns_are_there_without_rows_too():
    assert records_csv([], ["job", "table"]) == "job,table\n"
    assert records_csv(iter([{"a": 1, "b": 2}]), ["b"]) == "b\n2\n"
