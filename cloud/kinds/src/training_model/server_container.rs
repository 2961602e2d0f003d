//! The container of an engine's server, beside the aggregator in its Pod. Both share two
//! directories of the volume: the server reads one and writes the other one.

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec, VolumeMount};
use neptune_wire::ContainerProgram;

use super::frozen::FrozenSession;
use crate::kubernetes::{
    container::{container, variable},
    workloads::{Fetch, Fetched, fetched},
};

/// Runs the command once per attempt, as the aggregator decides.
const SCRIPT: &str = include_str!("session-server.sh");

/// The mount path of the directory that the server shares with the aggregator.
const SESSION_DIR: &str = "/session";
/// The volume of the program, and the program in it.
const PROGRAM: &str = "/program";
const SCRIPT_DIR: &str = "/program/script";

/// Adds the server to the Pod of an aggregator whose volume is `data`.
pub fn add(pod: &mut PodSpec, session: &FrozenSession, fetch_image: &str) {
    let shared = |side: &str, read_only| VolumeMount {
        name: "data".to_owned(),
        mount_path: format!("{SESSION_DIR}/{side}"),
        sub_path: Some(format!("session/{side}")),
        read_only,
        ..VolumeMount::default()
    };
    let mut mounts = vec![shared("in", Some(true)), shared("out", None)];
    if let Some((url, sha256)) = &session.script {
        let Fetched { volume, mount, init } = fetched(Fetch {
            directory: PROGRAM,
            url,
            sha256: Some(sha256),
            mirrors: &[],
            output: SCRIPT_DIR,
            credentials: None,
            image: fetch_image,
        });
        pod.volumes.get_or_insert_default().push(volume);
        pod.init_containers.get_or_insert_default().push(init);
        mounts.push(mount);
    }
    let own = [
        ("PORT", session.port.to_string()),
        ("SCRIPT_DIR", SCRIPT_DIR.to_owned()),
        ("SESSION_DIR", SESSION_DIR.to_owned()),
        ("SESSION_SERVER", session.hash().to_string()),
    ];
    let shell = ["/bin/sh", "-c", SCRIPT, "session"].map(str::to_owned);
    let command = shell.into_iter().chain(session.program.command.iter().cloned()).collect();
    let mut server = container("server", &ContainerProgram { command, ..session.program.clone() });
    let own = own.iter().map(|(name, value)| variable(name, value));
    server.env.get_or_insert_default().extend(own);
    pod.containers.push(Container {
        ports: Some(vec![ContainerPort {
            name: Some("session".to_owned()),
            container_port: i32::from(session.port),
            ..ContainerPort::default()
        }]),
        volume_mounts: Some(mounts),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..server
    });
}
