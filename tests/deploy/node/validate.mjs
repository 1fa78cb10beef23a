// node validate.mjs FILE: a list of resources in JSON; what their schemas say against them, a line each.
import { readFileSync } from "node:fs";
import { HTTPRoute } from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute";
import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor";

const kinds = { HTTPRoute, PodMonitor };
for (const resource of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  const { apiVersion, kind, ...rest } = resource;
  try {
    if (kinds[kind].apiVersion !== apiVersion) throw new Error(`${apiVersion} is not ${kinds[kind].apiVersion}`);
    new kinds[kind](rest).validate();
  } catch (error) {
    console.log(`${kind}: ${error.message}`);
  }
}
