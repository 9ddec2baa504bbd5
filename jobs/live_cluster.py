"""The client of live clusters, confluent-kafka, and its settings: an optional package, the extra `cluster`.

The file of --command-config is the one that Kafka's own tools take. A setting that the client does not support is an
error and never ignored. A connection must not be less safe than the file demands.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from lastkey.jobs.command.parse import parse_properties, read_given
from lastkey.jobs.errors import BAD_COMMAND_CONFIG, NO_CLIENT

_JAAS: Final = re.compile(r"\S*(?:PlainLoginModule|ScramLoginModule)\s+required\s+(?P<options>.*);\s*", re.DOTALL)
_OPTION: Final = re.compile(
    r"""(?P<name>\w+)\s*=\s*(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>[^']*)'|(?P<bare>[^\s;]+))"""
)
# Kafka's word -> the client's; all of them mean the same
_WORDS: Final = {
    "sasl.mechanism": "sasl.mechanisms",
    "request.timeout.ms": "socket.timeout.ms",
    "max.request.size": "message.max.bytes",
} | {
    name: name
    for name in (
        "security.protocol", "sasl.kerberos.service.name", "ssl.keystore.password", "ssl.key.password",
        "ssl.cipher.suites", "ssl.endpoint.identification.algorithm", "client.id", "connections.max.idle.ms",
        "reconnect.backoff.ms", "reconnect.backoff.max.ms",
        "batch.size", "compression.type", "delivery.timeout.ms", "linger.ms", "transaction.timeout.ms",  # producers
    )
}  # fmt: skip
_STORES: Final = {  # (file, its type in capitals) -> the client's words
    ("ssl.truststore", "PEM"): ("ssl.ca.location",),
    ("ssl.keystore", "PEM"): ("ssl.certificate.location", "ssl.key.location"),
    ("ssl.keystore", "PKCS12"): ("ssl.keystore.location",),
}
_EXPORT: Final = {  # formats that the client reads, and commands that convert Java's key stores
    "ssl.truststore": "PEM (make one: keytool -list -rfc -keystore {path} > ca.pem; give ssl.truststore.type=PEM)",
    "ssl.keystore": "PEM or PKCS12 (make one: keytool -importkeystore -srckeystore {path} -destkeystore keys.p12 "
    "-deststoretype PKCS12; give ssl.keystore.type=PKCS12)",
}
_PEM: Final = {  # contents of PEM files, as Kafka takes them in the file itself
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}


def admin_client() -> Any:
    """Import confluent_kafka.admin. Raise NO_CLIENT."""
    try:
        return importlib.import_module("confluent_kafka.admin")
    except ImportError as error:
        raise NO_CLIENT(found=str(error)) from error


def describe_client_error(client: Any, error: Exception) -> str:
    """Return the cluster's message of a KafkaException, or the text of another exception."""
    return str(error.args[0].str() if isinstance(error, client.KafkaException) else error)


def client_settings(bootstrap: str, path: str | None) -> dict[str, str]:
    """Return the client's settings for those of a file in Kafka's words; path None: for the address alone.

    Raise CONFIG_FILE for a file that cannot be read, BAD_COMMAND_CONFIG for a setting that the client cannot obey.
    """
    given = {} if path is None else parse_properties(read_given(path, "properties"), path)
    given.pop("bootstrap.servers", None)
    out = {"bootstrap.servers": bootstrap}
    for store, expected in _EXPORT.items():
        location, kind = given.pop(f"{store}.location", None), given.pop(f"{store}.type", "JKS").upper()
        inline = any(name.startswith((f"{store}.cert", f"{store}.key")) for name in given)
        if location is not None and (store, kind) in _STORES:
            out |= dict.fromkeys(_STORES[store, kind], location)
        elif location is not None:
            shown = expected.format(path=location)
            raise BAD_COMMAND_CONFIG(path=path, setting=f"{store}.type", expected=shown, found=kind)
        elif inline and kind != "PEM":
            raise BAD_COMMAND_CONFIG(path=path, setting=f"{store}.type", expected="PEM", found=kind)
    for name, value in given.items():
        if name == "sasl.jaas.config":
            out |= _login(value, path)
        elif name in _PEM:
            out[_PEM[name]] = value
        elif name in _WORDS:
            out[_WORDS[name]] = value
        else:
            expected = f"one of {', '.join(sorted([*_WORDS, *_PEM, 'sasl.jaas.config']))}"
            raise BAD_COMMAND_CONFIG(path=path, setting=name, expected=expected, found="a name without a counterpart")
    if out.get("ssl.endpoint.identification.algorithm") == "":
        out["ssl.endpoint.identification.algorithm"] = "none"
    return out


def _login(text: str, path: str | None) -> dict[str, str]:
    """Return user and password of a sasl.jaas.config for PLAIN or SCRAM. No part of its text is shown: it is secret."""
    found = _JAAS.fullmatch(text.strip())
    options = {} if found is None else {m["name"]: _option(m) for m in _OPTION.finditer(found["options"])}
    if not {"username", "password"} <= set(options):
        expected = 'PlainLoginModule or ScramLoginModule required username="..." password="...";'
        raise BAD_COMMAND_CONFIG(path=path, setting="sasl.jaas.config", expected=expected, found="another text")
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _option(match: re.Match[str]) -> str:
    double = match["double"]
    return re.sub(r"\\(.)", r"\1", double) if double is not None else match["single"] or match["bare"] or ""
