"""The names of the header fields of a send that the hot path reads.

SEND_MESSAGE has long names, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE one letter each. `headers` has
the complete headers.

Pure. Used by the broker's send handlers and by the compiled kernel.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class SendFields(NamedTuple):
    """Wire names, in one version of the request."""

    topic: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    properties: str
    reconsume_times: str
    batch: str


LONG_NAMES: Final = SendFields(
    "topic", "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes", "batch"
)
SHORT_NAMES: Final = SendFields("b", "e", "f", "g", "h", "i", "j", "m")
