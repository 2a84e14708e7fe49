"""Makes the package's description: the README, whose links to files lead to the repository, at the version's tag."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")
_PICTURE = re.compile(r'(<img [^>]*src=")(?!https?:)([^"]+)"')


class DescriptionHook(MetadataHookInterface):
    """Sets `readme`: links that are relative lead nowhere on the page of a package index."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description of the project."""
        source, tag = metadata["urls"]["Source"], f"v{metadata['version']}"

        def absolute(found: re.Match[str]) -> str:
            picture, text, path = found.groups()
            return f"{picture}[{text}]({source}/{'raw' if picture else 'blob'}/{tag}/{path})"

        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = _PICTURE.sub(rf'\g<1>{source}/raw/{tag}/\g<2>"', _LINK.sub(absolute, readme))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
