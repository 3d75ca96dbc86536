"""Values that a tenancy offers for a new stack file: compartments, availability domains with their capacity, images,
clusters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmd_oke import catalogue
from llmd_oke.access.oci_client import OciClient, OciError

Item = Mapping[str, Any]


@dataclass(frozen=True)
class Offer:
    """Choice for a key of a new stack file: its `value` there, and a `label` for people."""

    value: str
    label: str = ""


@dataclass
class TenancyOffers:
    """Values that a tenancy offers for a new stack file, requested from OCI when needed. What OCI doesn't tell is an
    empty list, with the reason in `refusals`, so that a user with few rights gets the rest; once OCI hasn't answered a
    request, `answers` is false and no more are sent.
    """

    client: OciClient
    tenancy_id: str
    refusals: list[str] = field(default_factory=list[str])
    answers: bool = True

    def compartments(self) -> list[Offer]:
        """Return the active compartments that the user may look into, the tenancy's root last."""
        query = {"compartmentId": self.tenancy_id, "compartmentIdInSubtree": "true", "accessLevel": "ACCESSIBLE"}
        items = self._asked(lambda: self.client.get("identity", "/compartments", **query))
        active = [item for item in items if item.get("lifecycleState") == "ACTIVE"]
        named = sorted((Offer(str(item["id"]), str(item["name"])) for item in active), key=lambda offer: offer.label)
        return [*named, Offer(self.tenancy_id, "the root compartment")] if named else []

    def availability_domains(self, shape: str) -> list[Offer]:
        """Return the availability domains, those with most capacity for a shape first; labels tell the capacity, and
        what the service limit of the shape leaves.
        """
        domains = self._asked(
            lambda: self.client.get("identity", "/availabilityDomains", compartmentId=self.tenancy_id)
        )
        rated = [(self._capacity(str(domain["name"]), shape), str(domain["name"])) for domain in domains]
        rated.sort(key=lambda item: -item[0][0])
        return [Offer(name, label) for (_, label), name in rated]

    def shapes(self) -> list[Offer]:
        """Return the catalogue's shapes for which any availability domain has capacity now, those with most first."""
        names = catalogue.shape_names()
        domains = self._asked(
            lambda: self.client.get("identity", "/availabilityDomains", compartmentId=self.tenancy_id)
        )
        found: list[tuple[int, str, str]] = []
        for domain in (str(item["name"]) for item in domains):
            rows = {str(row.get("instanceShape")): row for row in self._report(domain, names)}
            found += [
                (int(row.get("availableCount") or 1), name, domain)
                for name, row in rows.items()
                if row.get("availabilityStatus") == "AVAILABLE"
            ]
        most: dict[str, Offer] = {}
        for count, name, domain in sorted(found, reverse=True):
            most.setdefault(name, Offer(name, f"{count} free in {domain}"))
        return list(most.values())

    def images(self, compartment_id: str, shape: str) -> list[Offer]:
        """Return the compartment's images from which instances of a shape can boot, the newest first."""
        query = {"compartmentId": compartment_id, "shape": shape, "sortBy": "TIMECREATED", "sortOrder": "DESC"}
        items = self._asked(lambda: self.client.get("compute", "/images", **query))
        available = [item for item in items if item.get("lifecycleState") == "AVAILABLE"]
        own = [item for item in available if item.get("compartmentId") == compartment_id]  # Oracle's have no GPU driver
        return [Offer(str(item["id"]), str(item["displayName"])) for item in own]

    def clusters(self, compartment_id: str) -> list[Offer]:
        """Return the active OKE clusters of a compartment."""
        items = self._asked(lambda: self.client.get("containerengine", "/clusters", compartmentId=compartment_id))
        active = [item for item in items if item.get("lifecycleState") == "ACTIVE"]
        return [Offer(str(item["id"]), f"{item['name']}, {item.get('kubernetesVersion')}") for item in active]

    def kubernetes_versions(self, compartment_id: str) -> list[Offer]:
        """Return the Kubernetes versions in which OKE creates clusters, the newest first."""

        def options() -> Sequence[Any]:
            answer = self.client.get("containerengine", "/clusterOptions/all", compartmentId=compartment_id)
            return answer.get("kubernetesVersions") or ()

        return [Offer(name) for name in sorted(map(str, self._asked(options)), key=_version, reverse=True)]

    def _capacity(self, domain: str, shape: str) -> tuple[int, str]:
        """Instances that a capacity report finds, for the order, and words for it with what the limit leaves."""
        words, reports = list(self._limit(domain, shape)), self._report(domain, [shape])
        if not reports:
            return 0, ", ".join([*words, "capacity unknown"])
        status, count = str(reports[0].get("availabilityStatus")), reports[0].get("availableCount")
        number = int(count) if count is not None else int(status == "AVAILABLE")
        found = f"{count} x {shape} free" if count is not None else f"{shape}: {status}"
        return number, ", ".join([found, *words])

    def _report(self, domain: str, shapes: Sequence[str]) -> list[Item]:
        """Rows of a capacity report on some shapes."""
        body = {
            "compartmentId": self.tenancy_id,
            "availabilityDomain": domain,
            "shapeAvailabilities": [{"instanceShape": shape} for shape in shapes],
        }
        asked = self._asked(lambda: [self.client.send("POST", "compute", "/computeCapacityReports", body)])
        return [row for answer in asked for row in answer.get("shapeAvailabilities") or ()]

    def _limit(self, domain: str, shape: str) -> Iterator[str]:
        known = catalogue.shape(shape)
        if known is None or known.limit is None:
            return
        path = f"/services/compute/limits/{known.limit}/resourceAvailability"
        query = {"compartmentId": self.tenancy_id, "availabilityDomain": domain}
        for answer in self._asked(lambda: [self.client.get("limits", path, **query)]):
            if answer.get("available") is not None:
                yield f"limit leaves {answer['available']:g} GPUs"

    def _asked(self, ask: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        if not self.answers:
            return []
        try:
            return ask()
        except OciError as error:
            self.refusals.append(error.message)
            self.answers = bool(error.status)
            return []


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.removeprefix("v").split(".") if part.isdecimal())
