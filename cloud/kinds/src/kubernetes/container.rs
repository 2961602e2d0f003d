//! Renders a program as a container of a Pod. The rights come with the Pod, see `pod_security`:
//! they include some that agents never give, such as capabilities.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, EnvVar, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use neptune_wire::{ContainerProgram, ResourceLimits};

/// The container that runs a program. Each kind begins with it, and adds mounts, ports, probes and
/// the variables that only a Pod has.
pub fn container(name: &str, program: &ContainerProgram) -> Container {
    let env = program.env.iter().map(|(name, value)| variable(name, value));
    Container {
        name: name.to_owned(),
        image: Some(program.image.clone()),
        command: some(&program.command),
        args: some(&program.args),
        working_dir: program.working_dir.clone(),
        env: some(&env.collect::<Vec<_>>()),
        resources: limits(program),
        ..Container::default()
    }
}

/// The resource limits of a container. Devices are extended resources, which device plugins offer.
fn limits(program: &ContainerProgram) -> Option<ResourceRequirements> {
    let ResourceLimits { cpu_millis, memory_bytes } = &program.resources;
    let cpu = cpu_millis.map(|millis| ("cpu", format!("{millis}m")));
    let memory = memory_bytes.map(|bytes| ("memory", bytes.to_string()));
    let devices = program.devices.iter().map(|(name, number)| (name.as_str(), number.to_string()));
    let limits: BTreeMap<_, _> = [cpu, memory]
        .into_iter()
        .flatten()
        .chain(devices)
        .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
        .collect();
    (!limits.is_empty())
        .then(|| ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() })
}

/// Makes an environment variable with a plain value.
pub fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

/// `None` for an empty list: an empty list would override the image's command or arguments.
fn some<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    Some(list.to_vec()).filter(|list| !list.is_empty())
}
