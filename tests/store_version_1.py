"""The tables of a store of version 1, as torchcoll 0.1.0 made them: stores must stay readable."""

from __future__ import annotations

SQLITE = """
CREATE TABLE case_keys (
    id INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    "key" JSON NOT NULL,
    collective TEXT NOT NULL,
    size_bytes_requested BIGINT NOT NULL,
    dtype TEXT,
    op TEXT,
    in_place BOOLEAN,
    backend TEXT NOT NULL,
    mode TEXT NOT NULL,
    ranks INTEGER NOT NULL,
    statistic TEXT NOT NULL,
    clock TEXT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (sha256)
);
CREATE TABLE environments (
    id INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    facts JSON NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (sha256)
);
CREATE TABLE files (
    host TEXT NOT NULL,
    path TEXT NOT NULL,
    label TEXT NOT NULL,
    signature TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    runs INTEGER NOT NULL,
    PRIMARY KEY (host, path, label)
);
CREATE INDEX files_fingerprint ON files (fingerprint);
CREATE TABLE meta (
    version INTEGER NOT NULL,
    torchcoll TEXT NOT NULL,
    created_us BIGINT NOT NULL
);
CREATE TABLE runs (
    id INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    path TEXT NOT NULL,
    file_sha256 TEXT NOT NULL,
    node TEXT NOT NULL,
    hosts JSON NOT NULL,
    ranks INTEGER NOT NULL,
    device_name TEXT NOT NULL,
    start_us BIGINT,
    received_us BIGINT,
    collected_us BIGINT NOT NULL,
    status TEXT NOT NULL,
    exit_code BIGINT,
    wall_s DOUBLE,
    environment_id INTEGER NOT NULL,
    labels JSON NOT NULL,
    case_count INTEGER NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (run_id),
    FOREIGN KEY(environment_id) REFERENCES environments (id)
);
CREATE INDEX runs_environment ON runs (environment_id);
CREATE INDEX runs_node ON runs (node, start_us);
CREATE INDEX runs_path ON runs (path);
CREATE INDEX runs_received ON runs (received_us);
CREATE INDEX runs_start ON runs (start_us);
CREATE TABLE cases (
    run INTEGER NOT NULL,
    case_key INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    time_ns DOUBLE,
    low_ns DOUBLE,
    high_ns DOUBLE,
    p99_ns DOUBLE,
    first_call_ns DOUBLE,
    second_call_ns DOUBLE,
    calls BIGINT NOT NULL,
    algbw_gbps DOUBLE,
    busbw_gbps DOUBLE,
    verified TEXT NOT NULL,
    PRIMARY KEY (run, case_key, repeat),
    FOREIGN KEY(run) REFERENCES runs (id),
    FOREIGN KEY(case_key) REFERENCES case_keys (id)
)
 WITHOUT ROWID;
"""

POSTGRESQL = """
CREATE TABLE case_keys (
    id BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    key JSONB NOT NULL,
    collective TEXT NOT NULL,
    size_bytes_requested BIGINT NOT NULL,
    dtype TEXT,
    op TEXT,
    in_place BOOLEAN,
    backend TEXT NOT NULL,
    mode TEXT NOT NULL,
    ranks INTEGER NOT NULL,
    statistic TEXT NOT NULL,
    clock TEXT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (sha256)
);
CREATE TABLE environments (
    id BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    facts JSONB NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (sha256)
);
CREATE TABLE files (
    host TEXT NOT NULL,
    path TEXT NOT NULL,
    label TEXT NOT NULL,
    signature TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    runs INTEGER NOT NULL,
    PRIMARY KEY (host, path, label)
);
CREATE INDEX files_fingerprint ON files (fingerprint);
CREATE TABLE meta (
    version INTEGER NOT NULL,
    torchcoll TEXT NOT NULL,
    created_us BIGINT NOT NULL
);
CREATE TABLE runs (
    id BIGINT NOT NULL,
    run_id TEXT NOT NULL,
    path TEXT NOT NULL,
    file_sha256 TEXT NOT NULL,
    node TEXT NOT NULL,
    hosts JSONB NOT NULL,
    ranks INTEGER NOT NULL,
    device_name TEXT NOT NULL,
    start_us BIGINT,
    received_us BIGINT,
    collected_us BIGINT NOT NULL,
    status TEXT NOT NULL,
    exit_code BIGINT,
    wall_s DOUBLE PRECISION,
    environment_id BIGINT NOT NULL,
    labels JSONB NOT NULL,
    case_count INTEGER NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (run_id),
    FOREIGN KEY(environment_id) REFERENCES environments (id)
);
CREATE INDEX runs_environment ON runs (environment_id);
CREATE INDEX runs_node ON runs (node, start_us);
CREATE INDEX runs_path ON runs (path);
CREATE INDEX runs_received ON runs (received_us);
CREATE INDEX runs_start ON runs (start_us);
CREATE TABLE cases (
    run BIGINT NOT NULL,
    case_key BIGINT NOT NULL,
    repeat SMALLINT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    time_ns DOUBLE PRECISION,
    low_ns DOUBLE PRECISION,
    high_ns DOUBLE PRECISION,
    p99_ns DOUBLE PRECISION,
    first_call_ns DOUBLE PRECISION,
    second_call_ns DOUBLE PRECISION,
    calls BIGINT NOT NULL,
    algbw_gbps DOUBLE PRECISION,
    busbw_gbps DOUBLE PRECISION,
    verified TEXT NOT NULL,
    PRIMARY KEY (run, case_key, repeat),
    FOREIGN KEY(run) REFERENCES runs (id),
    FOREIGN KEY(case_key) REFERENCES case_keys (id)
);
"""
