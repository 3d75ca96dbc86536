// Serves gpt-oss-120b from a cluster of this project's own, with components of llmd-oke and nothing else of it.
import * as k8s from "@pulumi/kubernetes";
import * as llmd from "@pulumi/llmd-oke";
import * as pulumi from "@pulumi/pulumi";

const config = new pulumi.Config("chat");
const cluster = new k8s.Provider("cluster", { clusterIdentifier: "chat", enablePatchForce: true });
const inside = { providers: { kubernetes: cluster } };

const namespace = new llmd.ServingNamespace("chat", { namespace: "chat", tensorParallelSizes: [1] }, inside);
const afterNamespace = { ...inside, dependsOn: [namespace] };

new llmd.AggregatedUnit(
    "gpt-oss-120b",
    {
        release: "llm-d-0.9.0",
        model: "gpt-oss-120b",
        shape: "BM.GPU.MI300X.8",
        namespace: namespace.name,
        serviceAccount: namespace.serviceAccount,
        rdma: false,
        servers: { replicas: config.getNumber("replicas") ?? 2, tensorParallelSize: 1 },
    },
    afterNamespace,
);
const endpoint = new llmd.ModelEndpoint(
    "gpt-oss-120b-endpoint",
    { namespace: "chat", model: "gpt-oss-120b", readyTimeoutS: 2400 },
    afterNamespace,
);

// A resource of this project's own, beside those of the kit.
new k8s.core.v1.ConfigMap(
    "address",
    { metadata: { name: "address", namespace: "chat" }, data: { url: endpoint.url } },
    { provider: cluster, dependsOn: [namespace] },
);
export const url = endpoint.url;
