"""The ring file of a capture: the last calls of one rank, also after the process was killed.

``capture(on_hang="dump")`` writes ``calls-rank{r}.ring`` through a memory map, so the file is
complete however the process ends, as long as its node lives. The file has a fixed size:

- bytes 0 to 47: ``PREFIX``, with the time at which the process was last seen alive;
- from TEXTS_AT: JSON Lines with check sums (core/jsonl.py), zeros after the last: a header,
  then groups, texts (names of collectives, dtypes and lines of code, by number), calls that failed,
  and how the capture ended;
- from CALLS_AT: CAPACITY records of ``CALL``, call number n at n modulo CAPACITY.

All numbers are little-endian, times are ns since 1970 on the clock of the rank.
"""

from __future__ import annotations

import struct

RING_FILE = "calls-rank"  # calls-rank0.ring
STACKS_FILE = "stacks-rank"  # stacks-rank0.txt
STACKS_HEAD = "torchcoll stacks"  # the first line of each dump begins with it
SCHEMA = "torchcoll-ring/1"
MAGIC = b"torchcoll call ring 1\n"
# MAGIC, when the process was last seen alive.
PREFIX = struct.Struct("<24s16xq")
TEXTS_AT = 64
CALLS_AT = 1 << 16
CAPACITY = 4096
# Serial number of the call in the process from 1 (0: an unused record), when it was issued, bytes
# in and out, number in its group, group, collective, dtype, line of code (numbers of texts, 0 for
# none), peer, root (-1 for none); the CRC-32 of these; and its state.
CALL = struct.Struct("<QqqqIHHHHiiIq")
CALL_BODY = struct.Struct("<QqqqIHHHHii")
CALL_TAIL = struct.Struct("<Iq")
STATE = struct.Struct("<q")
STATE_AT = CALL.size - STATE.size
# The state: PENDING or UNCERTAIN, the time at which the call ended, or minus the time at which it
# raised an exception.
PENDING, UNCERTAIN = 0, 1
