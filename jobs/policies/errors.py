"""Errors of `policies`."""

from __future__ import annotations

from lastkey.jobs.errors import UsageError


class SourcesError(UsageError):
    """Sources of policies that contradict each other."""

    template = "{path}: expected {expected}, found {found}"
    hint = "give sources of one cluster, taken at one time"


class DisagreeError(UsageError):
    """A setting that a topic takes from the brokers, of which the brokers have several values."""

    template = "{setting}: expected one value of all brokers, because topic {topic} has none of its own, found {found}"
    hint = "set it for the topic, or make the brokers agree"


class DescribedError(UsageError):
    """Text that is not what kafka-configs prints."""

    template = "{path}, line {position}: expected {expected}, found {found}"
    hint = "give the output of `kafka-configs --describe` as it is, errors and warnings apart"


class DamagedMetadataError(UsageError):
    """A snapshot or log of __cluster_metadata that cannot be trusted as a whole."""

    hint = "nothing was written; take another copy of the folder, or another source"
