//! Decides what a worker's container looks like: image, environment, mounts, and the fingerprint by
//! which a running container is known to be the one that is wanted. Making it is left to docker.rs.

use neptune_wire::Topic;

use crate::{
    desired::WantedWorker,
    domain::{
        artifact::LocalArtifact,
        container::{BindMount, ContainerSpec, InitialVersion, NodeContext, ScriptMount},
    },
    worker::{inputs::WorkerInputs, reload},
};

/// Where models are seen from inside a container.
pub const MODELS_DIR: &str = "/models";
/// The same of datasets.
const DATASETS_DIR: &str = "/datasets";

/// The container of a worker that uses this model, and maybe this dataset, of the node. What is a
/// directory is seen under the object's name, one file in the directory of that name.
pub fn worker_container(
    wanted: &WantedWorker,
    uses: WorkerInputs<'_>,
    site: &NodeContext,
) -> ContainerSpec {
    let worker = &wanted.worker;
    let model = uses.model;
    let model_url = model_url(wanted, model, site);
    let mut env = worker.env.clone();
    let dataset = wanted.dataset.as_ref().zip(uses.dataset).map(|(key, (data, format))| {
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
        BindMount { source: data.path.clone(), target }
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
        let mount = BindMount { source: reload::dir(wanted, site), target: models_dir(wanted) };
        (mount, Some(InitialVersion { version, model_url }))
    } else {
        env.insert("MODEL_URL".to_owned(), model_url.clone());
        (BindMount { source: model.path.clone(), target: model_url }, None)
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
pub fn model_url(wanted: &WantedWorker, model: &LocalArtifact, site: &NodeContext) -> String {
    let parts =
        [Some(models_dir(wanted)), reload::version(wanted, model, site), model.file.clone()];
    parts.into_iter().flatten().collect::<Vec<_>>().join("/")
}

fn models_dir(wanted: &WantedWorker) -> String {
    format!("{MODELS_DIR}/{}", wanted.model.name)
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;
    use crate::fixtures::{local_file, node_context, wanted_worker};

    fn spec_with(wanted: &WantedWorker, model: &LocalArtifact) -> ContainerSpec {
        worker_container(wanted, WorkerInputs { model, dataset: None }, &node_context())
    }

    #[test]
    fn the_agents_own_variables_win_and_the_model_stands_under_its_name() {
        let spec = spec_with(&wanted_worker(), &local_file("/data/x/small.bin"));
        assert_eq!(spec.env["MODEL_URL"], "/models/m/small.bin");
        assert_eq!(spec.env["WORKER_INFO_TOPIC"], "neptune/workers/s-w-1/info");
        assert_eq!(spec.env["HEM_NAME"], "IBT");
        assert_eq!(spec.model.as_ref().unwrap().source, Path::new("/data/x/small.bin"));
        assert_eq!((spec.memory_bytes, spec.cpu_millis), (None, Some(5)), "zero means no limit");
    }

    #[test]
    fn the_fingerprint_changes_with_whatever_makes_another_container() {
        let spec = |change: fn(&mut WantedWorker), model: &str| {
            let mut wanted = wanted_worker();
            change(&mut wanted);
            spec_with(&wanted, &local_file(model)).hash()
        };
        let elsewhere =
            NodeContext { dns: vec!["169.254.96.16".parse().unwrap()], ..node_context() };
        let uses = WorkerInputs { model: &local_file("/m/1"), dataset: None };
        assert_ne!(
            worker_container(&wanted_worker(), uses, &elsewhere).hash(),
            spec(|_| (), "/m/1")
        );
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
        let mut wanted = wanted_worker();
        wanted.worker.model_update = neptune_wire::WorkerUpdateMode::Reload;
        let of = |path: &str| spec_with(&wanted, &local_file(path));
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
        let named = WantedWorker {
            dataset: Some("default/datasets/d".parse().unwrap()),
            ..wanted_worker()
        };
        let (model, data) = (local_file("/m/1"), local_file("/code/data/a.csv"));
        let uses = |data, format| WorkerInputs { model: &model, dataset: Some((data, format)) };
        let spec = worker_container(&named, uses(&data, "csv"), &node_context());
        assert_eq!(spec.env["DATASET_URL"], "/datasets/d/a.csv");
        assert_eq!(spec.env["DATASET_FORMAT"], "csv");
        assert_eq!(spec.env["DATA_PATH_PREFIX"], "/datasets/d");
        let mount = spec.dataset.as_ref().unwrap();
        assert_eq!(
            (&*mount.source, &*mount.target),
            (Path::new("/code/data/a.csv"), "/datasets/d/a.csv")
        );
        let directory = LocalArtifact { path: "/code/data/voc".into(), file: None };
        let other = worker_container(&named, uses(&directory, "xml"), &node_context());
        assert_eq!(other.env["DATASET_URL"], "/datasets/d");
        assert_ne!(other.hash(), spec.hash(), "other data is another container");
        assert_eq!(
            worker_container(&wanted_worker(), uses(&data, "csv"), &node_context()).dataset,
            None
        );
    }

    #[test]
    fn the_fingerprint_is_the_same_in_every_version() {
        let spec = spec_with(&wanted_worker(), &local_file("/m/1"));
        assert_eq!(
            spec.hash().as_str(),
            "32a6fea9bd150138e7971af1ddd99798",
            "a change restarts every worker of every fleet"
        );
    }
}
