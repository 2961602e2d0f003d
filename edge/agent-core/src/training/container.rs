//! Decides the container of a training task: environment, mounts, limits, labels and name.

use std::collections::{BTreeMap, HashMap};

use crate::{
    desired::WantedTask,
    domain::{
        artifact::LocalArtifact,
        container::{
            BindMount, ContainerNetwork, ContainerSpec, DirectoryMount, ScriptMount, container_name,
        },
        node_context::NodeContext,
        node_program::NodeProgram,
        observed_container::MANAGED,
        training::{TASK, TASK_OBJECT},
    },
    volumes::mounts::volumes_of,
};
use neptune_wire::{
    AgentInstance, ContainerProgram, TaskId, TaskKind, TrainingNetwork, TrainingScript,
};

use super::paths::TaskPaths;

/// Label with the node of a training container. Not that of workers, which the agent would remove.
pub(super) const NODE: &str = "io.neptune.training-node";
pub(super) const INSTANCE: &str = "io.neptune.training-instance";
const WORKER: &str = "io.neptune.training-worker";
/// Label with when the agent started the container, on the clock since the boot.
pub const STARTED: &str = "io.neptune.training-started";
const NAME: &str = "io.neptune.training-name";

/// What the output directory may contain beside the weights, in bytes.
pub const OUTPUT_EXTRA: u64 = 1024 * 1024;
/// Seconds between SIGTERM and SIGKILL. An output that was not finished is not used.
const STOP_GRACE: u32 = 1;
/// The directory of a downloaded program in the container.
const SCRIPT_DIR: &str = "/script";
const OUTPUT_DIR: &str = "/output";
const DATASETS_DIR: &str = "/datasets";
const WEIGHTS_DIR: &str = "/weights";
/// The certificate of the authority of a session's server in the container.
const CA_FILE: &str = "/session/ca.pem";

/// The variables that make numeric libraries repeat a computation bit by bit. The user may set
/// others.
const DETERMINISTIC: [(&str, &str); 4] = [
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
    ("PYTHONHASHSEED", "0"),
];

/// The inputs of a task that are on the node.
#[derive(Debug, Clone)]
pub struct TaskInputs {
    pub dataset: LocalArtifact,
    pub format: String,
    /// Number of samples that the agent counted; `None` if they are not counted.
    pub counted: Option<u64>,
    /// The training program, if it is downloaded; `None` if it is on the node or in the image.
    pub script: Option<LocalArtifact>,
    /// The name of the weights in the container; `None` if the task begins with none.
    pub weights: Option<&'static str>,
}

/// Identifies a training container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingIdentity {
    pub node: String,
    pub instance: String,
    pub task: TaskId,
}

impl TrainingIdentity {
    /// Parses the labels. `None` for another container.
    pub fn from_labels(labels: &HashMap<String, String>) -> Option<Self> {
        Some(Self {
            node: labels.get(NODE)?.clone(),
            instance: labels.get(INSTANCE)?.clone(),
            task: TaskId(labels.get(TASK)?.clone()),
        })
    }

    /// Whether the agent of this node and data directory is responsible for it: it, or an earlier
    /// data directory or name of the node, created it.
    pub fn is_of(&self, context: &NodeContext, instance: &AgentInstance) -> bool {
        self.node == context.node.as_str() || self.instance == instance.0
    }
}

/// The labels of the container.
pub fn labels(
    wanted: &WantedTask,
    context: &NodeContext,
    instance: &AgentInstance,
) -> HashMap<String, String> {
    let labels = [
        (MANAGED.0, MANAGED.1.to_owned()),
        (TASK, wanted.task.id.0.clone()),
        (NODE, context.node.to_string()),
        (INSTANCE, instance.0.clone()),
        (TASK_OBJECT, wanted.owner.to_string()),
        (WORKER, wanted.task.worker.clone()),
        (NAME, wanted.task.container.to_string()),
    ];
    labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Whether a container with these labels has the name of this task's container, on the same node.
pub fn has_name_of(labels: &HashMap<String, String>, wanted: &WantedTask) -> bool {
    labels.get(NAME).is_some_and(|name| name == wanted.task.container.as_str())
}

/// Returns the name of the task's container on this node.
pub fn name(wanted: &WantedTask, context: &NodeContext) -> String {
    container_name(&context.node, &wanted.task.container)
}

/// The user of the program: that of the object or of the node, else one without rights.
pub fn user(wanted: &WantedTask, context: &NodeContext) -> u32 {
    let rights = &wanted.container.program.rights;
    rights.run_as_user.or(context.defaults.user).unwrap_or_else(|| context.program_user())
}

/// The limit of each file that the program writes, in bytes.
pub fn output_limit(wanted: &WantedTask) -> u64 {
    wanted.container.max_update_bytes.saturating_add(OUTPUT_EXTRA)
}

/// Returns the specification of the container that runs the task.
pub fn spec(
    wanted: &WantedTask,
    inputs: &TaskInputs,
    files: &TaskPaths,
    context: &NodeContext,
) -> ContainerSpec {
    let container = &wanted.container;
    let (uid, name) = (&wanted.uid, &wanted.task.container);
    let node_program = NodeProgram { uid, name, program: &container.program };
    let bind = |source, target: &str, writable| DirectoryMount {
        source,
        target: target.to_owned(),
        writable,
    };
    let mut directories = vec![bind(files.output(), OUTPUT_DIR, true)];
    let weights = inputs.weights.map(|name| format!("{WEIGHTS_DIR}/{name}"));
    if let Some(weights) = &weights {
        directories.push(bind(files.base(), weights, false));
    }
    if let Some(script) = &inputs.script {
        let target = match &script.file {
            Some(file) => format!("{SCRIPT_DIR}/{file}"),
            None => SCRIPT_DIR.to_owned(),
        };
        directories.push(bind(script.path.clone(), &target, false));
    }
    if wanted.session.is_some() {
        directories.push(bind(files.ca(), CA_FILE, false));
    }
    let scripts = match &container.script {
        Some(TrainingScript::Directory(scripts)) => Some(ScriptMount::from(scripts)),
        Some(TrainingScript::Download { .. }) | None => None,
    };
    let network = match container.network {
        TrainingNetwork::None => "none",
        TrainingNetwork::Bridge => "bridge",
    };
    let dataset = dataset_path(wanted, inputs);
    let of_session = session_values(wanted, &dataset, weights.as_deref());
    let args = container.program.args.iter().map(|arg| replaced(arg, &of_session));
    let mut env = environment(wanted, (&dataset, &inputs.format), weights.as_deref(), context);
    let variables = of_session.iter().filter(|(_, name, _)| !name.is_empty());
    env.extend(variables.map(|(_, name, value)| ((*name).to_owned(), value.clone())));
    let program = ContainerProgram {
        args: boot_file(wanted).into_iter().chain(args).collect(),
        env,
        ..container.program.clone()
    };
    ContainerSpec {
        scripts,
        dataset: Some(BindMount { source: inputs.dataset.path.clone(), target: dataset }),
        directories,
        user: Some(user(wanted, context)),
        stop_grace_seconds: Some(STOP_GRACE),
        volumes: volumes_of(node_program, context),
        network: Some(ContainerNetwork {
            name: network.to_owned(),
            port: None,
            grpc_port: None,
            loopback_ports: Vec::new(),
        }),
        // A task is found by its ID, not by the UID of its object.
        ..ContainerSpec::new("", program, &context.defaults)
    }
}

/// What the arguments and the environment of a session have: placeholder, variable and value. Empty
/// for other tasks, whose arguments have no placeholders.
fn session_values(
    wanted: &WantedTask,
    dataset: &str,
    weights: Option<&str>,
) -> Vec<(&'static str, &'static str, String)> {
    let (Some(session), Some(place)) = (&wanted.session, wanted.task.place) else {
        return Vec::new();
    };
    vec![
        ("{aggregator}", "AGGREGATOR_ADDRESS", session.address.clone()),
        ("{caFile}", "CA_FILE", CA_FILE.to_owned()),
        ("{index}", "WORKER_INDEX", place.index.to_string()),
        ("{workers}", "WORKERS", place.workers.to_string()),
        ("{attempt}", "ATTEMPT", wanted.task.round.to_string()),
        // The variables of all tasks have these.
        ("{dataset}", "", dataset.to_owned()),
        ("{weights}", "", weights.unwrap_or_default().to_owned()),
    ]
}

/// Replaces the placeholders of an argument. A value that looks like one is left as it is.
fn replaced(arg: &str, values: &[(&str, &str, String)]) -> String {
    let mut text = String::new();
    let mut rest = arg;
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let matched = values.iter().find(|(placeholder, ..)| rest.starts_with(placeholder));
        let (length, value) =
            matched.map_or((1, "{"), |(placeholder, _, value)| (placeholder.len(), value));
        text.push_str(value);
        rest = &rest[length..];
    }
    text + rest
}

/// The path of the program in the container, if the image does not contain it.
fn boot_file(wanted: &WantedTask) -> Option<String> {
    match wanted.container.script.as_ref()? {
        TrainingScript::Download { boot_file, .. } => Some(format!("{SCRIPT_DIR}/{boot_file}")),
        TrainingScript::Directory(scripts) => {
            Some(format!("{}/{}", scripts.dir, scripts.boot_file))
        }
    }
}

fn dataset_path(wanted: &WantedTask, inputs: &TaskInputs) -> String {
    let dir = format!("{DATASETS_DIR}/{}", wanted.dataset.name);
    match &inputs.dataset.file {
        Some(file) => format!("{dir}/{file}"),
        None => dir,
    }
}

/// The variables of the object, and those of the task, which replace them.
fn environment(
    wanted: &WantedTask,
    (dataset, format): (&str, &str),
    weights: Option<&str>,
    context: &NodeContext,
) -> BTreeMap<String, String> {
    let task = &wanted.task;
    let kind = match task.kind {
        TaskKind::Initialize => "initialize",
        TaskKind::Train => "train",
        TaskKind::Evaluate => "evaluate",
        TaskKind::Session => "session",
    };
    let mut env: BTreeMap<String, String> =
        DETERMINISTIC.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    env.extend(wanted.container.program.env.clone());
    let own = [
        ("TASK", kind.to_owned()),
        ("RUN", wanted.run.to_string()),
        ("ROUND", task.round.to_string()),
        ("ROUNDS", task.rounds.to_string()),
        ("WORKER_NAME", task.worker.clone()),
        ("SEED", task.seed.to_string()),
        ("OUTPUT_DIR", OUTPUT_DIR.to_owned()),
        ("DATASET_URL", dataset.to_owned()),
        ("TRAIN_DATASET_URL", dataset.to_owned()),
        ("DATASET_FORMAT", format.to_owned()),
        ("NODE_NAME", context.node.to_string()),
    ];
    env.extend(own.map(|(name, value)| (name.to_owned(), value)));
    for name in ["WEIGHTS_URL", "MODEL_URL", "PRETRAINED_MODEL_URL"] {
        match weights {
            Some(path) => drop(env.insert(name.to_owned(), path.to_owned())),
            None => drop(env.remove(name)),
        }
    }
    env
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use crate::{
        desired::training::tests::wanted,
        domain::{
            node_context::NONROOT, observed_container::ContainerIdentity, volume::VolumeSource,
        },
        fixtures::{local_file, node_context},
    };
    use serde_json::json;

    use super::*;

    fn inputs() -> TaskInputs {
        let script = LocalArtifact { path: "/var/lib/neptune/models/1".into(), file: None };
        TaskInputs {
            dataset: local_file("/data/digits.csv"),
            format: "csv".into(),
            counted: Some(1),
            script: Some(script),
            weights: Some("weights.npz"),
        }
    }

    fn a_task() -> WantedTask {
        wanted(|_| {})
    }

    fn spec_of(wanted: &WantedTask, context: &NodeContext) -> ContainerSpec {
        let files = TaskPaths::new(&context.data_dir, &wanted.task.id);
        let weights = wanted.task.base.as_ref().map(|_| "weights.npz");
        spec(wanted, &TaskInputs { weights, ..inputs() }, &files, context)
    }

    #[test]
    fn program_has_the_task_in_its_environment_and_no_network() {
        let spec = spec_of(&wanted(|_| {}), &node_context());
        for (name, value) in [
            ("TASK", "train"),
            ("RUN", "1"),
            ("ROUND", "1"),
            ("ROUNDS", "2"),
            ("WORKER_NAME", "a"),
            ("SEED", "3"),
            ("WEIGHTS_URL", "/weights/weights.npz"),
            ("MODEL_URL", "/weights/weights.npz"),
            ("PRETRAINED_MODEL_URL", "/weights/weights.npz"),
            ("DATASET_URL", "/datasets/d/digits.csv"),
            ("TRAIN_DATASET_URL", "/datasets/d/digits.csv"),
            ("DATASET_FORMAT", "csv"),
            ("OUTPUT_DIR", "/output"),
            ("OMP_NUM_THREADS", "1"),
            ("OPENBLAS_NUM_THREADS", "1"),
            ("MKL_NUM_THREADS", "1"),
            ("PYTHONHASHSEED", "0"),
        ] {
            assert_eq!(spec.env.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(spec.args, ["/script/train.py"]);
        assert_eq!(spec.network.unwrap().name, "none");
        assert_eq!((spec.user, spec.writable_root), (Some(NONROOT), false));
        let writable: Vec<_> = spec.directories.iter().filter(|it| it.writable).collect();
        assert_eq!(writable.len(), 1);
        let output = format!("/var/lib/neptune/training/{}/output", "2".repeat(64));
        assert_eq!(
            (writable[0].source.as_path(), &*writable[0].target),
            (Path::new(&output), "/output")
        );
        assert!(spec.directories.iter().any(|it| it.target == "/script" && !it.writable));
    }

    #[test]
    fn user_sets_threads_and_user_but_not_the_task() {
        let wanted = wanted(|content| {
            content["container"]["env"] = json!({"OMP_NUM_THREADS": "4", "SEED": "mine"});
            content["container"]["rights"] = json!({"runAsUser": 1000});
            content["container"]["network"] = json!("bridge");
        });
        let spec = spec_of(&wanted, &node_context());
        assert_eq!((&*spec.env["OMP_NUM_THREADS"], &*spec.env["SEED"]), ("4", "3"));
        assert_eq!((spec.user, spec.network.unwrap().name.as_str()), (Some(1000), "bridge"));
        let agent = NodeContext { agent_user: 998, gateway_user: 998, ..node_context() };
        assert_eq!(user(&a_task(), &agent), 998);
        let confined = NodeContext { gateway_user: 0, ..node_context() };
        assert_eq!(user(&a_task(), &confined), NONROOT);
    }

    #[test]
    fn volumes_of_all_rounds_of_a_worker_are_the_same() {
        let volumes = |round: u32, id: &str| {
            let wanted = wanted(|content| {
                content["container"]["mounts"] = json!([
                    {"name": "cache", "path": "/cache", "emptyDir": {}},
                    {"name": "shm", "path": "/dev/shm", "emptyDir": {"memoryBytes": 4096}},
                ]);
                content["tasks"][0]["round"] = json!(round);
                content["tasks"][0]["id"] = json!(id.repeat(64));
            });
            spec_of(&wanted, &node_context()).volumes
        };
        let first = volumes(1, "2");
        let engine = VolumeSource::Engine("neptune-edge0-digits-a-cache".to_owned());
        assert_eq!((&first[0].source, &first[1].source), (&engine, &VolumeSource::Memory(4096)));
        assert_eq!(volumes(2, "3"), first);
    }

    #[test]
    fn first_weights_begin_with_none() {
        let wanted = wanted(|content| {
            content["tasks"][0]["kind"] = json!("initialize");
            content["tasks"][0]["base"] = json!(null);
            content["container"]["env"] = json!({"MODEL_URL": "mine"});
        });
        let spec = spec_of(&wanted, &node_context());
        assert_eq!((&*spec.env["TASK"], spec.env.get("MODEL_URL")), ("initialize", None));
        assert!(spec.directories.iter().all(|it| !it.target.starts_with(WEIGHTS_DIR)));
    }

    #[test]
    fn worker_of_a_session_gets_the_server_in_arguments_and_environment() {
        let wanted = wanted(|content| {
            content["tasks"][0]["kind"] = json!("session");
            content["tasks"][0]["base"] = json!(null);
            content["tasks"][0]["place"] = json!({"index": 1, "workers": 2});
            content["session"] = json!({"address": "h:8000", "ca": "c"});
            content["container"]["network"] = json!("bridge");
            content["container"]["args"] = json!([
                "--superlink",
                "{aggregator}",
                "{caFile}",
                "partition-id={index} of={workers} {other} dataset=\"{dataset}\" w={weights}",
            ]);
        });
        let spec = spec_of(&wanted, &node_context());
        assert_eq!(
            spec.args[1..],
            [
                "--superlink",
                "h:8000",
                "/session/ca.pem",
                "partition-id=1 of=2 {other} dataset=\"/datasets/d/digits.csv\" w=",
            ]
        );
        for (name, value) in [
            ("TASK", "session"),
            ("AGGREGATOR_ADDRESS", "h:8000"),
            ("CA_FILE", "/session/ca.pem"),
            ("WORKER_INDEX", "1"),
            ("WORKERS", "2"),
            ("ATTEMPT", "1"),
        ] {
            assert_eq!(spec.env.get(name).map(String::as_str), Some(value), "{name}");
        }
        let ca = spec.directories.iter().find(|it| it.target == "/session/ca.pem").unwrap();
        assert!(!ca.writable && ca.source.ends_with("ca.pem"));
        assert_eq!(spec.network.unwrap().name, "bridge");
    }

    #[test]
    fn labels_identify_the_task_and_are_not_those_of_a_worker() {
        let (wanted, context) = (wanted(|_| {}), node_context());
        let own = AgentInstance("here".into());
        let labels = labels(&wanted, &context, &own);
        let identity = TrainingIdentity::from_labels(&labels).unwrap();
        assert_eq!(identity.task, wanted.task.id);
        assert!(identity.is_of(&context, &AgentInstance("an earlier directory".into())));
        let renamed = NodeContext { node: "edge1".parse().unwrap(), ..node_context() };
        assert!(identity.is_of(&renamed, &own));
        assert!(!identity.is_of(&renamed, &AgentInstance("another agent".into())));
        assert_eq!(ContainerIdentity::from_labels(&labels, &context.node), None);
        assert_eq!(
            TrainingIdentity::from_labels(&crate::fixtures::container_identity().labels()),
            None
        );
    }
}
