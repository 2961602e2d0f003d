//! Decides whether a worker's model, dataset and files are on the node, and its container spec: image,
//! environment, mounts, and the hash by which a running container is recognized as the wanted one. The
//! engine crate builds the Docker request.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use neptune_wire::{ContentHash, ObjectKey, Topic, WorkerName, WorkerReason, WorkerUpdateMode};

use crate::{
    desired::{Desired, WantedWorker},
    domain::{
        artifact::{Availability, LocalArtifact},
        container::{
            BindMount, ContainerSpec, InitialVersion, MQTT_URL, ScriptMount, TargetContainer,
        },
        node_context::{NodeContext, WORKERS_DIR},
        problem::Problem,
        served_version::is_plain_name,
    },
    gateway::container::gateway_container,
    values::resolve::WorkerValues,
    volumes::mounts::volumes_of,
};

/// Parent directory of the models in a container.
pub const MODELS_DIR: &str = "/models";
/// Parent directory of the datasets in a container.
const DATASETS_DIR: &str = "/datasets";

/// The local model and dataset of a worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerInputs<'a> {
    /// The model with its object; `None` if the worker needs none.
    pub model: Option<(&'a ObjectKey, &'a LocalArtifact)>,
    /// The dataset with its format, which is empty if the Dataset has none; `None` if the worker
    /// needs no dataset.
    pub dataset: Option<(&'a LocalArtifact, &'a str)>,
    /// The directory of the node for the samples that a gateway captures.
    pub capture: Option<&'a Path>,
    /// What the worker gets of its Secrets and `ConfigMap`s; `None` if it has none.
    pub values: Option<&'a WorkerValues>,
}

/// The models and datasets of the node.
#[derive(Debug, Clone, Copy)]
pub struct NodeInputs<'a> {
    pub models: &'a BTreeMap<ObjectKey, Availability>,
    pub datasets: &'a BTreeMap<ObjectKey, Availability>,
    /// The gateways whose files were written, each with its directory for captured samples, or why
    /// they could not be.
    pub gateways: &'a BTreeMap<WorkerName, Result<Option<PathBuf>, String>>,
    /// The values of the workers that have Secrets or `ConfigMap`s, or why they cannot be read.
    pub values: &'a BTreeMap<WorkerName, Result<WorkerValues, Problem>>,
}

/// Why an input of a worker is not on the node.
#[derive(Debug, PartialEq)]
pub struct MissingInput {
    pub problem: Problem,
    /// Whether a person has to solve the problem.
    pub is_stuck: bool,
}

impl<'a> NodeInputs<'a> {
    /// The inputs of a worker, if all are on the node.
    pub fn for_worker(
        &self,
        wanted: &'a WantedWorker,
        desired: &'a Desired,
    ) -> Result<WorkerInputs<'a>, MissingInput> {
        use WorkerReason::{DatasetDownloading, DatasetNotReceived};
        use WorkerReason::{ModelDownloading, ModelNotReceived};
        let capture = match wanted.worker.gateway {
            Some(_) => self.gateway_capture(&wanted.worker.name)?,
            None => None,
        };
        let values = match self.values.get(&wanted.worker.name) {
            Some(Ok(values)) => Some(values),
            Some(Err(problem)) => {
                return Err(MissingInput { problem: problem.clone(), is_stuck: false });
            }
            None => None,
        };
        let model = wanted.model.as_ref().map(|key| {
            let model = find(self.models, key, "Model", [ModelNotReceived, ModelDownloading])?;
            Ok((key, model))
        });
        let model = model.transpose()?;
        let Some(key) = &wanted.dataset else {
            return Ok(WorkerInputs { model, dataset: None, capture, values });
        };
        let data = find(self.datasets, key, "Dataset", [DatasetNotReceived, DatasetDownloading])?;
        let format = desired.datasets.get(key).map_or("", |dataset| dataset.format.as_str());
        Ok(WorkerInputs { model, dataset: Some((data, format)), capture, values })
    }

    /// The directory for captured samples of a gateway whose files are there.
    fn gateway_capture(&self, gateway: &WorkerName) -> Result<Option<&'a Path>, MissingInput> {
        let (reason, message) = match self.gateways.get(gateway) {
            Some(Ok(capture)) => return Ok(capture.as_deref()),
            Some(Err(why)) => (WorkerReason::ContainerRefused, why.clone()),
            None => (WorkerReason::Starting, "the gateway's configuration is written".to_owned()),
        };
        Err(MissingInput { problem: Problem { reason, message }, is_stuck: false })
    }

    /// Why the usable version of a worker's model is not the wanted one.
    pub fn model_problem(&self, wanted: &WantedWorker) -> Option<&'a Problem> {
        self.models.get(wanted.model.as_ref()?)?.problem.as_ref()
    }
}

fn find<'a>(
    inputs: &'a BTreeMap<ObjectKey, Availability>,
    key: &ObjectKey,
    kind: &str,
    [not_received, downloading]: [WorkerReason; 2],
) -> Result<&'a LocalArtifact, MissingInput> {
    let Some(input) = inputs.get(key) else {
        let message = format!(
            "waiting to receive {key} from the controller; create the {kind} if it does not exist"
        );
        return Err(MissingInput {
            problem: Problem { reason: not_received, message },
            is_stuck: false,
        });
    };
    input.usable.as_ref().ok_or_else(|| {
        let problem = input.problem.clone().unwrap_or_else(|| Problem {
            reason: downloading,
            message: format!("waiting for {key}"),
        });
        MissingInput { problem, is_stuck: input.is_stuck }
    })
}

/// What a worker resolves to with the inputs that are on the node now.
#[derive(Debug)]
pub struct RunnableWorker<'a> {
    /// `None` if the worker needs none.
    pub model: Option<RunnableModel<'a>>,
    /// Why `model` is not the wanted version.
    pub model_problem: Option<&'a Problem>,
    pub container: TargetContainer,
}

/// The model of a worker, as its container has it.
#[derive(Debug)]
pub struct RunnableModel<'a> {
    pub key: &'a ObjectKey,
    pub local: &'a LocalArtifact,
    /// The directory name of the version, if the worker reloads versions while it runs.
    pub version: Option<String>,
    /// Path of the model in the container.
    pub url: String,
}

/// The wanted workers, each with its container or the input that is missing.
pub type RunnableWorkers<'a> = BTreeMap<&'a WorkerName, Result<RunnableWorker<'a>, MissingInput>>;

/// Resolves all wanted workers. Done once per turn: everything else in the turn reads the result.
pub fn resolve_workers<'a>(
    desired: &'a Desired,
    inputs: NodeInputs<'a>,
    context: &NodeContext,
) -> RunnableWorkers<'a> {
    let resolved = desired.workers.iter().map(|(name, wanted)| {
        let worker = inputs.for_worker(wanted, desired).map(|inputs_of_worker| RunnableWorker {
            model_problem: inputs.model_problem(wanted),
            ..resolve_worker(wanted, inputs_of_worker, context)
        });
        (name, worker)
    });
    resolved.collect()
}

/// Resolves one worker that has all of its inputs.
pub fn resolve_worker<'a>(
    wanted: &WantedWorker,
    inputs: WorkerInputs<'a>,
    context: &NodeContext,
) -> RunnableWorker<'a> {
    let model = inputs.model.map(|(key, local)| runnable_model(wanted, key, local, context));
    let spec = container_spec(wanted, model.as_ref(), &inputs, context);
    let spec = match wanted.worker.gateway {
        Some(_) => gateway_container(spec, wanted, inputs.capture, context),
        None => spec,
    };
    RunnableWorker { model, model_problem: None, container: spec.into() }
}

fn runnable_model<'a>(
    wanted: &WantedWorker,
    key: &'a ObjectKey,
    local: &'a LocalArtifact,
    context: &NodeContext,
) -> RunnableModel<'a> {
    let version = reloadable_version(wanted, local, context);
    let dir = models_dir(key);
    let parts = [Some(dir.as_str()), version.as_deref(), local.file.as_deref()];
    let url = parts.into_iter().flatten().collect::<Vec<_>>().join("/");
    RunnableModel { key, local, version, url }
}

fn container_spec(
    wanted: &WantedWorker,
    model: Option<&RunnableModel<'_>>,
    inputs: &WorkerInputs<'_>,
    context: &NodeContext,
) -> ContainerSpec {
    let worker = &wanted.worker;
    let mut program = worker.program.clone();
    let values = inputs.values.cloned().unwrap_or_default();
    values.replace_variables(&mut program.env);
    let dataset = dataset_mount(wanted, inputs.dataset, &mut program.env);
    let topic = Topic::WorkerInfo(worker.name.clone()).under(&context.prefix);
    program.env.extend([
        (MQTT_URL.to_owned(), context.broker.url(&worker.name)),
        ("WORKER_INFO_TOPIC".to_owned(), topic),
        ("NODE_NAME".to_owned(), context.node.to_string()),
    ]);
    let (model, start) = match model {
        Some(model) => model_mount(wanted, model, &mut program.env, context),
        None => (None, None),
    };
    ContainerSpec {
        scripts: worker.scripts.as_ref().map(ScriptMount::from),
        model,
        dataset,
        dns: context.dns.clone(),
        hosts: worker.hosts.clone(),
        network: context.container_network(worker.port),
        start,
        volumes: volumes_of(wanted.node_program(), context),
        secret_env: values.env,
        pull: values.pull,
        ..ContainerSpec::new(&wanted.uid, program, &context.defaults)
    }
}

/// The mount of the worker's model, and the version with which a reloading worker starts. Sets the
/// variables that describe it in `env`.
fn model_mount(
    wanted: &WantedWorker,
    model: &RunnableModel<'_>,
    env: &mut BTreeMap<String, String>,
    context: &NodeContext,
) -> (Option<BindMount>, Option<InitialVersion>) {
    let RunnableModel { key, local, version, url } = model;
    let Some(version) = version else {
        env.insert("MODEL_URL".to_owned(), url.clone());
        return (Some(BindMount { source: local.path.clone(), target: url.clone() }), None);
    };
    let topic = Topic::WorkerReload(wanted.worker.name.clone()).under(&context.prefix);
    env.insert("WORKER_RELOAD_TOPIC".to_owned(), topic);
    env.remove("MODEL_URL");
    let source = worker_versions_dir(wanted, context);
    let start = InitialVersion { version: version.clone(), model_url: url.clone() };
    (Some(BindMount { source, target: models_dir(key) }), Some(start))
}

/// The mount of the worker's dataset, if it has one. Adds the variables that describe it to `env`.
fn dataset_mount(
    wanted: &WantedWorker,
    dataset: Option<(&LocalArtifact, &str)>,
    env: &mut BTreeMap<String, String>,
) -> Option<BindMount> {
    let (key, (data, format)) = wanted.dataset.as_ref().zip(dataset)?;
    let dir = format!("{DATASETS_DIR}/{}", key.name);
    let target = match &data.file {
        Some(file) => format!("{dir}/{file}"),
        None => dir.clone(),
    };
    env.extend([
        ("DATASET_URL".to_owned(), target.clone()),
        ("DATASET_FORMAT".to_owned(), format.to_owned()),
        ("DATA_PATH_PREFIX".to_owned(), dir),
    ]);
    Some(BindMount { source: data.path.clone(), target })
}

/// The path of this model in the worker's container. A directory appears under the object's name, a
/// file in the directory of that name.
pub fn model_url(
    wanted: &WantedWorker,
    (key, model): (&ObjectKey, &LocalArtifact),
    context: &NodeContext,
) -> String {
    runnable_model(wanted, key, model, context).url
}

fn models_dir(model: &ObjectKey) -> String {
    format!("{MODELS_DIR}/{}", model.name)
}

/// The directory name of this version of a worker's model, if the worker reloads versions while it
/// runs. Only a downloaded model has versions; a model at a path of the node is mounted as it is.
pub fn reloadable_version(
    wanted: &WantedWorker,
    model: &LocalArtifact,
    context: &NodeContext,
) -> Option<String> {
    let can_reload = wanted.worker.model_update == WorkerUpdateMode::Reload
        && model.path.starts_with(&context.data_dir)
        && is_plain_name(&wanted.uid);
    // The store names files by the digest of their content, so that the path identifies the
    // content.
    let identity = [model.path.to_string_lossy(), model.file.as_deref().unwrap_or_default().into()];
    can_reload.then(|| ContentHash::compute(&identity).as_str()[..16].to_owned())
}

/// The node's directory of a worker's versions.
pub fn worker_versions_dir(wanted: &WantedWorker, context: &NodeContext) -> PathBuf {
    context.data_dir.join(WORKERS_DIR).join(&wanted.uid).join(wanted.worker.name.as_str())
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use neptune_wire::ContainerMount;

    use super::*;
    use crate::{
        domain::{container::ContainerDefaults, node_context::WorkerBroker},
        fixtures::{local_file, model_key, node_context, wanted_worker},
    };

    fn spec_with(wanted: &WantedWorker, model: &LocalArtifact) -> ContainerSpec {
        resolve_worker(
            wanted,
            WorkerInputs { model: Some((&model_key(), model)), ..WorkerInputs::default() },
            &node_context(),
        )
        .container
        .spec
    }

    #[test]
    fn agent_variables_override_spec_and_model_is_mounted_by_name() {
        let spec = spec_with(&wanted_worker(), &local_file("/data/x/small.bin"));
        assert_eq!(spec.env["MODEL_URL"], "/models/m/small.bin");
        assert_eq!(spec.env["WORKER_INFO_TOPIC"], "neptune/workers/s-w-1/info");
        assert_eq!(spec.env["HEM_NAME"], "IBT");
        assert_eq!(spec.model.as_ref().unwrap().source, Path::new("/data/x/small.bin"));
        assert_eq!((spec.memory_bytes, spec.cpu_millis), (None, Some(5)), "zero means no limit");
    }

    #[test]
    fn spec_overrides_the_defaults_of_the_node() {
        let strict = ContainerDefaults {
            user: Some(1000),
            memory_bytes: Some(1 << 30),
            ..ContainerDefaults::default()
        };
        let node = NodeContext { defaults: strict, ..node_context() };
        let (key, model) = (model_key(), local_file("/m/1"));
        let changed_spec = |change: fn(&mut WantedWorker)| {
            let mut wanted = wanted_worker();
            change(&mut wanted);
            let inputs = WorkerInputs { model: Some((&key, &model)), ..WorkerInputs::default() };
            resolve_worker(&wanted, inputs, &node).container.spec
        };
        let spec = changed_spec(|_| ());
        assert_eq!((spec.user, spec.writable_root, spec.init), (Some(1000), false, true));
        assert_eq!((spec.memory_bytes, spec.cpu_millis), (Some(1 << 30), Some(5)));
        let spec = changed_spec(|wanted| {
            wanted.worker.program.rights.run_as_user = Some(0);
            wanted.worker.program.rights.read_only_root = Some(false);
            wanted.worker.program.resources.memory_bytes = Some(7);
        });
        assert_eq!((spec.user, spec.writable_root, spec.memory_bytes), (Some(0), true, Some(7)));
    }

    #[test]
    fn spec_hash_changes_with_every_container_setting() {
        let spec = |change: fn(&mut WantedWorker), model: &str| {
            let mut wanted = wanted_worker();
            change(&mut wanted);
            spec_with(&wanted, &local_file(model)).hash()
        };
        let elsewhere =
            NodeContext { dns: vec!["169.254.96.16".parse().unwrap()], ..node_context() };
        let inputs = WorkerInputs {
            model: Some((&model_key(), &local_file("/m/1"))),
            ..WorkerInputs::default()
        };
        assert_ne!(
            resolve_worker(&wanted_worker(), inputs, &elsewhere).container.spec.hash(),
            spec(|_| (), "/m/1")
        );
        let before = spec(|_| (), "/m/1");
        assert_eq!(spec(|_| (), "/m/1"), before);
        assert_ne!(spec(|_| (), "/m/2"), before, "another version of the model");
        assert_ne!(spec(|w| w.uid.push('2'), "/m/1"), before, "another object of that name");
        assert_ne!(spec(|w| w.worker.program.image.push('2'), "/m/1"), before);
        let add_host = |w: &mut WantedWorker| {
            w.worker.hosts.insert("c.default.svc.cluster.local".into(), [10, 96, 0, 7].into());
        };
        assert_ne!(spec(add_host, "/m/1"), before, "another address of the cloud worker");
        let add_device = |w: &mut WantedWorker| {
            w.worker.program.devices.insert("a.b/c".into(), 1);
        };
        assert_ne!(spec(add_device, "/m/1"), before, "a device");
        let add_volume = |w: &mut WantedWorker| {
            let empty_dir = Some(neptune_wire::EmptyDirMount::default());
            let (name, path) = ("state".to_owned(), "/state".to_owned());
            let mount = ContainerMount { name, path, empty_dir, ..ContainerMount::default() };
            w.worker.program.mounts.push(mount);
        };
        assert_ne!(spec(add_volume, "/m/1"), before, "a volume");
        let working_dir =
            |w: &mut WantedWorker| w.worker.program.working_dir = Some("/a".to_owned());
        assert_ne!(spec(working_dir, "/m/1"), before);
        let grace = |w: &mut WantedWorker| w.worker.program.stop_grace_seconds = Some(30);
        assert_ne!(spec(grace, "/m/1"), before);
        assert_eq!(
            spec(|w| w.worker.port = Some(5), "/m/1"),
            before,
            "the port is in the environment"
        );
    }

    #[test]
    fn new_model_version_keeps_container_of_reloading_worker() {
        let mut wanted = wanted_worker();
        wanted.worker.model_update = neptune_wire::WorkerUpdateMode::Reload;
        let spec = |path: &str| spec_with(&wanted, &local_file(path));
        let (a, b) = (
            spec("/var/lib/neptune/models/sha256/a/m"),
            spec("/var/lib/neptune/models/sha256/b/m"),
        );
        assert_eq!(a.hash(), b.hash());
        let start = |spec: &ContainerSpec| spec.start.clone().unwrap();
        assert_ne!(start(&a).model_url, start(&b).model_url);
        assert_eq!(start(&a).model_url, format!("/models/m/{}/m", start(&a).version));
        let mount = a.model.as_ref().unwrap();
        assert_eq!(mount.source, Path::new("/var/lib/neptune/workers/uid/s-w-1"));
        assert_eq!(mount.target, "/models/m");
        assert_eq!(a.env["WORKER_RELOAD_TOPIC"], "neptune/workers/s-w-1/reload");
        let local = spec("/model/m");
        assert_eq!((local.start, &*local.env["MODEL_URL"]), (None, "/models/m/m"));
    }

    #[test]
    fn dataset_is_mounted_by_name_and_described_in_environment() {
        let named = WantedWorker {
            dataset: Some("default/datasets/d".parse().unwrap()),
            ..wanted_worker()
        };
        let (key, model) = (model_key(), local_file("/m/1"));
        let data = local_file("/code/data/a.csv");
        let inputs = |data, format| WorkerInputs {
            model: Some((&key, &model)),
            dataset: Some((data, format)),
            ..WorkerInputs::default()
        };
        let spec = resolve_worker(&named, inputs(&data, "csv"), &node_context()).container.spec;
        assert_eq!(spec.env["DATASET_URL"], "/datasets/d/a.csv");
        assert_eq!(spec.env["DATASET_FORMAT"], "csv");
        assert_eq!(spec.env["DATA_PATH_PREFIX"], "/datasets/d");
        let mount = spec.dataset.as_ref().unwrap();
        assert_eq!(
            (&*mount.source, &*mount.target),
            (Path::new("/code/data/a.csv"), "/datasets/d/a.csv")
        );
        let directory = LocalArtifact { path: "/code/data/voc".into(), file: None };
        let other =
            resolve_worker(&named, inputs(&directory, "xml"), &node_context()).container.spec;
        assert_eq!(other.env["DATASET_URL"], "/datasets/d");
        assert_ne!(other.hash(), spec.hash(), "other data is another container");
        assert_eq!(
            resolve_worker(&wanted_worker(), inputs(&data, "csv"), &node_context())
                .container
                .spec
                .dataset,
            None
        );
    }

    #[test]
    fn spec_hash_is_stable_across_releases() {
        let spec = spec_with(&wanted_worker(), &local_file("/m/1"));
        assert_eq!(
            spec.hash().as_str(),
            "32a6fea9bd150138e7971af1ddd99798",
            "a change restarts every worker of every fleet"
        );
    }

    #[test]
    fn spec_hash_depends_on_the_port_only_on_a_docker_network() {
        let hash = |network: Option<&str>, port| {
            let context = NodeContext { network: network.map(str::to_owned), ..node_context() };
            let mut wanted = wanted_worker();
            wanted.worker.port = port;
            let inputs = WorkerInputs {
                model: Some((&model_key(), &local_file("/m/1"))),
                ..WorkerInputs::default()
            };
            resolve_worker(&wanted, inputs, &context).container.hash
        };
        assert_eq!(hash(None, Some(5)), hash(None, None));
        assert_ne!(hash(Some("bridge"), None), hash(None, None));
        assert_ne!(hash(Some("bridge"), Some(5)), hash(Some("bridge"), None));
        assert_ne!(hash(Some("bridge"), None), hash(Some("workers"), None));
    }

    #[test]
    fn spec_hash_with_the_embedded_broker_is_stable_across_releases() {
        let embedded = WorkerBroker::Embedded("127.0.0.1:1884".parse().unwrap());
        let context = NodeContext { broker: embedded, ..node_context() };
        let inputs = WorkerInputs {
            model: Some((&model_key(), &local_file("/m/1"))),
            ..WorkerInputs::default()
        };
        let spec = resolve_worker(&wanted_worker(), inputs, &context).container.spec;
        assert_eq!(spec.env["MQTT_URL"], "mqtt://s-w-1@127.0.0.1:1884");
        assert_eq!(
            spec.hash().as_str(),
            "59aad3d360d08d516322098c46f7fa16",
            "a change restarts every worker of every fleet"
        );
    }
}
