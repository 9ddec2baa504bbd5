"""What the lab raises."""


class LabError(Exception):
    """The lab could not do what it was asked: no Java, no jars, a broker that does not start.

    It fails a test, and never skips it.
    """
