"""Groups of commands whose refusals are one line each."""

import click

from shared.settings import EXIT_CONFIG


def refusing(*errors: type[Exception]) -> type[click.Group]:
    """A group whose commands end with one line and EXIT_CONFIG on one of these errors."""

    class Refusing(click.Group):
        def invoke(self, ctx: click.Context) -> object:
            try:
                return super().invoke(ctx)
            except errors as error:
                click.echo(f"once: {error}", err=True)
                ctx.exit(EXIT_CONFIG)

    return Refusing
