// Serves one more model on the cluster of another stack, of which it knows what that stack exports (StackReference).
import * as k8s from "@pulumi/kubernetes";
import * as llmd from "@pulumi/llmd-oke";
import * as pulumi from "@pulumi/pulumi";

const name = "llama";

const config = new pulumi.Config("second-model");
const sameName = `${pulumi.getOrganization()}/serving/${pulumi.getStack()}`;
const serving = new pulumi.StackReference(config.get("servingStack") ?? sameName);
const namespace = serving.requireOutput("namespace");

const cluster = new k8s.Provider("cluster", {
    clusterIdentifier: serving.requireOutput("cluster_id"),
    kubeconfig: serving.getOutput("kubeconfig"),
    enablePatchForce: true,
});
const inside = { providers: { kubernetes: cluster } };

new llmd.AggregatedUnit(
    name,
    {
        release: "llm-d-0.9.0",
        model: "llama-3.3-70b-instruct-fp8-dynamic",
        shape: "BM.GPU.MI300X.8",
        namespace,
        serviceAccount: serving.requireOutput("service_account"),
        rdma: false,
        servers: { replicas: 1, tensorParallelSize: 1 },
    },
    inside,
);
const endpoint = new llmd.ModelEndpoint(`${name}-endpoint`, { namespace, model: name, readyTimeoutS: 2400 }, inside);
export const url = endpoint.url;
