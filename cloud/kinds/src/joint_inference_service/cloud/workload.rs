//! The cloud worker as Kubernetes objects: a Deployment of one Pod on its node, and a Service.

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{Container, HostPathVolumeSource, PodSpec, Volume, VolumeMount},
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube_core::ResourceExt as _;
use neptune_api::{JointInferenceService, WorkerSpec};
use neptune_wire::{ArtifactAddress, Role, Worker};

use crate::{
    joint_inference_service::resolved::{ResolvedWorker, SERVICE_PORT, ValidCloudWorker},
    kubernetes::{
        container::{container, variable},
        placement::on_node,
        pod_config::{pod_env_from, pod_variables},
        pod_probes::set_probes,
        pod_template::pod_template,
        pod_volumes::{pod_volume_mounts, pod_volumes},
        report_access::ReportAccess,
        report_sidecar,
        secrets::pull_secrets,
        workloads::{self, Fetch, Fetched, KubernetesObjects, fetched, read_only, rolling_update},
    },
    model::mirrors,
    worker::restart::{self, Restart},
};

/// The directory of the models in the container, with one subdirectory per model.
const MODELS: &str = "/models";

/// The Deployment and the Service of a cloud worker.
pub fn cloud_worker_objects(
    service: &JointInferenceService,
    spec: &WorkerSpec,
    cloud: &ValidCloudWorker,
    worker: &Worker,
    reports: Option<&ReportAccess>,
    fetch_image: &str,
) -> KubernetesObjects {
    let metadata = workloads::metadata(service, &worker.name, "cloud-worker");
    let mut template = pod_template(
        service,
        metadata.labels.clone(),
        pod(spec, cloud, worker, reports, fetch_image),
        spec.security_context.as_ref(),
    );
    let restart = Restart::requested(&service.metadata);
    let restarted_at = restart.as_ref().and_then(|it| it.on_node(&cloud.node, Role::Cloud));
    restart::annotate(&mut template, restarted_at);
    let deployment = Deployment {
        metadata: metadata.clone(),
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            selector: LabelSelector {
                match_labels: Some(workloads::selector(&worker.name)),
                ..LabelSelector::default()
            },
            // The node needs room for two Pods during an update.
            strategy: Some(rolling_update()),
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    let service = workloads::service(metadata, &worker.name, &[("http", SERVICE_PORT)], None);
    KubernetesObjects { deployment, service }
}

fn pod(
    spec: &WorkerSpec,
    cloud: &ValidCloudWorker,
    worker: &Worker,
    reports: Option<&ReportAccess>,
    fetch_image: &str,
) -> PodSpec {
    let Delivery { mut volumes, mount, fetch, model_url } = delivery(&cloud.worker, fetch_image);
    volumes.extend(pod_volumes(spec.into()));
    let mut mounts = vec![mount];
    mounts.extend(pod_volume_mounts(spec.into()));
    if let Some(scripts) = &worker.scripts {
        volumes.push(host_path("scripts", &scripts.dir));
        mounts.push(read_only("scripts", &scripts.dir));
    }
    let of_reports =
        reports.into_iter().flat_map(|it| report_sidecar::worker_variables(&worker.name, it));
    let sidecar = reports.map(|it| report_sidecar::container(&worker.name, it, fetch_image));
    // The sidecar needs no memory while the model is downloaded.
    let init_containers: Vec<_> = fetch.into_iter().chain(sidecar).collect();
    let mut container =
        Container { volume_mounts: Some(mounts), ..container("worker", &worker.program) };
    set_probes(&mut container, spec, SERVICE_PORT);
    container.env_from = pod_env_from(spec.into());
    let env = container.env.get_or_insert_default();
    env.extend(pod_variables(spec.into()));
    env.push(variable("MODEL_URL", &model_url));
    env.push(variable("NODE_NAME", cloud.node.as_str()));
    env.extend(of_reports);
    PodSpec {
        affinity: Some(on_node(cloud.node.as_str())),
        init_containers: Some(init_containers).filter(|all| !all.is_empty()),
        containers: vec![container],
        volumes: Some(volumes),
        termination_grace_period_seconds: worker.program.stop_grace_seconds.map(i64::from),
        // Workers do not use the API server.
        automount_service_account_token: Some(false),
        image_pull_secrets: pull_secrets(&spec.image_pull_secrets),
        ..PodSpec::default()
    }
}

/// The volumes, mount and init container that provide the model.
struct Delivery {
    volumes: Vec<Volume>,
    mount: VolumeMount,
    fetch: Option<Container>,
    model_url: String,
}

/// Mounts a file of the node from its path. An init container downloads and verifies any other
/// model in an `emptyDir` before the worker starts.
fn delivery(resolved: &ResolvedWorker, fetch_image: &str) -> Delivery {
    let directory = format!("{MODELS}/{}", resolved.model.name_any());
    let model_url = format!("{directory}/{}", resolved.source.file_name());
    let url = match &resolved.source {
        ArtifactAddress::Path(path) => {
            let volumes = vec![host_path("model", path)];
            let mount = read_only("model", &model_url);
            return Delivery { volumes, mount, fetch: None, model_url };
        }
        remote => remote.to_url(),
    };
    let spec = &resolved.model.spec;
    let Fetched { volume, mount, init } = fetched(Fetch {
        directory: &directory,
        url: &url,
        sha256: spec.sha256sum.as_deref(),
        mirrors: &mirrors::addresses(&spec.mirrors, &spec.files),
        output: &model_url,
        credentials: spec.credentials_secret.as_ref(),
        image: fetch_image,
    });
    Delivery { volumes: vec![volume], mount, fetch: Some(init), model_url }
}

fn host_path(name: &str, path: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        host_path: Some(HostPathVolumeSource { path: path.to_owned(), type_: None }),
        ..Volume::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{SecretReference, SecurityContext, WorkerParameter};

    use crate::{
        joint_inference_service::{
            cases::{planned, task},
            facts::ServiceFacts,
            fixtures,
        },
        kubernetes::{
            expansion::expanded,
            report_access::{POD_UID, ReportAccess},
        },
        worker::restart,
    };

    #[test]
    fn kubelet_runs_the_cloud_worker_as_an_owned_deployment() {
        let service = fixtures::service();
        let objects = planned(&service, &fixtures::facts()).objects.unwrap();
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        let address = serde_json::to_value(&objects.service).unwrap();
        for object in [&deployment, &address] {
            assert_eq!(object["metadata"]["name"], "helmet-detection-demo-work-1a02631a");
            let owner = &object["metadata"]["ownerReferences"][0];
            assert_eq!(
                (&owner["uid"], &owner["controller"]),
                (&"uid-of-the-service".into(), &true.into())
            );
        }
        let template = &deployment["spec"]["template"];
        let selector = &deployment["spec"]["selector"]["matchLabels"];
        for (label, value) in selector.as_object().unwrap() {
            assert_eq!(&template["metadata"]["labels"][label], value);
        }
        assert_eq!(&address["spec"]["selector"], selector);
        assert_eq!(address["spec"]["ports"][0]["port"], 5000);
        let pod = &template["spec"];
        assert!(pod["nodeName"].is_null(), "the scheduler places the Pod");
        let required = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        assert_eq!(
            pod.pointer(required).unwrap()["nodeSelectorTerms"],
            serde_json::json!([{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["solar-corona-cloud"]}]}])
        );
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(
            deployment["spec"]["strategy"],
            serde_json::json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
        );
        let worker = &pod["containers"][0];
        assert_eq!(
            worker["readinessProbe"],
            serde_json::json!({"tcpSocket": {"port": 5000}, "periodSeconds": 1}),
            "ready a second after it listens, however long it loads its model"
        );
        let env = |name: &str| {
            let variables = worker["env"].as_array().unwrap();
            variables.iter().find(|v| v["name"] == name).map(|v| v["value"].clone())
        };
        assert_eq!(env("MODEL_URL").unwrap(), "/models/big-model/big.pb");
        assert_eq!(env("BIG_MODEL_BIND_PORT").unwrap(), "5000");
        assert_eq!(env("NODE_NAME").unwrap(), "solar-corona-cloud");
        assert_eq!(env("HEM_NAME"), None);
        assert_eq!(worker["args"], serde_json::json!(["/code/cloud_inference.py"]));
        let fetch = &pod["initContainers"][0];
        assert_eq!(fetch["image"], "neptune-edge:test");
        assert_eq!(
            fetch["args"],
            serde_json::json!([
                "fetch",
                "--url",
                "https://models.test/big.pb?version=3",
                "--output",
                "/models/big-model/big.pb",
                "--give-up-after",
                "60",
                "--error-file",
                "/dev/termination-log"
            ])
        );
        assert!(mounts(worker).contains(&("/code", true)));
        assert!(mounts(worker).contains(&("/models/big-model", true)));
        assert_eq!(mounts(fetch), [("/models/big-model", false), ("/tmp", false)]);
        assert_eq!(worker["securityContext"]["readOnlyRootFilesystem"], true);
        assert!(pod["imagePullSecrets"].is_null() && fetch["env"].is_null());
    }

    fn pod_that_reports(model: &str) -> serde_json::Value {
        let service = "http://reports:8082/workers/default/helmet-detection-demo";
        let access = ReportAccess {
            url: format!("{service}/$({POD_UID})/token"),
            broker_password: "ab".repeat(32),
            prefix: "fleet/a".parse().unwrap(),
        };
        let facts = ServiceFacts {
            reports: Some(access),
            cloud_model: Some(fixtures::model("big-model", model)),
            ..fixtures::facts()
        };
        let objects = planned(&fixtures::service(), &facts).objects.unwrap();
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        deployment["spec"]["template"]["spec"].clone()
    }

    #[test]
    fn restart_of_the_cloud_worker_replaces_its_pods() {
        let mut service = fixtures::service();
        let mut restarted = |value: &str| {
            let annotation = (restart::RESTARTED_ANNOTATION.to_owned(), value.to_owned());
            service.metadata.annotations = Some([annotation].into());
            let plan = planned(&service, &fixtures::facts());
            let on_node = task(&plan, "edge0").workers.remove(0).restarted_at.is_some();
            let template = plan.objects.unwrap().deployment.spec.unwrap().template;
            let mut annotations = template.metadata.unwrap().annotations.unwrap();
            (annotations.remove(restart::RESTARTED_ANNOTATION), on_node)
        };
        let time = Some("2026-11-24T06:00:00.000Z".to_owned());
        let text = |more: &str| format!("2026-11-24T06:00:00Z{more}");
        assert_eq!(restarted(&text("")), (time.clone(), true));
        assert_eq!(restarted(&text(" worker=cloud")), (time.clone(), false));
        assert_eq!(restarted(&text(" worker=edge")), (None, true));
        assert_eq!(restarted(&text(" solar-corona-cloud")), (time, false));
        assert_eq!(restarted(&text(" edge0")), (None, true));
        assert_eq!(restarted("soon"), (None, false), "the webhook refuses it");
    }

    fn variable<'a>(container: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
        let mut env = container["env"].as_array().unwrap().iter();
        env.find(|variable| variable["name"] == name)
            .map_or(&serde_json::Value::Null, |v| &v["value"])
    }

    #[test]
    fn worker_in_a_pod_has_the_variables_of_an_agents_worker() {
        let pod = pod_that_reports("https://models.test/big.pb");
        let (worker, sidecar) = (&pod["containers"][0], &pod["initContainers"][1]);
        let name = "helmet-detection-demo-work-1a02631a";
        let topic = format!("fleet/a/workers/{name}/info");
        assert_eq!(variable(worker, "WORKER_INFO_TOPIC"), &topic);
        let password = variable(sidecar, "NEPTUNE_WORKER_PASSWORD").as_str().unwrap();
        assert_eq!(password.len(), 64);
        let url = format!("mqtt://{name}:{password}@127.0.0.1:1884");
        assert_eq!(variable(worker, "MQTT_URL"), &url);
        assert_eq!(variable(sidecar, "NEPTUNE_LISTEN"), "127.0.0.1:1884");
        assert_eq!(variable(sidecar, "NEPTUNE_WORKER_NAME"), name);
        assert_eq!(variable(sidecar, "NEPTUNE_TOPIC_PREFIX"), "fleet/a");
        let report_url = variable(worker, "WORKER_REPORT_URL");
        assert!(report_url.as_str().unwrap().contains("/$(WORKER_POD_UID)/"), "{report_url}");
        assert!(!report_url.as_str().unwrap().contains(password), "another secret");
        assert_eq!(variable(sidecar, "NEPTUNE_REPORT_URL"), report_url);
        for container in [worker, sidecar] {
            let env = container["env"].as_array().unwrap();
            let place = |name: &str| env.iter().position(|variable| variable["name"] == name);
            let url = place("WORKER_REPORT_URL").or(place("NEPTUNE_REPORT_URL"));
            assert!(place("WORKER_POD_UID") < url, "the kubelet replaces earlier variables only");
        }
        let plain = planned(&fixtures::service(), &fixtures::facts()).objects.unwrap();
        let plain = serde_json::to_value(&plain.deployment).unwrap();
        let plain = &plain["spec"]["template"]["spec"];
        assert_eq!(variable(&plain["containers"][0], "MQTT_URL"), &serde_json::Value::Null);
        assert_eq!(plain["initContainers"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn parameters_arrive_on_a_node_and_in_a_pod_as_they_are() {
        let text = "a$$b $(NAMESPACE)";
        let mut service = fixtures::service();
        for worker in [
            service.spec.edge_worker.worker_spec.as_mut().unwrap(),
            service.spec.cloud_worker.worker_spec.as_mut().unwrap(),
        ] {
            worker.parameters = vec![WorkerParameter::new("text", text)];
            worker.script_boot_file = "$$(A).py".to_owned();
        }
        let plan = planned(&service, &fixtures::facts());
        let on_node = task(&plan, "edge0").workers.remove(0);
        assert_eq!(
            (&*on_node.program.env["TEXT"], &*on_node.program.args[0]),
            (text, "/code/$$(A).py")
        );
        let pod = plan.objects.unwrap().deployment.spec.unwrap().template.spec.unwrap();
        let (_, args, env) = expanded(&pod.containers[0]);
        assert_eq!((&*env["TEXT"], &*args[0]), (text, "/code/$$(A).py"));
    }

    #[test]
    fn sidecar_is_restricted_and_runs_before_and_after_the_worker() {
        let pod = pod_that_reports("https://models.test/big.pb");
        let inits = pod["initContainers"].as_array().unwrap();
        let names: Vec<_> = inits.iter().map(|init| init["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["fetch-model", "report-sidecar"]);
        let (fetch, sidecar) = (&inits[0], &inits[1]);
        assert_eq!(sidecar["restartPolicy"], "Always", "a native sidecar");
        assert_eq!(sidecar["image"], fetch["image"]);
        assert_eq!(sidecar["securityContext"], fetch["securityContext"]);
        let command = sidecar["startupProbe"]["exec"]["command"].as_array().unwrap();
        assert_eq!(command, &["neptune-edge", "sidecar", "--check"]);
        assert_eq!(sidecar["resources"]["limits"], serde_json::json!({"memory": "64Mi"}));
        assert!(sidecar["readinessProbe"].is_null(), "the controller's outage stops no worker");
        let pod = pod_that_reports("/code/big.pb");
        assert_eq!(pod["initContainers"].as_array().unwrap().len(), 1, "no download");
    }

    #[test]
    fn secrets_and_security_context_reach_the_pod() {
        let mut service = fixtures::service();
        let worker = service.spec.cloud_worker.worker_spec.as_mut().unwrap();
        worker.image_pull_secrets = vec![SecretReference { name: "regcred".to_owned() }];
        worker.security_context =
            Some(SecurityContext { run_as_user: Some(1000), ..SecurityContext::default() });
        let mut model = fixtures::model("big-model", "s3://bucket/big.pb");
        std::sync::Arc::make_mut(&mut model).spec.credentials_secret =
            Some(SecretReference { name: "s3".to_owned() });
        let facts = ServiceFacts { cloud_model: Some(model), ..fixtures::facts() };
        let objects = planned(&service, &facts).objects.unwrap();
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["imagePullSecrets"], serde_json::json!([{"name": "regcred"}]));
        assert_eq!(pod["securityContext"]["runAsUser"], 1000);
        let env = pod["initContainers"][0]["env"].as_array().unwrap();
        assert_eq!(
            env[0],
            serde_json::json!({"name": "AWS_ACCESS_KEY_ID",
        "valueFrom": {"secretKeyRef": {"name": "s3", "key": "AWS_ACCESS_KEY_ID"}}})
        );
        assert_eq!(env[2]["valueFrom"]["secretKeyRef"]["optional"], true);
        assert!(
            pod["containers"][0]["env"]
                .as_array()
                .unwrap()
                .iter()
                .all(|v| v["valueFrom"].is_null())
        );
    }

    #[test]
    fn pod_fetches_a_model_from_s3() {
        let facts = ServiceFacts {
            cloud_model: Some(fixtures::model("big-model", "s3://bucket/dir/big.pb")),
            ..fixtures::facts()
        };
        let objects = planned(&fixtures::service(), &facts).objects.unwrap();
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        let fetch = &deployment["spec"]["template"]["spec"]["initContainers"][0];
        let url = "s3://bucket/dir/big.pb";
        assert_eq!(fetch["args"].as_array().unwrap()[..3], ["fetch", "--url", url]);
    }

    fn mounts(container: &serde_json::Value) -> Vec<(&str, bool)> {
        let mounts = container["volumeMounts"].as_array().unwrap();
        mounts
            .iter()
            .map(|m| (m["mountPath"].as_str().unwrap(), m["readOnly"].as_bool().unwrap_or(false)))
            .collect()
    }

    #[test]
    fn model_on_the_node_is_mounted_from_its_path() {
        let facts = ServiceFacts {
            cloud_model: Some(fixtures::model("big-model", "file:///code/big.pb")),
            ..fixtures::facts()
        };
        let objects = planned(&fixtures::service(), &facts).objects.unwrap();
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        let pod = &deployment["spec"]["template"]["spec"];
        assert!(pod["initContainers"].is_null());
        assert_eq!(pod["volumes"][0]["hostPath"]["path"], "/code/big.pb");
        assert!(mounts(&pod["containers"][0]).contains(&("/models/big-model/big.pb", true)));
    }
}
