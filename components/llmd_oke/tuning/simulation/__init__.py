"""Event simulation of deployments: requests, routers, vLLM servers and KV transfers, one by one, in seconds.

`simulate` is all that others need, with a `deployment`, a workload of `RequestClass`es and one of the arrivals.
"""

from llmd_oke.tuning.simulation.arrivals import ClosedLoop as ClosedLoop
from llmd_oke.tuning.simulation.arrivals import ConstantRate as ConstantRate
from llmd_oke.tuning.simulation.arrivals import PoissonRate as PoissonRate
from llmd_oke.tuning.simulation.arrivals import RecordedTimes as RecordedTimes
from llmd_oke.tuning.simulation.arrivals import RequestClass as RequestClass
from llmd_oke.tuning.simulation.deployment import Deployment as Deployment
from llmd_oke.tuning.simulation.deployment import Policy as Policy
from llmd_oke.tuning.simulation.deployment import ServerLimits as ServerLimits
from llmd_oke.tuning.simulation.deployment import deployment as deployment
from llmd_oke.tuning.simulation.result import SimulationResult as SimulationResult
from llmd_oke.tuning.simulation.simulation import simulate as simulate
