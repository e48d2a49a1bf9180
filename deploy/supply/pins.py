"""Pin the images that docker-compose.yml runs and the Dockerfiles build on by their digests: `make pin`.

A tag can be moved to other content, a digest cannot. Each image is pulled, and the digest of what its tag means now is
written behind the tag, in place of an earlier digest. Run it again to take what a tag has come to mean.

Invariant: either every file has the digests of all its images, or none is changed.

Exit codes: 0 all are pinned; 69 an image cannot be pulled, and nothing was changed.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click

from deploy.compose.engine import Engine, EngineError
from deploy.supply.locks import Image, image_files, images

UNAVAILABLE: Final = 69
"""EX_UNAVAILABLE of sysexits.h."""
_PULL_S: Final = 600.0


class UnpinnableError(Exception):
    """An image has no digest here; the message says what to do."""


def digest_of(image: Image, engine: Engine) -> str:
    """Pull an image and return its digest, `sha256:` and 64 hex digits.

    Raises UnpinnableError if it cannot be pulled. Its text leaves out what Docker said, which names a registry's host.
    """
    try:
        engine.docker("pull", "--quiet", image.reference, deadline_s=_PULL_S)
        found = engine.docker("image", "inspect", "--format", "{{json .RepoDigests}}", image.reference)
    except EngineError as error:
        raise UnpinnableError(
            f"{image.reference} cannot be pulled: the registry cannot be reached, or does not have it; "
            f"`docker pull {image.reference}` says which"
        ) from error
    for repository, _, digest in (text.partition("@") for text in json.loads(found)):
        if repository == image.name or repository.endswith(f"/{image.name}"):
            return str(digest)
    raise UnpinnableError(f"{image.reference} has no digest: it was built on this machine, not pulled")


def pinned(text: str, digests: Mapping[str, str]) -> str:
    """Return the text of a file with the digest behind each image; `digests` is by name and tag."""
    for reference, digest in digests.items():
        text = re.sub(
            rf"(?<![\w./-]){re.escape(reference)}(?:@sha256:[0-9a-f]{{64}})?(?=\s|$)", f"{reference}@{digest}", text
        )
    return text


def pin(files: list[Path], find: Callable[[Image], str]) -> dict[str, str]:
    """Write the digests into the files; return them by name and tag. Raises UnpinnableError before any change."""
    digests = {image.reference: find(image) for image in images(files)}
    texts = {file: pinned(file.read_text(), digests) for file in files}
    for file, text in texts.items():
        file.write_text(text)
    return digests


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Pin all images of the project."""
    engine = Engine()
    try:
        digests = pin(image_files(), lambda image: digest_of(image, engine))
    except UnpinnableError as error:
        click.echo(f"nothing was changed: {error}", err=True)
        sys.exit(UNAVAILABLE)
    for reference, digest in digests.items():
        click.echo(f"{reference} {digest}")


if __name__ == "__main__":
    main()
