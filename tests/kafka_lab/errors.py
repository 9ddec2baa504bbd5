"""The error of the lab."""


class LabError(Exception):
    """Failure of a request to the lab: no Java, no jars, a broker that does not start. It fails a test and never skips
    it.
    """
