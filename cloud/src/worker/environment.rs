//! The environment of a worker, as far as the cloud knows it. Pure.

use std::collections::BTreeMap;

use neptune_api::KeyValue;

/// Variables that Neptune sets itself, here or in the agent: nothing of a spec overrides them.
pub const RESERVED: [&str; 18] = [
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
];

/// The variable that a parameter becomes: upper case, other characters than letters and digits as
/// '_', and no digit in front.
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

/// Whether a text can name an environment variable.
pub fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A list of pairs as the JSON that workers of the field read.
pub fn json(pairs: &[KeyValue]) -> String {
    serde_json::to_string(pairs).expect("pairs of text are JSON")
}

/// The whole environment: parameters, over them the spec's own variables, over all the reserved ones.
pub fn environment<const N: usize>(
    parameters: &[KeyValue],
    own: &BTreeMap<String, String>,
    reserved: [(&str, String); N],
) -> BTreeMap<String, String> {
    let mut all: BTreeMap<_, _> = parameters
        .iter()
        .map(|parameter| (variable(&parameter.key), parameter.value.clone()))
        .filter(|(name, _)| !RESERVED.contains(&name.as_str()))
        .collect();
    all.extend(own.clone());
    all.insert("PARAMETERS".to_owned(), json(parameters));
    all.extend(reserved.map(|(name, value)| (name.to_owned(), value)));
    all
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
    fn reserved_variables_win_over_own_ones_and_these_over_parameters() {
        let parameters = [
            KeyValue::new("level", "parameter"),
            KeyValue::new("mode", "parameter"),
            KeyValue::new("mqtt_url", "parameter"),
            KeyValue::new("worker_name", "parameter"),
        ];
        let own = [("LEVEL".to_owned(), "own".to_owned())].into();
        let all = environment(&parameters, &own, [("WORKER_NAME", "w".to_owned())]);
        assert_eq!(all["LEVEL"], "own");
        assert_eq!(all["MODE"], "parameter");
        assert_eq!(all["WORKER_NAME"], "w");
        assert!(!all.contains_key("MQTT_URL"), "the agent sets it");
        assert!(all["PARAMETERS"].starts_with(r#"[{"key":"level","value":"parameter"},"#));
    }
}
