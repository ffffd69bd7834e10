"""Makes the web site out of files that stay where GitHub shows them.

The pages of `results/` and a few at the top of the repository become part of the site, figures included. Links between
files are written as paths in the repository, and are rewritten here to paths in the site; a link to a file that is no
part of the site, such as source code, becomes a link to the repository.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
EXTRA = [
    *(ROOT / "results").rglob("*.md"),
    *(ROOT / "results").rglob("*.png"),
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")),
]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in EXTRA:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page that lead out of docs/, or out of a page from outside of it."""
    source = Path(page.file.abs_src_path or "").relative_to(ROOT)

    def link(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        path = os.path.normpath(source.parent / target)
        name = Path(path).relative_to("docs").as_posix() if path.startswith("docs/") else path
        if files.get_file_from_path(name):
            return os.path.relpath(name, Path(page.file.src_uri).parent) + anchor
        if (ROOT / path).exists():
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"{config.repo_url}/{kind}/main/{path}{anchor}"
        return match[0]  # which a strict build reports

    return LINK.sub(link, markdown)
