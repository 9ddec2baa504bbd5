"""Jars beside Spark's own that we fetch from Maven Central: Delta's, and connectors for tables in object stores.

Each jar is known by its SHA-256: the resolver checks downloads only against sums from the same place, and its cache not
at all.

hadoop-aws asks for `bundle`, all of Amazon's SDK in one jar of 640 MiB. S3 needs the modules below, 9 MiB, in the
version that Hadoop's own pom names (`aws-java-sdk-v2.version` of hadoop-project). What these need and Spark has is not
here (netty, httpclient, slf4j), nor is wildfly-openssl, which Hadoop uses only if told to.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from lastkey.jobs.errors import ForeignJarError, JarsError

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
# All else that its pom asks for: Spark has that already, in the same or a newer version, and it is 6 times as large
NOT_NEEDED: Final = "com.*:*,org.*:*,javax.*:*,commons-*:*,io.airlift:*"
DELTA: Final = {
    "io.delta_delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "io.delta_delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "io.delta_delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "io.delta_delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "io.delta_delta-kernel-unitycatalog-4.4.0.jar": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
}

HADOOP: Final = "3.5.0"  # the version that the connector fits
_SDK: Final = {
    "annotations": "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8",
    "apache-client": "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740",
    "arns": "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380",
    "auth": "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994",
    "aws-core": "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623",
    "aws-json-protocol": "d15dccce10d41c997be458ed897e3837bc7d4243a4baa7debeb5d963d12c672b",
    "aws-query-protocol": "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f",
    "aws-xml-protocol": "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d",
    "checksums": "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948",
    "checksums-spi": "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec",
    "crt-core": "2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62",
    "endpoints-spi": "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00",
    "http-auth": "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491",
    "http-auth-aws": "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01",
    "http-auth-aws-eventstream": "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd",
    "http-auth-spi": "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c",
    "http-client-spi": "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb",
    "identity-spi": "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf",
    "json-utils": "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc",
    "metrics-spi": "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487",
    "netty-nio-client": "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc",
    "profiles": "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8",
    "protocol-core": "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5",
    "regions": "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca",
    "retries": "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469",
    "retries-spi": "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd",
    "s3": "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc",
    "s3-transfer-manager": "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476",
    "sdk-core": "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4",
    "sts": "8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2",
    "third-party-jackson-core": "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea",
    "utils": "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8",
    "utils-lite": "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be",
}
# By which Hadoop reads unless told otherwise
_ACCELERATOR: Final = "software.amazon.s3.analyticsaccelerator_analyticsaccelerator-s3-1.3.1"
_BESIDE: Final = {
    "org.apache.hadoop_hadoop-aws-3.5.0": "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
    "org.reactivestreams_reactive-streams-1.0.4": "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
    "software.amazon.eventstream_eventstream-1.0.1": "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
    _ACCELERATOR: "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
}
S3: Final = {
    **{f"{name}.jar": sha for name, sha in _BESIDE.items()},
    **{f"software.amazon.awssdk_{module}-2.35.4.jar": sha for module, sha in _SDK.items()},
}

# The rest of what its pom names is for wasb://, which it no longer has, for TLS by OpenSSL, or among Spark's own
AZURE: Final = {
    "org.apache.hadoop_hadoop-azure-3.5.0.jar": "220b5db238b82437960e4b81c7e3eefa4eff2a03ad502887497f11d0ad86e663"
}

# Google's own: Hadoop's (hadoop-gcp) can be told of no other server. Later versions have no jar of all that it needs
GOOGLE: Final = {
    "com.google.cloud.bigdataoss_gcs-connector-4.0.4-shaded.jar": (
        "dfb5832738686436e597026a8e4bab01aa22e75ebfb15d37d096981f6599d73c"
    )
}


def cache(conf: Mapping[str, str]) -> Path:
    """Return the folder of Spark's downloads."""
    return Path(conf.get("spark.jars.ivy") or "~/.ivy2.5.2").expanduser()


def cached(ivy: Path, wanted: Mapping[str, str] = DELTA) -> list[str]:
    """Return the wanted jars in Spark's cache of downloads if all are whole, else none. ForeignJarError: altered."""
    paths = [ivy / "jars" / name for name in wanted]
    if not all(zipfile.is_zipfile(path) for path in paths):
        return []
    for path, expected in zip(paths, wanted.values(), strict=True):
        stat = path.stat()
        found = _sha256(path, stat.st_size, stat.st_mtime_ns)
        if found != expected:
            raise ForeignJarError(path=path, expected=f"SHA-256 {expected}", found=found)
    return [str(path) for path in paths]


def coordinates(name: str) -> tuple[str, str, str, str]:
    """Return the group, artifact, version and classifier ("": none) of a jar by its name in Spark's cache."""
    group, _, rest = name.removesuffix(".jar").partition("_")
    plain = rest.removesuffix("-shaded")
    artifact, _, version = plain.rpartition("-")
    return group, artifact, version, "" if plain == rest else "shaded"


def unfetched(what: str, found: str) -> JarsError:
    """Return the error of jars that the resolver could not fetch, with what to do."""
    local = Path("~/.m2/repository").expanduser()
    advice = (
        "check the network, or a proxy (--conf spark.driver.extraJavaOptions=-Dhttps.proxyHost=...); without network "
        "copy the folder ~/.ivy2.5.2/jars from a machine that has run this job"
    )
    if local.is_dir():
        advice += f"; if {local} holds poms without jars, on which Spark's resolver fails, rename it meanwhile"
    return JarsError(what=what, found=found, advice=advice)


@lru_cache(len(DELTA) + len(S3) + len(AZURE) + len(GOOGLE))
def _sha256(path: Path, *_: int) -> str:
    """Return the SHA-256 of a file; `_`: size and time, by which the cache sees that it changed."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
