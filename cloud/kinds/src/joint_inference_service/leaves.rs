//! Tests that each field of the spec has an effect.

use std::sync::Arc;

use neptune_api::{
    ConfigMapVolumeSource, ConfigReference, EmptyDirSource, EnvFromSource, ExecAction,
    GatewayClient, GatewayTls, Goal, HostPathSource, HttpGetAction, JointInferenceService,
    KeyValue, ModelReference, PersistentVolumeClaimSource, Probe, SecretVolumeSource,
    TcpSocketAction, Transformer, ValueSource, VariableSource, Volume, VolumeMedium, VolumeMount,
    WorkerParameter, WorkerVariable,
};
use neptune_gateway_config::Uploads;
use neptune_wire::{AgentFeature, NodeName};

use crate::{
    joint_inference_service::{facts::ServiceFacts, fixtures, plan::plan, validate::validate},
    kubernetes::pod_policy::PodPolicy,
    leaves::{Outcome, OutcomeOf, assert_each_has_an_effect, assert_labels_have_no_effect},
    nodes::offer::AgentOffer,
    worker::config::fixtures as config,
};

/// The status lists the named node: then it gets the edge worker.
fn outcome(service: &JointInferenceService, facts: &ServiceFacts) -> Outcome {
    let mut service = service.clone();
    let named = service.spec.edge_worker.node_name.clone();
    service.status.get_or_insert_default().nodes.extend(named);
    let service = &service;
    match validate(service, facts) {
        Ok(valid) => Ok(format!("{:?}", plan(service, &valid, "fetch:test"))),
        Err(findings) => Err(format!("{findings:?}")),
    }
}

/// Leaves that no plan shows, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("cloudWorker.inferenceModel.name", "the InferenceModel is looked up in the cluster"),
    ("cloudWorker.server.frameworkType", "another one does not serve the model of the sample"),
    ("cloudWorker.server.transformer.", "as that of the edge worker, with which samples have it"),
    ("cloudWorker.service.", "the service is looked up in the cluster"),
    ("cloudWorker.workerSpec.env.[].valueFrom.", "values per node are refused there"),
    ("cloudWorker.workerSpec.parameters.[].valueFrom.", "values per node are refused there"),
    ("edgeWorker.dataset.name", "the Dataset is looked up in the cluster"),
    ("edgeWorker.hardExampleAlgorithm.goal.totalUploadRatio", "the sample is not in a chain"),
    ("edgeWorker.inferenceModel.name", "the InferenceModel is looked up in the cluster"),
    ("edgeWorker.model.", "Models are selected from the cluster"),
    ("edgeWorker.nodeSelector.{}", "the nodes are looked up in the cluster"),
    ("edgeWorker.workerSpec.volumes.[].emptyDir.medium", "without it sizeLimit is refused"),
    ("edgeWorker.workerSpec.volumes.[].name", "a mount names it"),
    ("edgeWorker.workerSpec.volumes.[].persistentVolumeClaim.", "only Pods have claims"),
    ("cloudWorker.server.env.[].valueFrom.nodeLabel", "only workers get values of labels"),
    ("cloudWorker.server.env.[].valueFrom.optional", "it belongs to nodeLabel"),
    ("cloudWorker.server.volumes.[].name", "a mount names it"),
    ("edgeWorker.server.env.[].valueFrom.nodeLabel", "only workers get values of labels"),
    ("edgeWorker.server.env.[].valueFrom.optional", "it belongs to nodeLabel"),
    ("edgeWorker.server.volumes.[].emptyDir.medium", "without it sizeLimit is refused"),
    ("edgeWorker.server.volumes.[].name", "a mount names it"),
    ("edgeWorker.server.volumes.[].persistentVolumeClaim.", "only Pods have claims"),
    ("rollout.", "the steps of a rollout read its settings"),
    ("edgeWorker.silentAfterSeconds", "the status reads it"),
];

/// The gateway may write captured samples to a Dataset.
fn assistant_facts() -> ServiceFacts {
    let mut facts = fixtures::assistant_facts();
    facts.gateway.capture_dataset = Some(fixtures::captured_dataset("hard"));
    facts
}

/// The gateway has clients and a certificate.
fn assistant_with_clients() -> JointInferenceService {
    let mut service = fixtures::assistant();
    let client = |name: &str, digit: &str| GatewayClient {
        name: name.to_owned(),
        key_sha256: vec![digit.repeat(64)],
        requests_per_minute: Some(600),
        uploads: Some(Uploads::Never),
        models: vec!["smollm2".to_owned()],
    };
    let gateway = service.spec.gateway.get_or_insert_default();
    gateway.clients = vec![client("hall", "0"), client("line", "1")];
    gateway.tls = Some(GatewayTls { cert_file: "web.crt".into(), key_file: "web.key".into() });
    service
}

fn assistant_with_transformer() -> JointInferenceService {
    let mut service = fixtures::assistant();
    let server = service.spec.edge_worker.server.as_mut().expect("the sample has a server");
    let transformer = Transformer { image: Some("resize:1".to_owned()), ..Transformer::default() };
    server.transformer = Some(Box::new(transformer));
    service
}

fn assistant_with_a_script_as_transformer() -> JointInferenceService {
    let mut service = assistant_with_transformer();
    let server = service.spec.edge_worker.server.as_mut().expect("the sample has a server");
    let transformer = Transformer {
        script_dir: Some("/code".to_owned()),
        script_boot_file: Some("resize.py".to_owned()),
        framework_type: Some("python".to_owned()),
        framework_version: Some("3.12".to_owned()),
        ..Transformer::default()
    };
    server.transformer = Some(Box::new(transformer));
    service
}

fn assistant_with_a_server_in_the_cloud() -> (JointInferenceService, ServiceFacts) {
    let mut service = fixtures::assistant();
    let cloud = &mut service.spec.cloud_worker;
    cloud.endpoint = None;
    cloud.server = service.spec.edge_worker.server.clone();
    cloud.model = Some(ModelReference { name: "smollm2".to_owned() });
    let cloud_model = Some(fixtures::model("smollm2", "https://models.test/smollm2.gguf"));
    (service, ServiceFacts { cloud_model, ..assistant_facts() })
}

fn assistant_with_a_goal_of_agreement() -> (JointInferenceService, ServiceFacts) {
    let mut service = fixtures::assistant();
    let algorithm = &mut service.spec.edge_worker.hard_example_algorithm;
    algorithm.parameters.push(KeyValue::new("labels", "yes,no"));
    algorithm.goal = Some(Box::new(Goal { agreement: Some("0.9".to_owned()), ..Goal::default() }));
    (service, assistant_facts())
}

/// Workers whose program is in their image, with this volume, which the edge worker mounts,
/// and another one.
fn service_with_volume(source: Volume) -> (JointInferenceService, ServiceFacts) {
    let mut service = fixtures::service();
    let volume = Volume { name: "one".to_owned(), ..source };
    let edge = service.spec.edge_worker.worker_spec.as_mut();
    let cloud = service.spec.cloud_worker.worker_spec.as_mut();
    for worker in [edge, cloud].into_iter().flatten() {
        worker.framework_type = "container".to_owned();
        worker.image = Some("digits:1".to_owned());
        let other = Volume {
            name: "two".to_owned(),
            empty_dir: Some(EmptyDirSource::default()),
            ..Volume::default()
        };
        worker.volumes = vec![volume.clone(), other];
    }
    let mount_path = "/state".to_owned();
    let mount = VolumeMount { name: "one".to_owned(), mount_path, read_only: false };
    service
        .spec
        .edge_worker
        .worker_spec
        .iter_mut()
        .for_each(|it| it.volume_mounts.push(mount.clone()));
    (service, ServiceFacts { pod_policy: any_path(), ..facts_with_config() })
}

/// The agent supports volumes and Secrets, and the Secrets and `ConfigMap`s `one` and `two` exist.
fn facts_with_config() -> ServiceFacts {
    let node: NodeName = "edge0".parse().expect("a name");
    ServiceFacts {
        offers: config::offers(&node),
        seal_keys: config::seal_keys(&node),
        config: config::objects(),
        ..fixtures::facts()
    }
}

/// The edge worker and the cloud worker have the keys of a Secret as variables.
fn service_with_variables() -> (JointInferenceService, ServiceFacts) {
    let mut service = fixtures::service();
    let edge = service.spec.edge_worker.worker_spec.as_mut();
    let cloud = service.spec.cloud_worker.worker_spec.as_mut();
    for worker in [edge, cloud].into_iter().flatten() {
        let secret_ref = Some(ConfigReference { name: "one".to_owned(), optional: false });
        worker.env_from = vec![EnvFromSource { secret_ref, ..EnvFromSource::default() }];
    }
    (service, facts_with_config())
}

/// A service whose edge and cloud model servers have variables, and this volume.
fn assistant_with_inputs(source: &Volume) -> (JointInferenceService, ServiceFacts) {
    let (mut service, facts) = assistant_with_a_server_in_the_cloud();
    let edge = service.spec.edge_worker.server.as_mut();
    let cloud = service.spec.cloud_worker.server.as_mut();
    for server in [edge, cloud].into_iter().flatten() {
        let secret_ref = Some(ConfigReference { name: "one".to_owned(), optional: false });
        server.env_from = vec![EnvFromSource { secret_ref, ..EnvFromSource::default() }];
        let other = Volume {
            name: "two".to_owned(),
            empty_dir: Some(EmptyDirSource::default()),
            ..Volume::default()
        };
        server.volumes = vec![Volume { name: "one".to_owned(), ..source.clone() }, other];
        let mount_path = "/state".to_owned();
        // Pods mount paths of the node read-only.
        let read_only = source.host_path.is_some();
        server.volume_mounts = vec![VolumeMount { name: "one".to_owned(), mount_path, read_only }];
    }
    (service, ServiceFacts { pod_policy: any_path(), ..facts })
}

fn any_path() -> PodPolicy {
    PodPolicy { host_paths: vec!["/".into()], ..PodPolicy::default() }
}

/// One volume of each source that both sides have.
fn volumes() -> [Volume; 5] {
    let memory =
        EmptyDirSource { medium: Some(VolumeMedium::Memory), size_limit: Some("1Gi".into()) };
    let path = HostPathSource { path: "/srv".to_owned(), type_: None };
    [
        Volume { empty_dir: Some(EmptyDirSource::default()), ..Volume::default() },
        Volume { empty_dir: Some(memory), ..Volume::default() },
        Volume { host_path: Some(path), ..Volume::default() },
        Volume {
            secret: Some(SecretVolumeSource {
                secret_name: "one".to_owned(),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        },
        Volume {
            config_map: Some(ConfigMapVolumeSource {
                name: "one".to_owned(),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
    ]
}

/// Workers with three probes, of which this is one action.
fn service_with_probes(action: &Probe) -> (JointInferenceService, ServiceFacts) {
    let mut service = fixtures::service();
    let edge = service.spec.edge_worker.worker_spec.as_mut();
    let cloud = service.spec.cloud_worker.worker_spec.as_mut();
    for worker in [edge, cloud].into_iter().flatten() {
        let probe = || Some(Box::new(action.clone()));
        worker.startup_probe = probe();
        worker.liveness_probe = probe();
        worker.readiness_probe = probe();
    }
    let supports = [AgentFeature::Probes].into();
    let offer = Arc::new(AgentOffer { supports, ..AgentOffer::default() });
    let offers = [("edge0".parse().expect("a name"), offer)].into();
    (service, ServiceFacts { offers, ..fixtures::facts() })
}

/// One probe of each action.
fn probes() -> [Probe; 3] {
    let command = vec!["true".to_owned()];
    let (path, port) = (Some("/ready".to_owned()), 8000);
    [
        Probe { exec: Some(ExecAction { command }), ..Probe::default() },
        Probe { http_get: Some(HttpGetAction { path, port, scheme: None }), ..Probe::default() },
        Probe { tcp_socket: Some(TcpSocketAction { port }), ..Probe::default() },
    ]
}

/// A claim, which only Pods have.
fn service_with_a_claim() -> (JointInferenceService, ServiceFacts) {
    let (mut service, facts) = service_with_volume(Volume::default());
    if let Some(edge) = &mut service.spec.edge_worker.worker_spec {
        (edge.volumes, edge.volume_mounts) = (Vec::new(), Vec::new());
    }
    let cloud = service.spec.cloud_worker.worker_spec.as_mut().expect("the sample has a worker");
    cloud.volumes[0].persistent_volume_claim = Some(PersistentVolumeClaimSource::default());
    let mount_path = "/claim".to_owned();
    cloud.volume_mounts =
        vec![VolumeMount { name: "one".to_owned(), mount_path, read_only: false }];
    (service, facts)
}

/// A worker with a parameter from a label that its node has or lacks.
fn service_with_a_value_per_node(labels: &[(&str, &str)]) -> (JointInferenceService, ServiceFacts) {
    let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
    let program = service.spec.edge_worker.worker_spec.as_mut().expect("the sample has a worker");
    let source = ValueSource { node_label: "line".to_owned(), optional: false };
    program.parameters =
        vec![WorkerParameter { key: "line".to_owned(), value: None, value_from: Some(source) }];
    program.env = vec![WorkerVariable {
        name: "ALSO".to_owned(),
        value_from: Some(VariableSource::node_label("line", false)),
        ..WorkerVariable::default()
    }];
    let edge = [("node-role.kubernetes.io/edge", "")];
    facts.edge_node = Some(fixtures::node("edge0", &[&edge, labels].concat()));
    (service, facts)
}

fn samples() -> Vec<(JointInferenceService, ServiceFacts)> {
    let with_volumes = volumes().map(service_with_volume);
    let mut samples = vec![
        (fixtures::service(), fixtures::facts()),
        (fixtures::service(), fixtures::facts_with_agent()),
        (fixtures::assistant(), assistant_facts()),
        (assistant_with_clients(), assistant_facts()),
        (assistant_with_transformer(), assistant_facts()),
        (assistant_with_a_script_as_transformer(), assistant_facts()),
        assistant_with_a_server_in_the_cloud(),
        assistant_with_a_goal_of_agreement(),
        fixtures::classifier(),
        service_with_a_value_per_node(&[("line", "7")]),
        service_with_a_value_per_node(&[]),
        service_with_a_claim(),
        (fixtures::service(), facts_with_config()),
        service_with_variables(),
    ];
    samples.extend(with_volumes);
    samples.extend(volumes().iter().map(assistant_with_inputs));
    samples.extend(probes().iter().map(service_with_probes));
    samples
}

/// Passes the samples with their steps to a check.
fn check(check: impl FnOnce(&[(JointInferenceService, OutcomeOf<'_, JointInferenceService>)])) {
    let samples = samples();
    let steps: Vec<_> =
        samples.iter().map(|(_, facts)| move |service: &_| outcome(service, facts)).collect();
    let samples: Vec<_> =
        samples.iter().zip(&steps).map(|((it, _), steps)| (it.clone(), steps as _)).collect();
    check(&samples);
}

#[test]
fn each_field_has_an_effect() {
    check(|samples| assert_each_has_an_effect(samples, EXCEPTIONS));
}

#[test]
fn labels_and_annotations_are_in_no_plan_of_a_service() {
    check(assert_labels_have_no_effect);
}
