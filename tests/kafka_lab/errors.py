"""The error of the lab."""


class LabError(Exception):
    """Failure of the lab to do what a test asked: no Java, no jars, a broker that does not start.

    It fails a test, and never skips it.
    """
