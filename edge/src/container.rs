//! Decides what a worker's container looks like: image, environment, mounts, and the fingerprint by
//! which a running container is known to be the one that is wanted. Making it is left to docker.rs.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Component, Path, PathBuf},
};

use neptune_wire::{ContentHash, NodeName, Topic, TopicPrefix, WorkerName};
use serde::Serialize;

use crate::{desired::Wanted, edition::Supplied, reload};

/// Where models are seen from inside a container.
pub const MODELS_IN_CONTAINER: &str = "/models";
/// The same of datasets.
const DATASETS_IN_CONTAINER: &str = "/datasets";

/// What every container on this node has in common.
#[derive(Debug, Clone)]
pub struct Site {
    pub node: NodeName,
    pub prefix: TopicPrefix,
    /// How workers reach the local broker.
    pub mqtt_url: String,
    pub data_dir: PathBuf,
    pub docker_socket: PathBuf,
    /// The containers' name servers; none leaves them the node's.
    pub dns: Vec<IpAddr>,
}

/// A container as it should be. Equal specs make equal containers; a running one is left alone. A
/// field that comes later has to be left out of the JSON where it is not set: a new agent would
/// otherwise restart every worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerSpec {
    pub uid: String,
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scripts: Option<ScriptMount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Mount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<Mount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Between the request to stop and the kill; Docker's 10 s if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_grace_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<IpAddr>,
    /// Of a worker that loads other versions while it runs. Another version makes no other container.
    #[serde(skip)]
    pub start: Option<Start>,
}

/// The version of its model with which a container starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    pub version: String,
    /// Its `MODEL_URL`.
    pub model_url: String,
}

/// A read-only mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mount {
    pub source: PathBuf,
    pub target: String,
}

/// The scripts' mount, and the file in it that has to be there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScriptMount {
    pub dir: PathBuf,
    pub boot_file: String,
}

/// What of the node a worker uses.
#[derive(Debug, Clone, Copy)]
pub struct Uses<'a> {
    pub model: &'a Supplied,
    /// With its format, if it names one.
    pub dataset: Option<(&'a Supplied, &'a str)>,
}

/// The container of a worker that uses this model, and maybe this dataset, of the node. What is a
/// directory is seen under the object's name, one file in the directory of that name.
pub fn container(wanted: &Wanted, uses: Uses<'_>, site: &Site) -> ContainerSpec {
    let worker = &wanted.worker;
    let model = uses.model;
    let model_url = model_url(wanted, model, site);
    let mut env = worker.env.clone();
    let dataset = wanted.dataset.as_ref().zip(uses.dataset).map(|(key, (data, format))| {
        let dir = format!("{DATASETS_IN_CONTAINER}/{}", key.name);
        let target = match &data.file {
            Some(file) => format!("{dir}/{file}"),
            None => dir.clone(),
        };
        env.extend([
            ("DATASET_URL".to_owned(), target.clone()),
            ("DATASET_FORMAT".to_owned(), format.to_owned()),
            ("DATA_PATH_PREFIX".to_owned(), dir),
        ]);
        Mount { source: data.path.clone(), target }
    });
    let topic = Topic::WorkerInfo(worker.name.clone()).under(&site.prefix);
    env.extend([
        ("MQTT_URL".to_owned(), site.mqtt_url.clone()),
        ("WORKER_INFO_TOPIC".to_owned(), topic),
        ("NODE_NAME".to_owned(), site.node.to_string()),
    ]);
    let (mount, start) = if let Some(version) = reload::version(wanted, model, site) {
        let topic = Topic::WorkerReload(worker.name.clone()).under(&site.prefix);
        env.insert("WORKER_RELOAD_TOPIC".to_owned(), topic);
        env.remove("MODEL_URL");
        let mount = Mount { source: reload::dir(wanted, site), target: models_dir(wanted) };
        (mount, Some(Start { version, model_url }))
    } else {
        env.insert("MODEL_URL".to_owned(), model_url.clone());
        (Mount { source: model.path.clone(), target: model_url }, None)
    };
    let scripts = worker.scripts.as_ref();
    ContainerSpec {
        uid: wanted.uid.clone(),
        image: worker.image.clone(),
        command: worker.command.clone(),
        args: worker.args.clone(),
        env,
        scripts: scripts
            .map(|s| ScriptMount { dir: s.dir.clone().into(), boot_file: s.boot_file.clone() }),
        model: Some(mount),
        dataset,
        cpu_millis: worker.resources.cpu_millis.filter(|limit| *limit > 0),
        memory_bytes: worker.resources.memory_bytes.filter(|limit| *limit > 0),
        stop_grace_seconds: None,
        dns: site.dns.clone(),
        start,
    }
}

/// Where a worker has this model, in its container.
pub fn model_url(wanted: &Wanted, model: &Supplied, site: &Site) -> String {
    let parts =
        [Some(models_dir(wanted)), reload::version(wanted, model, site), model.file.clone()];
    parts.into_iter().flatten().collect::<Vec<_>>().join("/")
}

fn models_dir(wanted: &Wanted) -> String {
    format!("{MODELS_IN_CONTAINER}/{}", wanted.model.name)
}

impl ContainerSpec {
    /// The fingerprint that the container carries as a label.
    pub fn hash(&self) -> ContentHash {
        ContentHash::of(self)
    }
}

/// The container's name. It names the node too: two agents on one machine can run the same service,
/// as two demos do.
pub fn container_name(node: &NodeName, worker: &WorkerName) -> String {
    format!("neptune-{node}-{worker}")
}

/// Whether a worker may see this path of the node.
///
/// # Errors
/// Why not, for a person. What would give a worker the machine or other workers' data is refused:
/// the root, the kernel's file systems, and whatever contains the Docker socket or the data directory.
pub fn may_be_mounted(path: &Path, site: &Site) -> Result<(), String> {
    let plain = path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        && path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    if !plain {
        return Err(
            "is not an absolute path without '.', '..', '//' and a '/' at its end".to_owned()
        );
    }
    let refused = |what: &str| Err(format!("would give the worker {what}"));
    if path == Path::new("/") {
        return refused("the whole machine");
    }
    if ["/proc", "/sys", "/dev"].iter().any(|tree| path.starts_with(tree)) {
        return refused("the kernel's files");
    }
    // A read-only mount does not keep a worker from speaking on a socket in it. Sticks and cards are
    // mounted below /run/media.
    let is_run = ["/run", "/var/run"].iter().any(|dir| {
        path.strip_prefix(dir)
            .is_ok_and(|below| !below.starts_with("media") || below == Path::new("media"))
    });
    if is_run || path == Path::new("/var") || site.docker_socket.starts_with(path) {
        return refused("the sockets of the machine's services");
    }
    if site.data_dir.starts_with(path) {
        return refused("the agent's own data");
    }
    Ok(())
}

/// Whether the boot file is a plain path below the script directory.
pub fn is_below(boot_file: &str) -> bool {
    !boot_file.is_empty()
        && Path::new(boot_file).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    pub fn site() -> Site {
        Site {
            node: "edge0".parse().unwrap(),
            prefix: TopicPrefix::default(),
            mqtt_url: "mqtt://127.0.0.1:1884".into(),
            data_dir: "/var/lib/neptune".into(),
            docker_socket: "/var/run/docker.sock".into(),
            dns: Vec::new(),
        }
    }

    /// A file of the node.
    pub fn file(path: &str) -> Supplied {
        let file = Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
        Supplied { path: path.into(), file: Some(file) }
    }

    pub fn wanted() -> Wanted {
        Wanted {
            owner: "default/jointinferenceservices/s".parse().unwrap(),
            uid: "uid".into(),
            worker: serde_json::from_value(json!({
                "name": "s-w-1", "role": "edge", "image": "i", "model": "m", "args": ["/code/a.py"],
                "scripts": {"dir": "/code", "bootFile": "a.py"},
                "env": {"HEM_NAME": "IBT", "MODEL_URL": "mine"}, "resources": {"memoryBytes": 0, "cpuMillis": 5},
            }))
            .unwrap(),
            model: "default/models/m".parse().unwrap(),
            dataset: None,
        }
    }

    fn spec_with(wanted: &Wanted, model: &Supplied) -> ContainerSpec {
        container(wanted, Uses { model, dataset: None }, &site())
    }

    #[test]
    fn the_agents_own_variables_win_and_the_model_stands_under_its_name() {
        let spec = spec_with(&wanted(), &file("/data/x/small.bin"));
        assert_eq!(spec.env["MODEL_URL"], "/models/m/small.bin");
        assert_eq!(spec.env["WORKER_INFO_TOPIC"], "neptune/workers/s-w-1/info");
        assert_eq!(spec.env["HEM_NAME"], "IBT");
        assert_eq!(spec.model.as_ref().unwrap().source, Path::new("/data/x/small.bin"));
        assert_eq!((spec.memory_bytes, spec.cpu_millis), (None, Some(5)), "zero means no limit");
    }

    #[test]
    fn the_fingerprint_changes_with_whatever_makes_another_container() {
        let spec = |change: fn(&mut Wanted), model: &str| {
            let mut wanted = wanted();
            change(&mut wanted);
            spec_with(&wanted, &file(model)).hash()
        };
        let elsewhere = Site { dns: vec!["169.254.96.16".parse().unwrap()], ..site() };
        let uses = Uses { model: &file("/m/1"), dataset: None };
        assert_ne!(container(&wanted(), uses, &elsewhere).hash(), spec(|_| (), "/m/1"));
        let before = spec(|_| (), "/m/1");
        assert_eq!(spec(|_| (), "/m/1"), before);
        assert_ne!(spec(|_| (), "/m/2"), before, "another version of the model");
        assert_ne!(spec(|w| w.uid.push('2'), "/m/1"), before, "another object of that name");
        assert_ne!(spec(|w| w.worker.image.push('2'), "/m/1"), before);
        assert_eq!(
            spec(|w| w.worker.port = Some(5), "/m/1"),
            before,
            "the port is in the environment"
        );
    }

    #[test]
    fn another_version_makes_no_other_container_of_a_worker_that_reloads() {
        let mut wanted = wanted();
        wanted.worker.model_update = neptune_wire::WorkerUpdateMode::Reload;
        let of = |path: &str| spec_with(&wanted, &file(path));
        let (a, b) =
            (of("/var/lib/neptune/models/sha256/a/m"), of("/var/lib/neptune/models/sha256/b/m"));
        assert_eq!(a.hash(), b.hash());
        let start = |spec: &ContainerSpec| spec.start.clone().unwrap();
        assert_ne!(start(&a).model_url, start(&b).model_url);
        assert_eq!(start(&a).model_url, format!("/models/m/{}/m", start(&a).version));
        let mount = a.model.as_ref().unwrap();
        assert_eq!(mount.source, Path::new("/var/lib/neptune/workers/uid/s-w-1"));
        assert_eq!(mount.target, "/models/m");
        assert_eq!(a.env["WORKER_RELOAD_TOPIC"], "neptune/workers/s-w-1/reload");
        let local = of("/model/m");
        assert_eq!((local.start, &*local.env["MODEL_URL"]), (None, "/models/m/m"));
    }

    #[test]
    fn a_dataset_is_mounted_under_its_name_and_told_with_its_format() {
        let named = Wanted { dataset: Some("default/datasets/d".parse().unwrap()), ..wanted() };
        let (model, data) = (file("/m/1"), file("/code/data/a.csv"));
        let uses = |data, format| Uses { model: &model, dataset: Some((data, format)) };
        let spec = container(&named, uses(&data, "csv"), &site());
        assert_eq!(spec.env["DATASET_URL"], "/datasets/d/a.csv");
        assert_eq!(spec.env["DATASET_FORMAT"], "csv");
        assert_eq!(spec.env["DATA_PATH_PREFIX"], "/datasets/d");
        let mount = spec.dataset.as_ref().unwrap();
        assert_eq!(
            (&*mount.source, &*mount.target),
            (Path::new("/code/data/a.csv"), "/datasets/d/a.csv")
        );
        let directory = Supplied { path: "/code/data/voc".into(), file: None };
        let other = container(&named, uses(&directory, "xml"), &site());
        assert_eq!(other.env["DATASET_URL"], "/datasets/d");
        assert_ne!(other.hash(), spec.hash(), "other data is another container");
        assert_eq!(container(&wanted(), uses(&data, "csv"), &site()).dataset, None);
    }

    #[test]
    fn the_fingerprint_is_the_same_in_every_version() {
        let spec = spec_with(&wanted(), &file("/m/1"));
        assert_eq!(
            spec.hash().as_str(),
            "32a6fea9bd150138e7971af1ddd99798",
            "a change restarts every worker of every fleet"
        );
    }

    #[test]
    fn what_would_give_a_worker_the_machine_is_not_mounted() {
        for good in [
            "/code",
            "/opt/scripts/a",
            "/var/lib/neptune-scripts",
            "/run/media/usb",
            "/var/lib/neptune/models/x",
        ] {
            assert_eq!(may_be_mounted(Path::new(good), &site()), Ok(()), "{good}");
        }
        for bad in [
            "",
            "code",
            "./code",
            "/code/",
            "/code/..",
            "/code/../etc",
            "//code",
            "/code/./x",
            "/",
            "/proc",
            "/proc/1",
            "/sys",
            "/dev",
            "/dev/shm",
            "/run",
            "/run/containerd",
            "/run/mediators",
            "/var/run/docker",
            "/var/run",
            "/var",
            "/var/lib",
            "/var/lib/neptune",
        ] {
            assert!(may_be_mounted(Path::new(bad), &site()).is_err(), "{bad:?} was taken");
        }
        let elsewhere = Site { docker_socket: "/tmp/x/docker.sock".into(), ..site() };
        assert!(may_be_mounted(Path::new("/tmp"), &elsewhere).is_err());
        assert!(may_be_mounted(Path::new("/tmp/x"), &elsewhere).is_err());
    }

    #[test]
    fn a_boot_file_stays_below_its_directory() {
        assert!(is_below("a.py") && is_below("pkg/a.py"));
        for bad in ["", "/etc/passwd", "../a.py", "pkg/../../a.py", "."] {
            assert!(!is_below(bad), "{bad:?} was taken");
        }
    }
}
