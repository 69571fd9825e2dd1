"""How the commands are listed and their help is set."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

ORDER = (
    *("plan", "fit", "sample", "evaluate", "report", "compare", "export", "verify", "budget", "methods"),
    *("sketch", "synthesize", "continual", "weights"),
)
"""Of the commands in the help: that in which people need them."""


class InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """With paragraphs of one line each: the lines of the source would be broken again at another width."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:
            command.help = "\n\n".join(" ".join(text.split()) for text in command.help.split("\n\n"))
        return command
