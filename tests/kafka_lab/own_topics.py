"""The broker's own topics and the decoders that read them: ours and kafka-dump-log's."""

from __future__ import annotations

import re

from lastkey.logformat.messages.coordinator_records import (
    GROUP_RECORDS,
    METADATA_RECORDS,
    REMOTE_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
)

DECODERS = {  # ours -> the tool's class and option, its records, what the names of its messages end with
    "offsets": ("OffsetsMessageParser", "--offsets-decoder", GROUP_RECORDS),
    "transaction-log": ("TransactionLogMessageParser", "--transaction-log-decoder", TRANSACTION_RECORDS),
    "share-group-state": ("ShareGroupStateMessageParser", "--share-group-state-decoder", SHARE_RECORDS),
    "cluster-metadata": ("ClusterMetadataLogMessageParser", "--cluster-metadata-decoder", METADATA_RECORDS),
    "remote-log-metadata": ("RemoteMetadataLogMessageParser", "--remote-log-metadata-decoder", REMOTE_RECORDS),
}
TOPICS = {"__consumer_offsets": "offsets", "__transaction_state": "transaction-log",
          "__share_group_state": "share-group-state", "__cluster_metadata": "cluster-metadata"}  # fmt: skip
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
          "PrepareEpochFence")  # fmt: skip


def as_4_3_prints(text: str) -> str:
    """Return text of 4.4's kafka-dump-log as 4.3's prints it (KAFKA.md, "Versions"); 4.3's own is unchanged."""

    def number(found: re.Match[str]) -> str:
        state = found[1]
        return f'"transactionStatus":{STATES.index(state) if state in STATES else state}'

    return re.sub(r'"transactionStatus":"([\w-]+)"', number, text)
