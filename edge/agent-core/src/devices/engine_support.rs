//! Decides whether the container engine can pass units of devices to a container, and what its
//! refusals mean. Podman ignores what it does not know, so that a worker would start without its
//! device.

use neptune_wire::{NodeName, WorkerReason};

use crate::{
    devices::messages::missing,
    domain::{
        device::{DevicePart, DeviceUnit},
        problem::Problem,
    },
};

/// What an engine states of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFacts {
    /// Name and version, such as `docker 20.10.24`.
    pub version: String,
    /// Whether it reads CDI specs, as far as it states that.
    pub has_cdi: bool,
    /// The names of its runtimes; empty if it does not state them.
    pub runtimes: Vec<String>,
}

/// Why this engine cannot pass the units to a container; `None` if it can, or will refuse itself.
pub fn unsuited(engine: &EngineFacts, units: &[DeviceUnit]) -> Option<Problem> {
    let message = units.iter().flat_map(|unit| &unit.parts).find_map(|part| match part {
        DevicePart::Node { .. } => None,
        DevicePart::Cdi(_) => without_cdi(engine),
        DevicePart::Nvidia(_) => without_drivers(engine),
        DevicePart::Runtime { name, .. } => without_runtime(engine, name),
    })?;
    Some(Problem { reason: WorkerReason::EngineUnsuited, message })
}

/// Whether what the engine states of itself decides about these units.
pub fn depends_on_engine(units: &[DeviceUnit]) -> bool {
    let mut parts = units.iter().flat_map(|unit| &unit.parts);
    parts.any(|part| !matches!(part, DevicePart::Node { .. }))
}

fn without_cdi(engine: &EngineFacts) -> Option<String> {
    let version = &engine.version;
    let number = numbers(version);
    if is_podman(engine) {
        return (number < (5, 4)).then(|| {
            format!(
                "{version} ignores CDI devices in its API; use podman 5.4 or later, docker 25 or later, or a path below /dev in --allow-device"
            )
        });
    }
    if number < (25, 0) {
        return Some(format!(
            "{version} has no CDI; use docker 25 or later, or nvidia:ID or a path below /dev in --allow-device"
        ));
    }
    (!engine.has_cdi).then(|| {
        format!(
            r#"{version} has CDI turned off; set "features": {{"cdi": true}} in its daemon.json"#
        )
    })
}

fn without_drivers(engine: &EngineFacts) -> Option<String> {
    let version = &engine.version;
    is_podman(engine).then(|| {
        format!("{version} ignores nvidia:ID in its API; offer the GPU by its CDI name, with podman 5.4 or later")
    })
}

fn without_runtime(engine: &EngineFacts, name: &str) -> Option<String> {
    let version = &engine.version;
    // Also the versions that pass CDI devices on (podman#28429).
    if is_podman(engine) {
        return Some(format!(
            "{version} ignores runtimes in its API; offer the GPU by its CDI name, with podman 5.4 or later"
        ));
    }
    let is_known = engine.runtimes.is_empty() || engine.runtimes.iter().any(|it| it == name);
    (!is_known).then(|| {
        format!("{version} has no runtime {name}; add it to the runtimes in its daemon.json")
    })
}

fn is_podman(engine: &EngineFacts) -> bool {
    engine.version.starts_with("podman")
}

/// The first two numbers of a version; an unknown one counts as the newest.
fn numbers(version: &str) -> (u32, u32) {
    let number = |text: Option<&str>| text.and_then(|text| text.parse().ok());
    let mut parts = version.rsplit(' ').next().unwrap_or_default().split(['.', '-', '+']);
    let major = number(parts.next()).unwrap_or(u32::MAX);
    (major, number(parts.next()).unwrap_or(0))
}

/// The problem behind a refusal of the engine to create or start a container with these units; `None`
/// for another refusal.
pub fn refusal(message: &str, units: &[DeviceUnit], node: &NodeName) -> Option<Problem> {
    if units.is_empty() {
        return None;
    }
    if message.contains("unresolvable CDI devices") {
        let names = units.iter().flat_map(|unit| {
            let names = unit.parts.iter().filter_map(|part| match part {
                DevicePart::Cdi(name) => Some(name),
                _ => None,
            });
            names.map(|name| (unit.resource.as_str(), name.as_str()))
        });
        let names: Vec<(&str, &str)> = names.collect();
        let absent = names.iter().find(|(_, name)| message.contains(name)).or(names.first());
        return absent.map(|(resource, name)| missing(resource, name, node));
    }
    let is_driver = message.contains("could not select device driver");
    let is_runtime = message.contains("runtime") && message.to_lowercase().contains("unknown");
    (is_driver || is_runtime).then(|| Problem {
        reason: WorkerReason::EngineUnsuited,
        message: format!(
            "the container engine cannot pass the device on ({}); install what it needs, such as the NVIDIA Container Toolkit, and restart it",
            message.trim()
        ),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn units(part: DevicePart) -> [DeviceUnit; 1] {
        let (name, resource) = ("x".to_owned(), "nvidia.com/gpu".to_owned());
        [DeviceUnit { name, resource, identity: String::new(), parts: vec![part] }]
    }

    fn cdi() -> DevicePart {
        DevicePart::Cdi("nvidia.com/gpu=0".to_owned())
    }

    fn message(version: &str, has_cdi: bool, part: DevicePart) -> String {
        let runtimes = vec!["runc".to_owned()];
        let engine = EngineFacts { version: version.to_owned(), has_cdi, runtimes };
        unsuited(&engine, &units(part)).map(|problem| problem.message).unwrap_or_default()
    }

    #[test]
    fn engine_without_cdi_is_refused_before_a_container_is_created() {
        for (version, has_cdi, text) in [
            ("docker 20.10.24", false, "docker 20.10.24 has no CDI; use docker 25"),
            ("docker 24.0.9-1", false, "docker 24.0.9-1 has no CDI; use docker 25"),
            (
                "docker 26.1.5",
                false,
                r#"docker 26.1.5 has CDI turned off; set "features": {"cdi": true} in its daemon.json"#,
            ),
            ("docker 28.2.2", true, ""),
            ("podman 4.3.1", false, "podman 4.3.1 ignores CDI devices in its API; use podman 5.4"),
            ("podman 5.3.2", false, "podman 5.3.2 ignores CDI devices in its API; use podman 5.4"),
            ("podman 5.4.0", false, ""),
            ("docker ", true, ""),
        ] {
            let message = message(version, has_cdi, cdi());
            assert!(
                message.starts_with(text) && message.is_empty() == text.is_empty(),
                "{message}"
            );
        }
    }

    #[test]
    fn podman_ignores_drivers_and_runtimes_and_docker_names_its_runtimes() {
        let nvidia = || DevicePart::Nvidia("0".to_owned());
        let runtime = |name: &str| DevicePart::Runtime { name: name.to_owned(), id: None };
        assert!(message("podman 5.4.0", true, nvidia()).contains("ignores nvidia:ID"));
        assert_eq!(message("docker 20.10.24", false, nvidia()), "");
        assert!(message("podman 5.4.0", true, runtime("nvidia")).contains("ignores runtimes"));
        let unknown = message("docker 20.10.24", false, runtime("nvidia"));
        assert_eq!(
            unknown,
            "docker 20.10.24 has no runtime nvidia; add it to the runtimes in its daemon.json"
        );
        assert_eq!(message("docker 20.10.24", false, runtime("runc")), "");
        let node = DevicePart::Node { path: "/dev/x".into(), target: "/dev/x".into(), group: None };
        assert_eq!(message("podman 4.3.1", false, node.clone()), "");
        assert!(!depends_on_engine(&units(node)) && depends_on_engine(&units(cdi())));
    }

    #[test]
    fn each_refusal_of_the_engine_has_its_reason() {
        let node: NodeName = "edge0".parse().unwrap();
        let problem = |message: &str| refusal(message, &units(cdi()), &node);
        let missing =
            problem("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0")
                .unwrap();
        assert_eq!(
            (missing.reason, &*missing.message),
            (
                WorkerReason::DeviceMissing,
                "device nvidia.com/gpu=0 of nvidia.com/gpu is not on node edge0; the worker starts when it returns"
            )
        );
        for text in [
            "could not select device driver \"nvidia\" with capabilities: [[gpu]]",
            "Unknown runtime specified nvidia",
            "unknown or invalid runtime name: nvidia",
        ] {
            assert_eq!(problem(text).unwrap().reason, WorkerReason::EngineUnsuited, "{text}");
        }
        assert_eq!(problem("no space left on device"), None);
        assert_eq!(refusal("Unknown runtime specified nvidia", &[], &node), None);
    }
}
