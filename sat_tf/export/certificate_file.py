"""Reads certificates back."""

import json
import os
import pathlib

import pydantic

from sat_tf.export.certificate import Certificate
from sat_tf.messages import list_problems


def read_certificate(path: str | os.PathLike[str]) -> Certificate:
    """The certificate in a JSON file.

    Raises:
        ValueError: there is no such file, or it holds no certificate; lists all that it lacks.
    """
    path = pathlib.Path(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path}: {error.strerror}; expected the certificate that sat-tf verify has written."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: received a file that is not JSON ({error}), expected the certificate that "
            "sat-tf verify has written."
        ) from error
    try:
        certificate = _CERTIFICATE.validate_python(values)
    except pydantic.ValidationError as error:
        problems = [
            f"{'.'.join(map(str, found['loc'])) or 'all of it'}: {found['msg']}"
            for found in error.errors()
        ]
        problems.append("expected a certificate of this version; make it anew with sat-tf verify")
        raise ValueError(list_problems(str(path), problems)) from error
    if "xnnpack" not in certificate.runtimes:
        raise ValueError(
            f"{path}: received a certificate without XNNPACK, expected one that sat-tf verify has "
            "written; make it anew."
        )
    return certificate


_CERTIFICATE = pydantic.TypeAdapter(Certificate)
