//! Decides which training tasks this node runs, or why a task of an object cannot be run on any node.
//! An invalid task is kept with the reason, so that its object's other tasks run.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path},
    sync::Arc,
};

use neptune_wire::{
    AggregatorEndpoint, ContainerMount, MountSource, ObjectKey, Resource, SessionServer, TaskId,
    TaskKind, TrainingContainer, TrainingContent, TrainingReason, TrainingScript, TrainingTask,
    WorkerName,
};
use url::Url;

use crate::domain::{
    artifact::{self, ArtifactSource},
    training::TaskProblem,
};

/// A task that this node runs.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedTask {
    pub owner: ObjectKey,
    /// UID of the object.
    pub uid: String,
    pub run: u32,
    pub aggregator: AggregatorEndpoint,
    pub container: Arc<TrainingContainer>,
    /// The server of a task of a session.
    pub session: Option<SessionServer>,
    pub task: TrainingTask,
    /// The `Dataset` object whose data the task reads.
    pub dataset: ObjectKey,
}

/// The tasks of all objects.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WantedTraining {
    pub tasks: BTreeMap<TaskId, WantedTask>,
    /// The tasks that cannot be run, by object and position in it.
    pub refused: BTreeMap<(ObjectKey, usize), TaskProblem>,
    /// The UIDs of the objects, also of those without a task now.
    pub uids: BTreeSet<String>,
}

impl WantedTask {
    /// The download of the program; `None` if it is in the image or in a directory of the node.
    pub fn script_source(&self) -> Option<ArtifactSource> {
        match &self.container.script {
            Some(TrainingScript::Download { url, sha256, .. }) => {
                let (namespace, url) = (self.owner.namespace.clone(), url.clone());
                Some(ArtifactSource { namespace, url, sha256: Some(sha256.clone()) })
            }
            Some(TrainingScript::Directory(_)) | None => None,
        }
    }
}

impl WantedTraining {
    /// The programs to download.
    pub fn script_sources(&self) -> impl Iterator<Item = ArtifactSource> {
        self.tasks.values().filter_map(WantedTask::script_source)
    }

    /// Other tasks of the namespace that begin with the same weights.
    pub fn same_base(&self, id: &TaskId, wanted: &WantedTask) -> Vec<TaskId> {
        let base = wanted.task.base.as_ref();
        let others = self.tasks.iter().filter(|(other, task)| {
            *other != id
                && base.is_some()
                && task.task.base.as_ref() == base
                && task.owner.namespace == wanted.owner.namespace
        });
        others.map(|(other, _)| other.clone()).collect()
    }

    /// The images of the tasks.
    pub fn images(&self) -> impl Iterator<Item = &String> {
        self.tasks.values().map(|wanted| &wanted.container.program.image)
    }

    /// Adds the tasks of an object. `is_taken`: whether a worker or a model server has this
    /// container name.
    pub fn add(
        &mut self,
        (owner, uid): (&ObjectKey, &str),
        content: &TrainingContent,
        is_taken: impl Fn(&WorkerName) -> bool,
    ) {
        let mut names: BTreeSet<WorkerName> =
            self.tasks.values().map(|wanted| wanted.task.container.clone()).collect();
        self.uids.insert(uid.to_owned());
        let invalid = content_problem(content).err();
        let container = Arc::new(content.container.clone());
        for (at, task) in content.tasks.iter().enumerate() {
            let of_task = || {
                let session = session_problem(task, content).err();
                task_problem(task).err().or(session)
            };
            let problem = invalid.clone().or_else(of_task).or_else(|| {
                let name = &task.container;
                let is_free = !self.tasks.contains_key(&task.id)
                    && !is_taken(name)
                    && names.insert(name.clone());
                (!is_free).then(|| {
                    refused(format!(
                        "task {} or container name {name} is already used on this node; delete or rename one of the two objects",
                        task.id.0
                    ))
                })
            });
            if let Some(problem) = problem {
                self.refused.insert((owner.clone(), at), problem);
                continue;
            }
            let dataset = ObjectKey {
                namespace: owner.namespace.clone(),
                resource: Resource::Datasets,
                name: task.dataset.clone(),
            };
            let wanted = WantedTask {
                owner: owner.clone(),
                uid: uid.to_owned(),
                run: content.run,
                aggregator: content.aggregator.clone(),
                container: Arc::clone(&container),
                session: content.session.clone().filter(|_| task.kind == TaskKind::Session),
                task: task.clone(),
                dataset,
            };
            self.tasks.insert(task.id.clone(), wanted);
        }
    }
}

fn refused(message: String) -> TaskProblem {
    TaskProblem::new(TrainingReason::ContainerRefused, message)
}

/// What is wrong with the part that all tasks of an object share.
fn content_problem(content: &TrainingContent) -> Result<(), TaskProblem> {
    let TrainingContent { aggregator, container, .. } = content;
    let unreachable =
        |message: String| Err(TaskProblem::new(TrainingReason::AggregatorUnreachable, message));
    if !is_origin(&aggregator.url) {
        let url = &aggregator.url;
        return unreachable(format!(
            "invalid aggregator URL {url:?}; it must be https://HOST:PORT"
        ));
    }
    if !aggregator.pin.0.strip_prefix("sha256:").is_some_and(is_digest) {
        let pin = &aggregator.pin.0;
        return unreachable(format!(
            "invalid pin {pin:?} of the aggregator; it must be sha256: and 64 lower-case hex digits"
        ));
    }
    if container.program.image.is_empty() {
        return Err(refused("the image is empty; set workerSpec.image".to_owned()));
    }
    let is_empty_dir = |mount: &&ContainerMount| {
        matches!(mount.source(), Some(MountSource::Disk | MountSource::Memory(_)))
    };
    if let Some(mount) = container.program.mounts.iter().find(|mount| !is_empty_dir(mount)) {
        let name = &mount.name;
        return Err(refused(format!(
            "volume {name} of a training has a source that this agent does not support; use emptyDir, or upgrade the agent"
        )));
    }
    let Some(TrainingScript::Download { url, sha256, boot_file }) = &container.script else {
        return Ok(());
    };
    let download = |message: String| Err(TaskProblem::new(TrainingReason::DownloadFailed, message));
    if !is_digest(sha256) {
        return download(format!(
            "invalid script.sha256sum {sha256:?}; use the output of `sha256sum FILE`"
        ));
    }
    if let Err(why) = artifact::check(url, Some(sha256)) {
        return download(format!("invalid script.url: {why}"));
    }
    let is_below = !boot_file.is_empty()
        && Path::new(boot_file).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_below {
        return Err(TaskProblem::new(
            TrainingReason::ScriptMissing,
            format!("invalid script.bootFile {boot_file:?}; use a path in the archive"),
        ));
    }
    Ok(())
}

fn task_problem(task: &TrainingTask) -> Result<(), TaskProblem> {
    if !is_digest(&task.id.0) {
        let id = &task.id.0;
        return Err(refused(format!("invalid task {id:?}; it must be 64 lower-case hex digits")));
    }
    // An evaluation is not of a worker.
    let has_no_name = task.worker.is_empty() && task.kind != TaskKind::Evaluate;
    if has_no_name || task.worker.chars().any(char::is_control) {
        let worker = &task.worker;
        return Err(refused(format!("invalid name {worker:?} of a training worker; rename it")));
    }
    let download =
        |message: &str| Err(TaskProblem::new(TrainingReason::DownloadFailed, message.to_owned()));
    match (&task.base, task.kind) {
        (None, TaskKind::Initialize | TaskKind::Session) => Ok(()),
        (None, _) => download("the task has no weights to begin with; upgrade the controller"),
        (Some(base), _) if !is_digest(&base.sha256) => {
            download("the digest of the weights must be 64 lower-case hex digits")
        }
        (Some(_), _) => Ok(()),
    }
}

/// What is wrong with the task of a session.
fn session_problem(task: &TrainingTask, content: &TrainingContent) -> Result<(), TaskProblem> {
    if task.kind != TaskKind::Session {
        return Ok(());
    }
    let (Some(session), Some(_)) = (&content.session, task.place) else {
        return Err(refused(
            "the task of a session has no server; upgrade the controller".to_owned(),
        ));
    };
    let has_port = session
        .address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_port || session.address.contains(char::is_whitespace) {
        let address = &session.address;
        return Err(refused(format!(
            "invalid address {address:?} of the server of the session; it must be HOST:PORT"
        )));
    }
    Ok(())
}

/// Whether the text is the SHA-256 of a content: 64 lower-case hex digits.
fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Whether the text is `https://host:port`.
fn is_origin(text: &str) -> bool {
    let Ok(url) = text.parse::<Url>() else { return false };
    url.scheme() == "https"
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
        && !text.ends_with('/')
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    /// The content of an object with one task, which `change` changes.
    pub fn content(change: impl FnOnce(&mut Value)) -> TrainingContent {
        let digest = |digit: &str| digit.repeat(64);
        let mut content = json!({
            "run": 1,
            "aggregator": {"url": "https://10.0.0.1:8418", "pin": format!("sha256:{}", digest("0"))},
            "container": {
                "image": "i", "mounts": [], "maxUpdateBytes": 1000, "backoffLimit": 1,
                "script": {"download": {
                    "url": "https://h/s.tgz", "sha256": digest("1"), "bootFile": "train.py",
                }}
            },
            "tasks": [{
                "worker": "a", "container": "digits-a", "id": digest("2"), "kind": "train",
                "round": 1, "rounds": 2, "seed": 3, "dataset": "d",
                "base": {"sha256": digest("3"), "bytes": 10},
            }],
        });
        change(&mut content);
        serde_json::from_value(content).unwrap()
    }

    pub fn wanted(change: impl FnOnce(&mut Value)) -> WantedTask {
        let training = add(&[content(change)]);
        training.tasks.into_values().next().unwrap()
    }

    fn add(contents: &[TrainingContent]) -> WantedTraining {
        let mut training = WantedTraining::default();
        for (at, content) in contents.iter().enumerate() {
            let owner = format!("n/trainingmodels/m{at}").parse().unwrap();
            training.add((&owner, "u"), content, |name| name.as_str() == "taken");
        }
        training
    }

    #[test]
    fn weights_are_copied_only_within_a_namespace() {
        let digest = |digit: &str| digit.repeat(64);
        let mut training = WantedTraining::default();
        for (owner, id) in [("n/m0", "4"), ("n/m1", "5"), ("other/m", "6")] {
            let content = content(|content| {
                content["tasks"][0]["id"] = json!(digest(id));
                content["tasks"][0]["container"] = json!(format!("digits-{id}"));
            });
            let owner = owner.replace('/', "/trainingmodels/").parse().unwrap();
            training.add((&owner, "u"), &content, |_| false);
        }
        let same_base = |id: &str| {
            let id = TaskId(digest(id));
            training.same_base(&id, &training.tasks[&id])
        };
        assert_eq!(same_base("4"), [TaskId(digest("5"))]);
        assert_eq!(same_base("6"), []);
    }

    #[test]
    fn evaluation_needs_no_worker() {
        let training = add(&[content(|content| {
            content["tasks"][0]["kind"] = json!("evaluate");
            content["tasks"][0]["worker"] = json!("");
        })]);
        assert_eq!((training.tasks.len(), training.refused), (1, BTreeMap::new()));
    }

    #[test]
    fn task_has_its_dataset_and_the_source_of_its_script() {
        let wanted = wanted(|_| {});
        assert_eq!(wanted.dataset.to_string(), "n/datasets/d");
        let source = wanted.script_source().unwrap();
        assert_eq!((source.namespace.as_str(), &*source.url), ("n", "https://h/s.tgz"));
    }

    #[test]
    fn invalid_task_is_refused_with_its_reason_and_others_run() {
        use TrainingReason as Reason;
        for (pointer, value, reason, text) in [
            ("/aggregator/url", json!("http://h:1"), Reason::AggregatorUnreachable, "https://"),
            ("/aggregator/url", json!("https://h:1/x"), Reason::AggregatorUnreachable, "https://"),
            ("/aggregator/url", json!("https://u@h:1"), Reason::AggregatorUnreachable, "https://"),
            ("/aggregator/pin", json!("00"), Reason::AggregatorUnreachable, "pin"),
            ("/container/image", json!(""), Reason::ContainerRefused, "workerSpec.image"),
            (
                "/container/mounts",
                json!([
                    {"name": "cache", "path": "/cache", "emptyDir": {}},
                    {"name": "data", "path": "/data", "hostPath": "/srv"},
                ]),
                Reason::ContainerRefused,
                "volume data of a training",
            ),
            (
                "/container/mounts",
                json!([{"name": "newer", "path": "/a"}]),
                Reason::ContainerRefused,
                "use emptyDir",
            ),
            (
                "/container/script/download/sha256",
                json!("AB".repeat(32)),
                Reason::DownloadFailed,
                "script.sha256sum",
            ),
            (
                "/container/script/download/url",
                json!("ftp://h/x"),
                Reason::DownloadFailed,
                "script.url",
            ),
            (
                "/container/script/download/bootFile",
                json!("../x"),
                Reason::ScriptMissing,
                "script.bootFile",
            ),
            ("/tasks/0/id", json!("../../etc"), Reason::ContainerRefused, "invalid task"),
            ("/tasks/0/worker", json!("a\nb"), Reason::ContainerRefused, "training worker"),
            ("/tasks/0/worker", json!(""), Reason::ContainerRefused, "training worker"),
            ("/tasks/0/base", json!(null), Reason::DownloadFailed, "no weights"),
            (
                "/tasks/0/base/sha256",
                json!("xy"),
                Reason::DownloadFailed,
                "64 lower-case hex digits",
            ),
            ("/tasks/0/container", json!("taken"), Reason::ContainerRefused, "already used"),
        ] {
            let invalid = content(|content| *content.pointer_mut(pointer).unwrap() = value);
            let training = add(&[invalid, content(|_| {})]);
            let (key, problem) = training.refused.first_key_value().unwrap();
            assert_eq!(
                (key.0.name.as_str(), key.1, problem.reason),
                ("m0", 0, reason),
                "{pointer}"
            );
            assert!(problem.message.contains(text), "{pointer}: {}", problem.message);
            assert_eq!(training.tasks.len(), 1, "{pointer}");
        }
    }

    #[test]
    fn task_of_a_session_needs_its_server_and_its_place() {
        let session = |change: fn(&mut Value)| {
            add(&[content(|content| {
                content["tasks"][0]["kind"] = json!("session");
                content["tasks"][0]["base"] = json!(null);
                content["tasks"][0]["place"] = json!({"index": 0, "workers": 2});
                content["session"] = json!({"address": "h:8000", "ca": "c"});
                change(content);
            })])
        };
        let wanted = session(|_| {}).tasks.into_values().next().unwrap();
        assert_eq!(wanted.session.unwrap().address, "h:8000");
        for (change, text) in [
            ((|it| it["session"] = json!(null)) as fn(&mut Value), "has no server"),
            (|it| it["tasks"][0]["place"] = json!(null), "has no server"),
            (|it| it["session"]["address"] = json!("h"), "HOST:PORT"),
            (|it| it["session"]["address"] = json!("h --insecure:1"), "HOST:PORT"),
        ] {
            let refused = session(change).refused;
            let problem = refused.values().next().unwrap();
            assert!(problem.message.contains(text), "{}", problem.message);
        }
    }

    #[test]
    fn task_and_container_name_belong_to_one_object() {
        let same_name = content(|content| content["tasks"][0]["id"] = json!("4".repeat(64)));
        for second in [content(|_| {}), same_name] {
            let training = add(&[content(|_| {}), second]);
            assert_eq!((training.tasks.len(), training.refused.len()), (1, 1));
        }
    }
}
