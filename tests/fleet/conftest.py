"""Each test of a store runs with SQLite, and with PostgreSQL where a server can be started."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from postgres_server import NoServer, running_server

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    try:
        with running_server() as url:
            yield url
    except NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture
def postgres_store(postgres_url) -> str:
    """The URL of an empty database."""
    import psycopg

    name = f"torchcoll_{next(_NUMBERS)}"
    with psycopg.connect(f"{postgres_url}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{postgres_url}/{name}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request, tmp_path) -> str:
    """What --into takes: a store that is not there yet."""
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    return str(request.getfixturevalue("postgres_store"))
