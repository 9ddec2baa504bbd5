"""A real YARN for tests: Hadoop's own ResourceManager and two NodeManagers, in one process on the loopback.

`with Yarn(folder) as yarn:` starts them. Needs what tests/kafka_lab needs, which fetches and keeps the jars for both;
a missing Java or a failed fetch raises LabError there. The client's half of YARN is in pyspark's own jars.
"""

from .cluster import SPARK, Yarn

__all__ = ["SPARK", "Yarn"]
