"""What `make site` adds to MkDocs: pages for files outside docs/ (the README is
the home page), and links to them that work on the site as in the repository.
"""
import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.md",
}
LANGUAGES = {
    ".cpp": "cpp", ".h": "cpp", ".txt": "cmake", ".yaml": "yaml", ".md": "markdown"}
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)]*)?\))")
FENCE = re.compile(r"(^```.*?^```$)", re.S | re.M)


def source_page(path):
    """The page of a source file, or of all files of a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    parts = [f"# {path.relative_to(ROOT)}\n"]
    for file in files:
        if path.is_dir():
            parts.append(f"## {file.name}\n")
        language = LANGUAGES.get(file.suffix, "text")
        parts.append(f"````{language}\n{file.read_text()}\n````\n")
    return "\n".join(parts)


def page_of(path):
    """The page of the site for a path of the repository."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path[len("docs/"):]
    return f"source/{path}.md"


def repository_path(page):
    """The path in the repository of a page's text, or nothing."""
    for path, name in PAGES.items():
        if name == page:
            return path
    return None if page.startswith(("api/", "source/")) else f"docs/{page}"


def target_of(path, link):
    """The path of the repository that a link in the text at `path` means, or
    nothing."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return target if (ROOT / target).exists() else None


def links_of(path):
    """The paths of the repository that the text at `path` links to."""
    text = FENCE.sub("", (ROOT / path).read_text())
    targets = {target_of(path, link) for _, link, _ in LINK.findall(text)}
    return targets - {None}


def on_config(config):
    # The reference has what Doxyfile names.
    doxyfile = (ROOT / "site/Doxyfile").read_text()
    headers = re.search(r"^INPUT = ((?:.*\\\n)*.*)", doxyfile, re.M)[1]
    project = config.plugins["mkdoxy"].config["projects"]["api"]
    project["src-dirs"] = " ".join(headers.replace("\\\n", " ").split())
    return config


def on_files(files, config):
    texts = {path: (ROOT / path).read_text() for path in PAGES}
    texts["LICENSE"] = f"# License\n\n```text\n{texts['LICENSE']}\n```\n"
    for path, text in texts.items():
        files.append(File.generated(config, PAGES[path], content=text))
    for name in ("console.css", "iframe-worker.js"):
        files.append(File.generated(
            config, f"assets/{name}", content=(ROOT / "site" / name).read_text()))
    documents = [
        path for file in files.documentation_pages()
        if (path := repository_path(file.src_uri))]
    for target in sorted({t for path in documents for t in links_of(path)}):
        page = page_of(target)
        if page.startswith("source/"):
            files.append(File.generated(
                config, page, content=source_page(ROOT / target)))
    return files


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri
    path = repository_path(here)
    if path is None: # of the reference
        return markdown.replace("`#include <", "`#include <weft/")

    def site_link(match):
        target = target_of(path, match[2])
        if target is None:
            return match[0]  # MkDocs reports it
        link = posixpath.relpath(page_of(target), posixpath.dirname(here) or ".")
        return match[1] + link + match[3]

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(site_link, part) for part in parts[::2]]
    return "".join(parts)
