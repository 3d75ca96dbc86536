// Serves gpt-oss-120b with prefill and decode servers on an OKE cluster that is there, and tells other stacks where.
import * as k8s from "@pulumi/kubernetes";
import * as llmd from "@pulumi/llmd-oke";
import * as pulumi from "@pulumi/pulumi";

const release = "llm-d-0.9.0";
const model = "gpt-oss-120b";

// What is exported here, a stack with further models needs (examples/second-model), in whatever language.
const config = new pulumi.Config("serving");
export const cluster_id = config.require("clusterId");
export const kubeconfig = config.getSecret("kubeconfig"); // without it Pulumi takes that of KUBECONFIG
const cidr = config.get("controlPlaneCidr"); // addresses of the API server
const controlPlaneCidrs = cidr === undefined ? undefined : [cidr];
const router = new pulumi.Config("llmd-oke").get("rehearsedRouter"); // in rehearsals that can't have the release's router

const access = { clusterIdentifier: cluster_id, kubeconfig, enablePatchForce: true };
const cluster = new k8s.Provider("cluster", access);
// The definition of InferencePools may be in the cluster already; it stays there in the end.
const definitions = new k8s.Provider("definitions", { ...access, upsertExistingObjects: true });
const inside = { providers: { kubernetes: cluster } };

const crds = new llmd.Crds("crds", { release }, { providers: { kubernetes: definitions } });
const servingNamespace = new llmd.ServingNamespace(
    "serving",
    { namespace: "llm-d", tensorParallelSizes: [1], controlPlaneCidrs },
    inside,
);
export const namespace = servingNamespace.name;
export const service_account = servingNamespace.serviceAccount;

const serving = { release, override: { router }, controlPlaneCidrs, namespace, model };
const servers = new llmd.PrefillDecodeUnit(
    model,
    {
        ...serving,
        shape: "BM.GPU.MI300X.8",
        serviceAccount: service_account,
        rdma: false, // KV cache goes through host memory, as on a cluster without virtual functions
        inferencePool: model,
        routed: true,
        prefill: { replicas: 4, tensorParallelSize: 1 },
        decode: { replicas: 3, tensorParallelSize: 1 },
    },
    { ...inside, dependsOn: [servingNamespace] },
);
const picker = new llmd.Router(
    `${model}-router`,
    { ...serving, unit: model, disaggregated: true },
    { ...inside, dependsOn: [servingNamespace, crds] },
);
const frontDoor = new llmd.FrontDoor(
    `${model}-front-door`,
    { release, namespace, model, routers: [`${model}-epp`] },
    { ...inside, dependsOn: [servers, picker] },
);

export const url = frontDoor.url;
