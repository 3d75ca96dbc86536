"""What OCI refuses, and the words in which terraform-provider-oci passes that on."""

import secrets
from dataclasses import dataclass
from typing import Final

from llmd_oke.rehearsal.oci_plugin.schemas import Resource
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal

PROVIDER_VERSION: Final = "8.23.0"
"""Of terraform-provider-oci inside pulumi-oci 4.20.0."""
_VERBS: Final = {"create": "POST", "update": "PUT", "delete": "DELETE", "read": "GET"}
_SUGGESTIONS: Final = {
    "LimitExceeded": "Request a service limit increase for this resource {service}",
    "TooManyRequests": "Please retry the request after some time, or reduce the number of requests for {service}",
    "InternalError": "The service for this resource encountered an error. "
    "Please contact support for help with service: {service}",
    "InvalidParameter": "Please update the parameter(s) in the Terraform config as per error message",
    "NotAuthorizedOrNotFound": "Either the resource has been deleted or service {service} need policy to access this "
    "resource. Policy reference: https://docs.oracle.com/en-us/iaas/Content/Identity/Reference/policyreference.htm",
}
_OTHER_SUGGESTION: Final = "Please retry or contact support for help with service: {service}"


UNANSWERED: Final = "net/http: request canceled"
"""How the provider's words for a request without an answer begin."""


class ServiceError(Exception):
    """A request that an OCI service refused: HTTP status, code and message as the service gives them."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status}-{code}, {message}")
        self.status = status
        self.code = code
        self.message = message


class WorkRequestFailed(Exception):
    """Work that OCI accepted and did not get done: what was made of it so far is there."""


class NeverJoined(WorkRequestFailed):
    """Machines run and are no nodes of the cluster."""


class WaitEnded(WorkRequestFailed):
    """Work that nobody waits for any longer, because it took too long or the engine was told to stop."""


def invalid(message: str) -> ServiceError:
    """A parameter that OCI doesn't take."""
    return ServiceError(400, "InvalidParameter", message)


def limit_exceeded(name: str) -> ServiceError:
    """No more of it is allowed."""
    advice = "Request a service limit increase from the service limits page in the console."
    return ServiceError(400, "LimitExceeded", f"The following service limits were exceeded: {name}. {advice}")


def not_found(id_: str) -> ServiceError:
    """No such thing, or none that one may see."""
    return ServiceError(404, "NotAuthorizedOrNotFound", f"Authorization failed or requested resource not found: {id_}")


class UnansweredError(Exception):
    """A request to which no answer came."""


def out_of_host_capacity() -> ServiceError:
    """No machine of the shape is free."""
    return ServiceError(500, "InternalError", "Out of host capacity.")


@dataclass(frozen=True)
class Call:
    """The request that failed; `operation` is `create`, `update`, `delete` or `read`."""

    resource: Resource
    operation: str
    region: str

    @property
    def service(self) -> str:
        """For example `Core Vcn`, as the provider writes it."""
        return f"{_spaced(self.resource.service)} {_spaced(self.resource.name)}"

    def refusal(self, error: ServiceError) -> Refusal:
        """The refusal as the provider tells it."""
        advice = _SUGGESTIONS.get(error.code, _OTHER_SUGGESTION).format(service=self.service)
        name = self.resource.name
        host = f"{self.resource.service}.{name}.{self.region}.oraclecloud.com".lower()
        return Refusal(
            f"{error}\n"
            f"Suggestion: {advice}\n"
            f"Documentation: {self._documentation()} \n"
            f"Request Target: {_VERBS[self.operation]} https://{host} \n"
            f"Provider version: {PROVIDER_VERSION} \n"
            f"Service: {self.service} \n"
            f"Operation Name: {self._operation_name()} \n"
            f"OPC request ID: {request_id()} \n"
        )

    def unanswered(self) -> Refusal:
        """What the provider tells of a request without an answer (net/http, Client.Timeout)."""
        host = f"{self.resource.service}.{self.resource.name}.{self.region}.oraclecloud.com".lower()
        verb = _VERBS[self.operation].title()
        lost = f"{UNANSWERED} (Client.Timeout exceeded while awaiting headers)"
        return Refusal(f'can not {self.operation} {self.service}: {verb} "https://{host}": {lost}')

    def failed_work(self, message: str) -> str:
        """What the provider tells of work that failed after OCI had accepted it."""
        done = {"create": "CREATED", "update": "UPDATED", "delete": "DELETED"}[self.operation]
        entity = self.resource.name.lower()
        work = f"workId: ocid1.clustersworkrequest.oc1..{secrets.token_hex(16)}"
        return (
            "Work Request error \n"
            f"Provider version: {PROVIDER_VERSION} \n"
            f"Service: {self.service} \n"
            f"Error Message: work request did not succeed, {work}, entity: {entity}, action: {done}. "
            f"Message: {message} \n"
            f"Suggestion: {_OTHER_SUGGESTION.format(service=self.service)}\n"
        )

    def _documentation(self) -> str:
        name = f"{self.resource.service.lower()}{''.join(f'_{word.lower()}' for word in _words(self.resource.name))}"
        return f"https://registry.terraform.io/providers/oracle/oci/latest/docs/resources/{name}"

    def _operation_name(self) -> str:
        name = self.resource.name
        if name == "Instance" and self.operation != "update":
            return {"create": "LaunchInstance", "delete": "TerminateInstance"}.get(self.operation, "GetInstance")
        return f"{self.operation.replace('read', 'get').title()}{name}"


def request_id() -> str:
    """An id as OCI gives to every request."""
    return "/".join(secrets.token_hex(16).upper() for _ in range(3))


def _words(name: str) -> list[str]:
    return _spaced(name).split()


def _spaced(name: str) -> str:
    return "".join(f" {letter}" if letter.isupper() else letter for letter in name).strip()
