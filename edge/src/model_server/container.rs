//! Decides the container spec of one version of a model server. Pure.

use std::collections::BTreeMap;

use neptune_wire::{ModelServer, ServedModel};

use crate::domain::{
    artifact::LocalArtifact,
    container::{BindMount, ContainerNetwork, ContainerSpec},
    node_context::NodeContext,
    served_version::ServedVersion,
};

/// Seconds between SIGTERM and SIGKILL of a model server. Requests take less, and the next version
/// waits for the port.
const STOP_GRACE: u32 = 1;

/// The container spec of this version. `model` is the version's model on the node, if it has one.
pub fn server_container(
    version: &ServedVersion,
    uid: &str,
    model: Option<&LocalArtifact>,
    context: &NodeContext,
) -> ContainerSpec {
    let ModelServer { image, command, args, env, resources, rights, .. } = &version.serving;
    let restrictions = context.defaults.restrict(rights, resources);
    let mut env = env.clone();
    env.insert("NODE_NAME".to_owned(), context.node.to_string());
    let mut mount = None;
    let mut file = None;
    if let (Some(served), Some(model)) = (&version.serving.model, model) {
        let url = if version.watches() {
            let source = version.versions_dir(uid, &context.data_dir);
            mount = Some(BindMount { source, target: served.directory.clone() });
            served.directory.clone()
        } else {
            let target = path_in_container(served, model);
            mount = Some(BindMount { source: model.path.clone(), target: target.clone() });
            file = Some(target.clone());
            target
        };
        env.insert("MODEL_URL".to_owned(), url);
    }
    ContainerSpec {
        uid: uid.to_owned(),
        image: image.clone(),
        command: command.clone(),
        args: args.iter().map(|arg| version.fill_argument(arg, file.as_deref())).collect(),
        env,
        scripts: None,
        model: mount,
        dataset: None,
        directories: Vec::new(),
        cpu_millis: restrictions.cpu_millis,
        memory_bytes: restrictions.memory_bytes,
        user: restrictions.user,
        writable_root: restrictions.writable_root,
        init: restrictions.init,
        stop_grace_seconds: Some(STOP_GRACE),
        start: None,
        dns: context.dns.clone(),
        hosts: BTreeMap::new(),
        network: context
            .container_network(Some(version.serving.port))
            .map(|network| ContainerNetwork { grpc_port: version.serving.grpc_port, ..network }),
    }
}

/// The version's directory, or the file in it if the model is one plain file.
fn path_in_container(served: &ServedModel, model: &LocalArtifact) -> String {
    let ServedModel { directory, version, .. } = served;
    match &model.file {
        Some(file) => format!("{directory}/{version}/{file}"),
        None => format!("{directory}/{version}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;
    use crate::fixtures::{node_context, served_version};

    fn local_artifact(file: Option<&str>) -> LocalArtifact {
        LocalArtifact { path: "/data/x".into(), file: file.map(str::to_owned) }
    }

    #[test]
    fn replaced_server_mounts_its_version_and_watching_server_the_directory() {
        let mut replaced = served_version("4", "replace");
        replaced.serving.args = vec!["--model=/models/m/{version}".into()];
        let spec = server_container(&replaced, "uid", Some(&local_artifact(None)), &node_context());
        assert_eq!(spec.args, ["--model=/models/m/4"]);
        assert_eq!(spec.env["MODEL_URL"], "/models/m/4");
        assert_eq!(spec.model.unwrap().target, "/models/m/4");
        let spec = server_container(
            &replaced,
            "uid",
            Some(&local_artifact(Some("m.onnx"))),
            &node_context(),
        );
        assert_eq!(spec.env["MODEL_URL"], "/models/m/4/m.onnx");
        assert_eq!(replaced.health_path().unwrap(), "/v/4");

        let of = |version| {
            let version = served_version(version, "watch");
            server_container(&version, "uid", Some(&local_artifact(None)), &node_context())
        };
        assert_eq!(of("4").hash(), of("3").hash(), "one container for all versions");
        let mount = of("4").model.unwrap();
        assert_eq!(mount.source, Path::new("/var/lib/neptune/serving/uid/1"));
        assert_eq!(
            (mount.target.as_str(), of("4").env["MODEL_URL"].as_str()),
            ("/models/m", "/models/m")
        );
    }

    #[test]
    fn port_is_published_on_a_docker_network_only() {
        let version = served_version("4", "replace");
        let on = |network: Option<&str>| {
            let context = NodeContext { network: network.map(str::to_owned), ..node_context() };
            server_container(&version, "uid", None, &context).network
        };
        assert_eq!(on(None), None);
        let network = on(Some("bridge")).unwrap();
        assert_eq!((&*network.name, network.port), ("bridge", Some(version.serving.port)));
        assert_eq!(network.grpc_port, None);
    }

    #[test]
    fn image_that_contains_its_model_has_no_mount() {
        let mut version = served_version("4", "replace");
        version.serving.model = None;
        let spec = server_container(&version, "uid", None, &node_context());
        assert_eq!((spec.model, spec.env.get("MODEL_URL")), (None, None));
        assert_eq!(version.version(), "i");
    }
}
