//! The environment variables of a worker that the controller sets.

use std::collections::BTreeMap;

use neptune_api::KeyValue;

/// Variables that the controller or the agent sets. A spec cannot override them.
pub const RESERVED: [&str; 20] = [
    "BIG_MODEL_BIND_IP",
    "BIG_MODEL_BIND_PORT",
    "BIG_MODEL_IP",
    "BIG_MODEL_PORT",
    "BIG_MODEL_URL",
    "DATASET_FORMAT",
    "DATASET_URL",
    "DATA_PATH_PREFIX",
    "HEM_NAME",
    "HEM_PARAMETERS",
    "MODEL_URL",
    "MQTT_URL",
    "NAMESPACE",
    "NODE_NAME",
    "PARAMETERS",
    "SERVICE_NAME",
    "WORKER_INFO_TOPIC",
    "WORKER_NAME",
    "WORKER_POD_UID",
    "WORKER_REPORT_URL",
];

/// The variable name of a parameter: upper case, '_' for characters other than letters and digits,
/// and '_' before a leading digit.
pub fn variable(key: &str) -> String {
    let mut name: String = key
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
        .collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, '_');
    }
    name
}

/// Whether a text is a valid name of an environment variable.
pub fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A list of pairs as JSON, in the format that workers read from `PARAMETERS`.
pub fn json(pairs: &[KeyValue]) -> String {
    serde_json::to_string(pairs).expect("pairs of text are JSON")
}

/// The environment of the spec. Its variables override parameters.
pub fn environment(
    parameters: &[KeyValue],
    variables: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut all: BTreeMap<_, _> = parameters
        .iter()
        .map(|parameter| (variable(&parameter.key), parameter.value.clone()))
        .filter(|(name, _)| !RESERVED.contains(&name.as_str()))
        .collect();
    all.extend(variables);
    all.insert("PARAMETERS".to_owned(), json(parameters));
    all
}

/// Sets variables of Neptune, which override those of the spec.
pub fn set<const N: usize>(env: &mut BTreeMap<String, String>, variables: [(&str, String); N]) {
    env.extend(variables.map(|(name, value)| (name.to_owned(), value)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_becomes_a_valid_variable() {
        assert_eq!(variable("nms_threshold"), "NMS_THRESHOLD");
        assert_eq!(variable("nms-threshold.x"), "NMS_THRESHOLD_X");
        assert_eq!(variable("2nd"), "_2ND");
        assert!(
            is_variable("A_1") && !is_variable("1A") && !is_variable("") && !is_variable("a-b")
        );
    }

    #[test]
    fn reserved_variables_override_spec_variables_and_parameters() {
        let parameters = [
            KeyValue::new("level", "parameter"),
            KeyValue::new("mode", "parameter"),
            KeyValue::new("mqtt_url", "parameter"),
            KeyValue::new("worker_name", "parameter"),
        ];
        let variables = [("LEVEL".to_owned(), "spec".to_owned())].into();
        let mut all = environment(&parameters, variables);
        set(&mut all, [("WORKER_NAME", "w".to_owned())]);
        assert_eq!(all["LEVEL"], "spec");
        assert_eq!(all["MODE"], "parameter");
        assert_eq!(all["WORKER_NAME"], "w");
        assert!(!all.contains_key("MQTT_URL"), "the agent sets it");
        assert!(all["PARAMETERS"].starts_with(r#"[{"key":"level","value":"parameter"},"#));
    }
}
