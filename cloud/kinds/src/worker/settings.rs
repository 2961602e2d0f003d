//! Checks the parameters and environment variables of a worker.

use std::collections::BTreeMap;

use neptune_api::{EnvironmentVariable, KeyValue};

use crate::{
    finding::Finding,
    reason::Reason,
    worker::environment::{RESERVED, is_variable, variable},
};

/// Checks the parameters that `field` names.
pub fn parameters(field: &str, parameters: &[KeyValue], findings: &mut Vec<Finding>) {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for KeyValue { key, .. } in parameters {
        if key.is_empty() {
            findings.push(Finding::new(
                Reason::ParameterInvalid,
                format!("{field}: empty key; set a key or remove the parameter"),
            ));
        } else if let Some(first) = seen.insert(variable(key), key) {
            let message = if first == key {
                format!("{field}: duplicate key {key:?}; remove one")
            } else {
                format!(
                    "{field}: {first:?} and {key:?} both become the environment variable {}; rename one",
                    variable(key)
                )
            };
            findings.push(Finding::new(Reason::ParameterDuplicate, message));
        }
    }
}

/// The environment variables that `field` names. Neptune sets those of [`RESERVED`] and of
/// `reserved`.
pub fn variables(
    field: &str,
    given: &[EnvironmentVariable],
    reserved: &[&str],
    findings: &mut Vec<Finding>,
) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for variable in given {
        let name = &variable.name;
        let wrong = if !is_variable(name) {
            "must be letters, digits and '_', not beginning with a digit"
        } else if RESERVED.contains(&name.as_str()) || reserved.contains(&name.as_str()) {
            "is set by Neptune; choose another name"
        } else if env.insert(name.clone(), variable.value.clone()).is_some() {
            "is a duplicate; remove one"
        } else {
            continue;
        };
        findings.push(Finding::new(Reason::EnvInvalid, format!("{field}: {name:?} {wrong}")));
    }
    env
}
