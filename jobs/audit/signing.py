"""Ed25519 signatures of proofs. No other module imports `cryptography`, and nothing imports this one before it signs or
checks.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from lastkey.jobs.errors import MissingPathError, UsageError

_MOST_BYTES: Final = 1 << 16  # of a PEM file


def private_key(path: str, password: bytes | None) -> Ed25519PrivateKey:
    """Read the key to sign with: PKCS8, as `openssl genpkey -algorithm ed25519` writes it. Raises UsageError."""
    data = _read(path)
    try:
        key = load_pem_private_key(data, password)
    except (ValueError, TypeError) as error:  # no PEM, a wrong password; a password missing, or one too many
        raise UsageError(message=f"{path}: expected a private key in PEM, found: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(message=f"{path}: expected an Ed25519 key, found {type(key).__name__}")
    return key


def public_key(path: str) -> Ed25519PublicKey:
    """Read the key to check with. Raises UsageError."""
    data = _read(path)
    try:
        key = load_pem_public_key(data)
    except ValueError as error:
        raise UsageError(message=f"{path}: expected a public key in PEM, found: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(message=f"{path}: expected an Ed25519 key, found {type(key).__name__}")
    return key


class Signer:
    """A private key that signs."""

    def __init__(self, path: str, password: bytes | None) -> None:
        """Read the key. Raises UsageError."""
        self._key = private_key(path, password)
        self.fingerprint = fingerprint(self._key.public_key())

    def sign(self, data: bytes) -> bytes:
        """Return the signature: 64 bytes."""
        return self._key.sign(data)


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of a public key in DER: `openssl pkey -pubin -in PUB.pem -outform DER | sha256sum`."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def is_signed(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    """Return whether a signature fits."""
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise MissingPathError(path=path, expected="a key in PEM", found=error.strerror or str(error)) from None
