"""The limits of the pages' server, beside those of its API (kvcore/api/limits.py); docs/hosting.md has their table."""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20

FILE_BYTES: Final = 50 * MIB
"""Largest file with the form around it; `maxUploadSize` in .streamlit/config.toml."""
SESSION_BYTES: Final = 104 * MIB
"""Most bytes of one session: two of the largest files. Files that are kept or arrive, and large texts in its fields."""
CLIENT_BYTES: Final = 156 * MIB
"""The same of one client: three of the largest."""
KEPT_BYTES: Final = 208 * MIB
"""The same of all clients."""
SPOOL_BYTES: Final = 104 * MIB
"""Most bytes of files that arrive at the same time: they lie in /tmp until they are whole. Others wait."""
CLIENT_SPOOL_BYTES: Final = 52 * MIB
"""The same of one client: one of the largest files."""
SPOOL_WAIT_SECONDS: Final = 45.0
"""How long an upload waits for others that arrive."""
UPLOAD_SECONDS: Final = 120.0
"""Time for a file to arrive, as in the proxy."""
ISSUED: Final = 64
"""Places for files that a session may have asked for at the same time; each new one beyond takes the oldest's."""

SOCKETS: Final = 400
"""Most pages that are open at the same time."""
CLIENT_SOCKETS: Final = 128
"""The same of one client: a class of 50 behind one address, with two pages each."""
OPENED_BURST: Final = 200
OPENED_RATE: Final = 5.0
"""Pages that a client opens: so many at once, then so many a second."""

MESSAGES_BURST: Final = 40
MESSAGES_RATE: Final = 10.0
"""Messages of one page: so many at once, then so many a second. A control that is dragged sends five a second."""
MESSAGE_BYTES: Final = 25_000_000
"""Largest message; `maxWidgetStateSize` in .streamlit/config.toml."""
BYTES_OF_A_MESSAGE: Final = 256 << 10
"""A larger message counts for several."""
SMALL_MESSAGE_BYTES: Final = 64 << 10
"""Messages up to here are not counted as kept."""
NOTICE_SECONDS: Final = 3.0
"""A page that sends faster than it is served for so long is told so."""
CLOSE_SECONDS: Final = 10.0
"""One that is above its rate for so long is closed."""

PENDING_BYTES: Final = 56 * MIB
"""Most bytes of large messages that have arrived in part."""
PENDING_SECONDS: Final = 60.0
"""Time for a large message to arrive."""
FRAMES_BURST: Final = 1024
FRAMES_RATE: Final = 20.0
"""Frames of one WebSocket, pings included. A browser sends a message in frames of 128 KiB or more."""
LAST_WORDS_SECONDS: Final = 2.0
"""How long a connection that is closed stays for the reason to arrive."""
SLICE_BYTES: Final = 4096
"""Bytes that are parsed between two looks at these limits."""

FRESH_SECONDS: Final = 0.25
"""A run that takes longer lets the next of its client begin beside it."""
RUNS_OF_CLIENT: Final = 3
"""Runs of one client that compute at the same time, long ones included."""
FRESH_RUNS: Final = 3
"""Clients whose runs have just begun, at the same time; others wait for a turn."""
MUCH_SECONDS: Final = 2.0
"""A client that has lately used so much more of the interpreter than another gives way to a run of the other: a choice,
a hundred steps of a slider (20 ms each)."""
SENDING_SECONDS: Final = 0.02
"""Time to send what a run has drawn, once it has ended: its 70 messages take about half of it."""
REST_SECONDS: Final = 1.0
"""How long a run that goes on gives way to others in all; one that has not begun waits until its client's use fades."""
RUNS: Final = 8
"""Runs of all clients that compute at the same time."""
COMPUTING_SHARE: Final = 0.2
"""A long run that uses less of a processor waits for something: the Hub, another process. It takes no turn."""
LOOK_SECONDS: Final = 0.1
"""How often a run that waits looks whether a long one has become none of others' business."""

SWEEP_SECONDS: Final = 5.0
"""How often what ended sessions have left is freed."""
