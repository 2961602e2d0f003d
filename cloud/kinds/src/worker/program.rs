//! Resolves the fields of a program that the specs of all kinds have in common: environment, limits
//! and rights.

use neptune_api::{EnvironmentVariable, KeyValue, ResourceRequirements, SecurityContext};
use neptune_wire::ContainerProgram;

use crate::{
    finding::Finding,
    kubernetes::{pod_security::container_rights, quantities},
    worker::{environment::environment, settings::variables},
};

/// The common fields of a program in a spec. A kind without one of them leaves it at its default.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgramFields<'a> {
    /// The field of the spec that contains them, such as `spec.workerSpec`.
    pub field: &'a str,
    /// The parameters. Without them, the program gets no variable `PARAMETERS`.
    pub parameters: Option<&'a [KeyValue]>,
    /// The environment variables, which override those of parameters.
    pub env: &'a [EnvironmentVariable],
    /// Names of variables that Neptune sets for this kind, beside those that it sets for all kinds.
    pub reserved: &'a [&'a str],
    /// The resource limits of the container.
    pub resources: Option<&'a ResourceRequirements>,
    /// The rights, which are checked by [`check`](crate::kubernetes::pod_security::check).
    pub rights: Option<&'a SecurityContext>,
}

/// The program with the common fields, and a finding for each invalid one. Image, command and
/// arguments are still empty: each kind has its own tables and placeholders for them. Parameters are
/// checked by [`parameters`](super::settings::parameters).
pub fn resolve(fields: &ProgramFields, findings: &mut Vec<Finding>) -> ContainerProgram {
    let ProgramFields { field, parameters, env, reserved, resources, rights } = *fields;
    let env = variables(&format!("{field}.env"), env, reserved, findings);
    let (limits, devices) =
        quantities::limits(&format!("{field}.resources.limits"), resources, findings);
    ContainerProgram {
        env: match parameters {
            Some(parameters) => environment(parameters, env),
            None => env,
        },
        resources: limits,
        devices,
        rights: container_rights(rights),
        ..ContainerProgram::default()
    }
}
